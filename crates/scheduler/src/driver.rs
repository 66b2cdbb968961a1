//! Drives the loop (`waybill_scheduler_core`): gives it inputs and the time, and performs its
//! effects on Kafka, the state store and the agents of this process.
//!
//! One thread does this. What must hold here:
//!
//! * the effects of an input are performed in order, and before the next input is taken;
//! * every effect with an answer is answered, after a panic in its task with that panic (`tasks`);
//! * the thread never blocks on the store, on a lease or on a consumer. On a full producer queue it
//!   waits for at most a second per shard.
//!
//! Deliberately absent: decisions.

mod leases;
mod notes;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use waybill_clock::{Suspensions, boot_clock, clocks};
use waybill_engine::{ByPriority, Now, PartitionId, Priority, ShardId, Source, Timestamp};
use waybill_scheduler_core::{
    Amount, CallerId, Candidate, CommitNumber, ControlError, Effect, Generation, Input, Own,
    SchedulerLoop, Task, TaskError,
};
use waybill_state::WriteBatch;
use waybill_store::Store;
use waybill_telemetry::trace::OpenSpan;

use self::notes::Notes;
use super::consumers::Consumers;
use super::dispatcher::Dispatcher;
use super::incoming::{Incoming, Inputs};
use super::view::Views;
use super::{index, spans, tasks};

/// Maximum number of inputs that are taken before a turn of the loop.
const INPUTS_PER_TURN_MAX: usize = 256;
/// How often the views on the admin port are updated.
const VIEW_INTERVAL: Duration = Duration::from_millis(200);
/// The pause before the end of the inbox is read again after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The loop, and what it acts on.
pub(super) struct Driver {
    scheduler_loop: SchedulerLoop,
    parts: DriverParts,
    suspensions: Suspensions,
    notes: Notes,
    /// The spans of the rows of the last group commit. They end with it.
    spans: Option<(CommitNumber, Vec<OpenSpan>)>,
    callers: HashMap<CallerId, oneshot::Sender<Result<(), ControlError>>>,
    last_caller: u64,
    /// Answers that are sent once the views show what they say.
    answers: Vec<(CallerId, Result<(), ControlError>)>,
    /// Empty between the calls of the loop; its memory is used again.
    effects: Vec<Effect>,
    failure: Option<anyhow::Error>,
}

/// What the loop acts on.
pub(super) struct DriverParts {
    /// The shards of this process.
    pub own: Own,
    pub store: Arc<dyn Store>,
    pub runtime: Handle,
    pub incoming: Receiver<Incoming>,
    pub sender: Inputs,
    pub consumers: Consumers,
    pub dispatcher: Dispatcher,
    /// How this process acquires leases.
    pub candidate: Candidate,
    pub views: Views,
}

impl Driver {
    /// A driver before the first turn of its loop.
    pub(super) fn new(scheduler_loop: SchedulerLoop, parts: DriverParts) -> Self {
        Self {
            scheduler_loop,
            parts,
            suspensions: Suspensions::default(),
            notes: Notes::new(),
            spans: None,
            callers: HashMap::new(),
            last_caller: 0,
            answers: Vec::new(),
            effects: Vec::new(),
            failure: None,
        }
    }

