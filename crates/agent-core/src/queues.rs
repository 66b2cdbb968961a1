//! The queues of all agents of a process, and the owners that they serve.

use std::time::Duration;

use waybill_engine::Now;

use crate::epochs::Epochs;
use crate::queue::{Queue, QueueLimits};
use crate::refusal::{Refusal, Refused};
use crate::work::Work;

/// The queues of all agents of a process. `S` is the origin of a request, and agents are numbered
/// from 0.
///
/// What must hold:
///
/// * **No agent blocks another.** A request for which its agent has no capacity or time is refused
///   at once.
/// * **Nothing starts past complete-by.** A request that is late when it is received or dequeued is
///   neither started nor refused.
/// * **A superseded owner is refused.** Once a newer owner of a shard has sent requests, those of
///   the older one are refused: when they are received, and when they are dequeued.
///
/// Adding work wakes no worker. The driver wakes one worker per agent and batch of requests; each
/// worker that leaves [more work](Self::wakes_another) wakes the next.
#[derive(Debug)]
pub struct Queues<S> {
    queues: Vec<Queue<S>>,
    epochs: Epochs,
}

/// What became of a received request.
#[derive(Debug)]
pub enum Admission<S> {
    /// It waits: wake a worker of its agent.
    Queued,
    /// Its complete-by has passed: it gets no answer.
    Late,
    /// Answer it now.
    Refused(Box<Refused<S>>),
}

/// The next work of an agent.
#[derive(Debug)]
pub enum Next<S> {
    /// Start this attempt.
    Start(Work<S>),
    /// Its complete-by has passed: it ends as an attempt without an outcome, and is not started.
    Late(Work<S>),
    /// Answer it now.
    Refused(Refused<S>),
    /// There is none now.
    Empty,
    /// There will be none any more.
    Closed,
}

impl<S> Queues<S> {
    /// One queue for each agent.
    #[must_use]
    pub fn new(limits: impl IntoIterator<Item = QueueLimits>) -> Self {
        Self {
            queues: limits.into_iter().map(Queue::new).collect(),
            epochs: Epochs::default(),
        }
    }

    /// How many workers an agent has.
    #[must_use]
    pub fn workers(&self, agent: usize) -> usize {
        self.queues[agent].workers()
    }

    /// Handles a request that is received at `now`.
    pub fn admit(&mut self, agent: usize, work: Work<S>, now: Now) -> Admission<S> {
        // A late request shows who owns the shard, too.
        let is_superseded = self.epochs.is_superseded(&work.request, now.boot);
        if work.deadline.is_over(now) {
            return Admission::Late;
        }
        if is_superseded {
            return Admission::Refused(Box::new(Refused::new(work, Refusal::Superseded)));
        }
        let queue = &mut self.queues[agent];
        if queue.is_closed() {
            return Admission::Refused(Box::new(Refused::new(work, Refusal::Stopping)));
        }
        match queue.push(work) {
            Ok(()) => Admission::Queued,
            Err(refused) => Admission::Refused(refused),
        }
    }

    /// The next work of an agent. Whatever it becomes, it counts as running until it has
    /// [finished](Self::finished).
    pub fn next(&mut self, agent: usize, now: Now) -> Next<S> {
        self.next_held(agent, now, |_| true)
    }

    /// Like [`next`](Self::next), and drops work whose origin is no longer held.
    pub(crate) fn next_held(
        &mut self,
        agent: usize,
        now: Now,
        is_held: impl Fn(&S) -> bool,
    ) -> Next<S> {
        let queue = &mut self.queues[agent];
        while let Some(work) = queue.pop() {
            if !is_held(&work.source) {
                queue.finished(work.bytes, None);
                continue;
            }
            if work.deadline.is_over(now) {
                return Next::Late(work);
            }
            let refusal = match self.epochs.is_superseded(&work.request, now.boot) {
                true => Some(Refusal::Superseded),
                false => queue.refuses(&work, now),
            };
            return match refusal {
                Some(refusal) => Next::Refused(Refused::new(work, refusal)),
                None => Next::Start(work),
            };
        }
        match queue.is_closed() {
            true => Next::Closed,
            false => Next::Empty,
        }
    }

    /// Whether a worker that has asked for the [`next`](Self::next) work wakes another one.
    #[must_use]
    pub fn wakes_another(&self, agent: usize) -> bool {
        let queue = &self.queues[agent];
        queue.has_waiting() || queue.is_closed()
    }

    /// Records that dequeued work has ended, which counted for `bytes`. `took` is the duration of
    /// the attempt, if one was made.
    pub fn finished(&mut self, agent: usize, bytes: usize, took: Option<Duration>) {
        self.queues[agent].finished(bytes, took);
    }

    /// Removes queued work whose origin matches.
    pub fn forget(&mut self, is_gone: impl Fn(&S) -> bool) {
        for queue in &mut self.queues {
            queue.forget(&is_gone);
        }
    }

    /// Accepts nothing more. Returns the queued work, each with its agent, to hand it back.
    pub fn close(&mut self) -> Vec<(usize, Refused<S>)> {
        let mut handed_back = Vec::new();
        for (agent, queue) in self.queues.iter_mut().enumerate() {
            for work in queue.close() {
                handed_back.push((agent, Refused::new(work, Refusal::Stopping)));
            }
        }
        handed_back
    }