    /// Runs until a shutdown is complete, or the loop fails.
    pub(super) fn run(mut self) -> anyhow::Result<()> {
        let mut viewed = Instant::now();
        loop {
            let patience = self.scheduler_loop.patience(boot_clock());
            let all_taken = match self.parts.incoming.recv_timeout(patience) {
                Ok(incoming) => self.take_all(incoming),
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            self.turn(all_taken);
            let ends = self.failure.is_some() || self.scheduler_loop.is_stopped();
            if ends || !self.answers.is_empty() || viewed.elapsed() >= VIEW_INTERVAL {
                viewed = Instant::now();
                self.show();
            }
            if ends {
                break;
            }
        }
        self.parts.consumers.stop();
        self.parts.dispatcher.close();
        self.failure.map_or(Ok(()), Err)
    }

    /// Takes an input and those queued after it, up to a limit. Returns whether all were taken.
    fn take_all(&mut self, first: Incoming) -> bool {
        self.take(first);
        for _ in 1..INPUTS_PER_TURN_MAX {
            let Ok(incoming) = self.parts.incoming.try_recv() else {
                return true;
            };
            self.take(incoming);
        }
        false
    }

    fn take(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Records {
                source,
                amount,
                records,
            } => {
                self.parts.consumers.credit(source).received(amount);
                self.give(Input::Records(records), clocks());
            }
            Incoming::Answered => {
                if let Err(panicked) = self.parts.dispatcher.check_agents() {
                    self.failure = Some(panicked.into());
                }
                let now = clocks();
                for (requester, reply) in self.parts.dispatcher.answers() {
                    self.give(Input::Replied { requester, reply }, now);
                }
            }
            Incoming::SetRunning {
                shard,
                running,
                answer,
            } => {
                self.last_caller += 1;
                let caller = CallerId(self.last_caller);
                self.callers.insert(caller, answer);
                let input = Input::SetRunning {
                    shard,
                    running,
                    caller,
                };
                self.give(input, clocks());
            }
            Incoming::Input(input) => {
                let committed = match *input {
                    Input::Committed { number, .. } => Some(number),
                    _ => None,
                };
                self.give(*input, clocks());
                self.spans.take_if(|(number, _)| Some(*number) == committed);
            }
        }
    }

    /// Gives an input to the loop, and performs its effects.
    fn give(&mut self, input: Input, now: Now) {
        self.scheduler_loop.take(input, now);
        self.perform_all(now);
    }

    /// A turn of the loop, with what was acknowledged until then.
    fn turn(&mut self, all_taken: bool) {
        let suspended = self.suspensions.check();
        let now = clocks();
        while let Some(settled) = self.parts.dispatcher.settled() {
            self.give(settled.into(), now);
        }
        self.scheduler_loop.turn(all_taken, suspended, now);
        self.perform_all(now);
    }

    /// Updates the views, and sends the answers that wait for them.
    fn show(&mut self) {
        let DriverParts {
            consumers,
            dispatcher,
            views,
            ..
        } = &mut self.parts;
        views.show(&mut self.scheduler_loop, consumers, clocks());
        dispatcher.show();
        for (caller, result) in self.answers.drain(..) {
            if let Some(answer) = self.callers.remove(&caller) {
                // The caller may have stopped waiting.
                let _ = answer.send(result);
            }
        }
    }

    fn perform_all(&mut self, now: Now) {
        let mut effects = std::mem::take(&mut self.effects);
        self.scheduler_loop.take_effects(&mut effects);
        for effect in effects.drain(..) {
            self.perform(effect, now);
        }
        self.effects = effects;
    }