    /// The numbers of an agent's queued and running requests.
    #[must_use]
    pub fn depth(&self, agent: usize) -> (usize, usize) {
        self.queues[agent].depth()
    }

    /// Whether any agent has running requests.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.queues.iter().any(|queue| queue.depth().1 > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{at, request};

    const LIMITS: QueueLimits = QueueLimits {
        workers: 1,
        in_flight_max: 3,
        in_flight_bytes_max: 1 << 20,
    };

    /// Work of the owner with this epoch that arrives at 0, to be completed within 10 s.
    fn work(source: u32, epoch: u64) -> Work<u32> {
        Work::new(request(epoch, at(10_000)), source, 0, None, at(0))
    }

    fn admit(queues: &mut Queues<u32>, agent: usize, source: u32, epoch: u64) -> Option<Refusal> {
        match queues.admit(agent, work(source, epoch), at(0)) {
            Admission::Queued => None,
            Admission::Refused(refused) => Some(refused.refusal),
            Admission::Late => panic!("it is late"),
        }
    }

    #[test]
    fn a_superseded_owner_is_refused_when_it_asks_and_when_its_work_is_dequeued() {
        let mut queues = Queues::new([LIMITS, LIMITS]);
        assert_eq!(admit(&mut queues, 0, 1, 7), None);
        assert_eq!(admit(&mut queues, 1, 2, 8), None, "of any agent");
        assert_eq!(admit(&mut queues, 0, 3, 7), Some(Refusal::Superseded));
        let Next::Refused(refused) = queues.next(0, at(1)) else {
            panic!("the older owner's work starts");
        };
        assert_eq!(
            (refused.work.source, refused.refusal),
            (1, Refusal::Superseded)
        );
        assert_eq!(queues.depth(0), (0, 1), "it is not answered yet");
        queues.finished(0, 0, None);
        assert!(!queues.is_running());
        assert!(matches!(queues.next(1, at(1)), Next::Start(work) if work.source == 2));
        assert!(queues.is_running());
    }

    #[test]
    fn a_late_request_of_a_newer_owner_supersedes_the_older_one() {
        let mut queues = Queues::new([LIMITS]);
        let late = Work::new(request(8, at(0)), 1, 0, None, at(1));
        assert!(matches!(queues.admit(0, late, at(1)), Admission::Late));
        assert_eq!(admit(&mut queues, 0, 2, 7), Some(Refusal::Superseded));
    }

    #[test]
    fn late_work_is_neither_started_nor_refused() {
        let mut queues = Queues::new([LIMITS]);
        let late = queues.admit(0, work(1, 7), at(10_000));
        assert!(matches!(late, Admission::Late));
        assert_eq!(admit(&mut queues, 0, 2, 7), None);
        assert_eq!(admit(&mut queues, 0, 3, 8), None);
        // Not even for a superseded owner.
        assert!(matches!(queues.next(0, at(10_000)), Next::Late(work) if work.source == 2));
        assert!(matches!(queues.next(0, at(9_999)), Next::Start(work) if work.source == 3));
    }

    #[test]
    fn a_full_agent_refuses_and_blocks_no_other() {
        let mut queues = Queues::new([LIMITS, LIMITS]);
        for source in 0..3 {
            assert_eq!(admit(&mut queues, 0, source, 7), None);
        }
        let refusal = admit(&mut queues, 0, 3, 7);
        assert!(matches!(refusal, Some(Refusal::NoRoom { .. })));
        assert_eq!(admit(&mut queues, 1, 4, 7), None);
    }

    #[test]
    fn each_worker_wakes_the_next_while_work_is_left() {
        let mut queues = Queues::new([LIMITS]);
        assert!(!queues.wakes_another(0));
        assert_eq!(admit(&mut queues, 0, 1, 7), None);
        assert_eq!(admit(&mut queues, 0, 2, 7), None);
        assert!(matches!(queues.next(0, at(0)), Next::Start(_)));
        assert!(queues.wakes_another(0));
        assert!(matches!(queues.next(0, at(0)), Next::Start(_)));
        assert!(!queues.wakes_another(0));
        assert!(matches!(queues.next(0, at(0)), Next::Empty));
    }

    #[test]
    fn closed_queues_hand_their_work_back_and_every_worker_ends() {
        let mut queues = Queues::new([LIMITS, LIMITS]);
        assert_eq!(admit(&mut queues, 0, 1, 7), None);
        assert_eq!(admit(&mut queues, 0, 2, 7), None);
        assert_eq!(admit(&mut queues, 1, 3, 7), None);
        assert!(matches!(queues.next(0, at(0)), Next::Start(_)));
        let back = queues.close();
        let back: Vec<_> = back
            .iter()
            .map(|(agent, refused)| (*agent, refused.work.source, refused.refusal))
            .collect();
        assert_eq!(back, [(0, 2, Refusal::Stopping), (1, 3, Refusal::Stopping)]);
        for agent in 0..2 {
            assert!(matches!(queues.next(agent, at(0)), Next::Closed));
            assert!(queues.wakes_another(agent), "the other workers end, too");
        }
        assert_eq!((queues.depth(0), queues.depth(1)), ((0, 1), (0, 0)));
        assert_eq!(admit(&mut queues, 1, 4, 7), Some(Refusal::Stopping));
    }
}