    fn perform(&mut self, effect: Effect, now: Now) {
        let DriverParts {
            consumers,
            dispatcher,
            ..
        } = &mut self.parts;
        match effect {
            Effect::Acquire {
                shard,
                generation,
                layout,
            } => self.acquire(shard, generation, layout),
            Effect::HandBack { held, free } => self.hand_back(*held, *free),
            Effect::Renew {
                shard,
                generation,
                lease,
            } => self.renew(shard, generation, *lease),
            Effect::Release {
                shard,
                generation,
                held,
                free,
            } => self.release(shard, generation, *held, *free),
            Effect::ReadLeases {
                shard,
                generation,
                keys,
            } => self.read_leases(shard, generation, keys),
            Effect::ReadLayout => self.read_layout(),
            Effect::Load {
                shard,
                generation,
                operations,
            } => {
                let store = self.parts.store.clone();
                let loading = async move {
                    let rows = store.get_many(operations.clone()).await;
                    let rows = rows.map_err(|error| tasks::failed(&error))?;
                    Ok::<_, TaskError>(operations.into_iter().zip(rows).collect())
                };
                self.spawn(Task::Load, loading, move |result| Input::Loaded {
                    shard,
                    generation,
                    result,
                });
            }
            Effect::Write {
                number,
                batch,
                again_after,
            } => self.write(number, batch, again_after, now.wall),
            Effect::Send {
                number,
                from,
                messages,
                valid_until,
            } => dispatcher.send(number, from, messages, valid_until),
            Effect::PassOn { requester, reply } => dispatcher.pass_on(&requester, reply),
            Effect::Forget(shard) => dispatcher.forget(shard),
            Effect::Assign(assignment) => consumers.add(&assignment),
            Effect::SetFilter { shard, filter } => consumers.set_filter(shard, &filter),
            Effect::ReadTo { shard, end } => consumers.read_to(shard, end),
            Effect::Unassign(shard) => consumers.remove(shard),
            Effect::ReadInboxEnd {
                shard,
                generation,
                partition,
            } => self.read_inbox_end(shard, generation, partition),
            Effect::CopyCheckpoint {
                partition,
                checkpoint,
            } => consumers.copy_checkpoint(partition, &checkpoint),
            Effect::OfferRoom { requests, inbox } => self.offer_room(requests, inbox),
            Effect::Relay => {
                let layout = self.scheduler_loop.layout();
                dispatcher.written(layout.partitions_written());
                self.parts.views.relay(self.parts.own, layout);
            }
            Effect::Answer { caller, result } => self.answers.push((caller, result)),
            Effect::Note(note) => self.notes.take(note),
            Effect::Fail(error) => self.failure = Some(error.into()),
        }
    }

    /// Runs a task whose result is an input of the loop.
    fn spawn<T, E: From<waybill_scheduler_core::Panicked>>(
        &self,
        task: Task,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        input: impl FnOnce(Result<T, E>) -> Input + Send + 'static,
    ) {
        tasks::spawn(&self.parts.runtime, &self.parts.sender, task, work, input);
    }

    /// Writes rows, which were decided at `now`.
    fn write(
        &mut self,
        number: CommitNumber,
        batch: WriteBatch,
        again_after: Option<Duration>,
        now: Timestamp,
    ) {
        if again_after.is_none() {
            let mut spans = Vec::new();
            for row in &batch.rows {
                spans::of_row(row, self.parts.dispatcher.topics(), &mut spans);
            }
            self.spans = (!spans.is_empty()).then_some((number, spans));
        }
        let store = self.parts.store.clone();
        let writing = async move {
            let mut now = now;
            if let Some(rest) = again_after {
                tokio::time::sleep(rest).await;
                now = now + rest;
            }
            let written = index::write(&*store, batch, now).await;
            written.map_err(|error| tasks::failed(&error))
        };
        let input = move |result| Input::Committed { number, result };
        self.spawn(Task::Commit, writing, input);
    }

    /// Reads the end of the replies of a partition, until the broker answers.
    fn read_inbox_end(&self, shard: ShardId, generation: Generation, partition: PartitionId) {
        let ends = self.parts.consumers.ends_reader();
        let asking = async move {
            loop {
                match ends.read(partition).await {
                    Ok(ends) => break Ok(ends.next.replies),
                    Err(error) => {
                        tracing::warn!(
                            %partition,
                            %error,
                            "could not read the end of the replies; retrying"
                        );
                        tokio::time::sleep(RETRY_AFTER).await;
                    }
                }
            }
        };
        self.spawn(Task::InboxEnd, asking, move |end| Input::InboxEnd {
            shard,
            generation,
            end,
        });
    }

    fn offer_room(&self, requests: ByPriority<Amount>, inbox: Amount) {
        for priority in Priority::ALL {
            let credit = self.parts.consumers.credit(priority.source());
            credit.offer(requests[priority]);
        }
        self.parts.consumers.credit(Source::Replies).offer(inbox);
    }
}
