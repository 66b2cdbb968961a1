//! How fast an agent is asked: while its breaker is open nobody is sent to it, a few try when it may
//! be back, more as they succeed; and retries are a bounded share of its traffic.
//!
//! What is held back here waits in its operation, with a time to try again, and costs no failure.
//! The gates are memory of the engine alone: a new owner begins with open ones, and learns again.
//!
//! Those who wait come again one after the other, and not all at once: each is given an instant of its
//! own, so that a crowd of thousands costs no more looks a second than a small one.
//!
//! What must hold: whatever is held back is told when to come again, at most [`WAIT_MAX`] after the
//! gate may be open, and retries are let through at a least rate even where there is no other
//! traffic, so that nothing waits for ever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::time::Timestamp;

/// How many may try when an agent's pause is over.
const CANARIES: u32 = 3;
/// How many more may be asked for after each success.
const GROWTH: u32 = 2;
/// After so many successes since the last refusal a gate is open again.
const SUCCESSES_TO_OPEN: u32 = 100;
/// How long whoever finds no room waits before it looks again, at least.
const CROWDED_WAIT: Duration = Duration::from_millis(500);
/// Who is held back may look again this long after the one before it.
const LOOKS_APART: Duration = Duration::from_millis(2);
/// However many wait, none waits longer than this before it looks again.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// If all who were let through came to nothing, another may try so long after the last.
const CANARY_WAIT: Duration = Duration::from_secs(2);
/// The share of retries in an agent's traffic.
const RETRY_SHARE: f64 = 0.25;
/// Retries that are let through in a second whatever else there is.
const RETRIES_PER_SECOND_MIN: f64 = 50.0;
/// How many retries may be saved up.
const RETRIES_SAVED_MAX: f64 = 200.0;
/// How long a retry waits that is over the share, at least.
const RETRY_WAIT: Duration = Duration::from_secs(1);
/// A retry over the share may look again this long after the one before it.
const RETRY_LOOKS_APART: Duration = Duration::from_millis(5);

/// The gates of all agents, as one partition knows them.
#[derive(Debug, Default)]
pub struct Gates {
    by_agent: BTreeMap<Arc<str>, Gate>,
}

/// What an attempt is to its agent's traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Traffic {
    /// It was not tried before.
    First,
    /// It follows a failure.
    Retry,
}

#[derive(Debug)]
struct Gate {
    narrowed: Option<Narrowed>,
    /// Retries that may be asked for at once.
    retries: f64,
    refilled_at: Timestamp,
    /// Who waits for room.
    crowd: Queue,
    /// Who waits for the share of retries.
    retry_crowd: Queue,
}

/// Gives those who are held back an instant each at which to look again.
#[derive(Debug, Default)]
struct Queue {
    /// The next one that nobody has.
    free: Timestamp,
}

/// An agent that has refused to try.
#[derive(Debug)]
struct Narrowed {
    closed_until: Timestamp,
    room: u32,
    successes: u32,
    /// When it was last asked.
    asked_at: Timestamp,
}

impl Gates {
    /// Lets an attempt through, or tells how long to wait before it is asked for again.
    ///
    /// # Errors
    ///
    /// The wait.
    pub fn admit(
        &mut self,
        agent: &Arc<str>,
        traffic: Traffic,
        now: Timestamp,
    ) -> Result<(), Duration> {
        let gate = match self.by_agent.get_mut(agent) {
            Some(gate) => gate,
            None => self.by_agent.entry(Arc::clone(agent)).or_insert(Gate {
                narrowed: None,
                retries: RETRIES_SAVED_MAX,
                refilled_at: now,
                crowd: Queue::default(),
                retry_crowd: Queue::default(),
            }),
        };
        if let Some(narrowed) = &mut gate.narrowed {
            if now < narrowed.closed_until {
                let pause = narrowed.closed_until.since(now);
                return Err(gate.crowd.wait(pause, LOOKS_APART, now));
            }
            // Failures and time-outs make no room: without this nobody would ever try again.
            if narrowed.room == 0 && now >= narrowed.asked_at + CANARY_WAIT {
                narrowed.room = 1;
            }
            if narrowed.room == 0 {
                return Err(gate.crowd.wait(CROWDED_WAIT, LOOKS_APART, now));
            }
        }
        if traffic == Traffic::Retry && !gate.take_retry(now) {
            let crowd = &mut gate.retry_crowd;
            return Err(crowd.wait(RETRY_WAIT, RETRY_LOOKS_APART, now));
        }
        if traffic == Traffic::First {
            gate.retries = (gate.retries + RETRY_SHARE).min(RETRIES_SAVED_MAX);
        }
        if let Some(narrowed) = &mut gate.narrowed {
            narrowed.room -= 1;
            narrowed.asked_at = now;
        }
        Ok(())
    }

    /// How long nobody is sent to an agent, by its own word. (Who waits in a crowd may wait longer, but
    /// that is no more than a guess.)
    #[must_use]
    pub fn pause(&self, agent: &str, now: Timestamp) -> Duration {
        let narrowed = self
            .by_agent
            .get(agent)
            .and_then(|gate| gate.narrowed.as_ref());
        narrowed.map_or(Duration::ZERO, |narrowed| narrowed.closed_until.since(now))
    }

    /// The agent did not try, and asks to be left alone for so long.
    pub fn refused(&mut self, agent: &str, retry_after: Duration, now: Timestamp) {
        if let Some(gate) = self.by_agent.get_mut(agent) {
            let until = now + retry_after;
            let before = gate.narrowed.as_ref().map(|narrowed| narrowed.closed_until);
            gate.narrowed = Some(Narrowed {
                closed_until: before.map_or(until, |before| before.max(until)),
                room: CANARIES,
                successes: 0,
                asked_at: now,
            });
        }
    }

    /// The agent's service has answered as it should.
    pub fn succeeded(&mut self, agent: &str) {
        let Some(gate) = self.by_agent.get_mut(agent) else {
            return;
        };
        if let Some(narrowed) = &mut gate.narrowed {
            narrowed.successes += 1;
            narrowed.room = narrowed.room.saturating_add(GROWTH);
            if narrowed.successes >= SUCCESSES_TO_OPEN {
                gate.narrowed = None;
            }
        }
    }

    /// How many agents are being spared.
    #[must_use]
    pub fn narrowed(&self) -> usize {
        let gates = self.by_agent.values();
        gates.filter(|gate| gate.narrowed.is_some()).count()
    }
}

impl Queue {
    /// How long to wait: at least `least`, and `apart` from all others who wait.
    fn wait(&mut self, least: Duration, apart: Duration, now: Timestamp) -> Duration {
        let earliest = now + least;
        let at = self.free.max(earliest).min(earliest + WAIT_MAX);
        self.free = at + apart;
        at.since(now)
    }
}

impl Gate {
    fn take_retry(&mut self, now: Timestamp) -> bool {
        let gained = now.since(self.refilled_at).as_secs_f64() * RETRIES_PER_SECOND_MIN;
        self.refilled_at = self.refilled_at.max(now);
        self.retries = (self.retries + gained).min(RETRIES_SAVED_MAX);
        if self.retries < 1.0 {
            return false;
        }
        self.retries -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn agent() -> Arc<str> {
        "drone".into()
    }

    fn admitted(gates: &mut Gates, now: Timestamp) -> u32 {
        let mut admitted = 0;
        while gates.admit(&agent(), Traffic::First, now).is_ok() && admitted < 1_000 {
            admitted += 1;
        }
        admitted
    }

    #[test]
    fn nobody_is_sent_to_an_agent_that_refused_and_a_few_try_when_its_pause_is_over() {
        let mut gates = Gates::default();
        assert_eq!(admitted(&mut gates, NOW), 1_000);
        gates.refused("drone", Duration::from_secs(5), NOW);
        let wait = gates.admit(&agent(), Traffic::First, NOW + Duration::from_secs(1));
        assert_eq!(wait, Err(Duration::from_secs(4)));
        let later = NOW + Duration::from_secs(5);
        assert_eq!(admitted(&mut gates, later), CANARIES);
        assert_eq!(gates.narrowed(), 1);
    }

    #[test]
    fn another_tries_when_those_who_were_let_through_came_to_nothing() {
        let mut gates = Gates::default();
        admitted(&mut gates, NOW);
        gates.refused("drone", Duration::ZERO, NOW);
        assert_eq!(admitted(&mut gates, NOW), CANARIES);
        assert_eq!(admitted(&mut gates, NOW + Duration::from_secs(1)), 0);
        assert_eq!(admitted(&mut gates, NOW + CANARY_WAIT), 1);
        assert_eq!(admitted(&mut gates, NOW + 2 * CANARY_WAIT), 1);
    }

    #[test]
    fn each_success_makes_room_for_more_until_the_gate_is_open_again() {
        let mut gates = Gates::default();
        admitted(&mut gates, NOW);
        gates.refused("drone", Duration::ZERO, NOW);
        let mut rounds = 0;
        loop {
            let room = admitted(&mut gates, NOW);
            if room == 1_000 {
                break;
            }
            rounds += 1;
            assert!(rounds < 20, "it never opens");
            for _ in 0..room {
                gates.succeeded("drone");
            }
        }
        assert!(
            (3..=6).contains(&rounds),
            "it grows, and not at once: {rounds}"
        );
        assert_eq!(gates.narrowed(), 0);
    }

    #[test]
    fn a_crowd_looks_again_one_after_the_other_and_nobody_waits_for_ever() {
        let mut gates = Gates::default();
        admitted(&mut gates, NOW);
        gates.refused("drone", Duration::from_secs(5), NOW);
        let mut waits: Vec<_> = (0..40_000)
            .map(|_| gates.admit(&agent(), Traffic::First, NOW).unwrap_err())
            .collect();
        assert_eq!(waits[0], Duration::from_secs(5));
        assert_eq!(waits[1_000], Duration::from_secs(7));
        assert_eq!(waits[39_999], Duration::from_secs(25));
        waits.dedup();
        assert_eq!(
            waits.len(),
            10_001,
            "each has an instant of its own until the longest wait"
        );
        assert_eq!(gates.pause("drone", NOW), Duration::from_secs(5));
        let later = NOW + Duration::from_secs(60);
        assert_eq!(gates.pause("drone", later), Duration::ZERO);
        assert_eq!(admitted(&mut gates, later), CANARIES);
        let wait = gates.admit(&agent(), Traffic::First, later).unwrap_err();
        assert!(wait <= WAIT_MAX + CROWDED_WAIT, "{wait:?}");
    }

    #[test]
    fn retries_are_a_share_of_the_traffic_and_never_none() {
        let mut gates = Gates::default();
        let retries = |gates: &mut Gates, now| {
            let mut retries = 0;
            while gates.admit(&agent(), Traffic::Retry, now).is_ok() {
                retries += 1;
            }
            retries
        };
        assert_eq!(retries(&mut gates, NOW), 200, "what was saved up");
        for _ in 0..100 {
            gates.admit(&agent(), Traffic::First, NOW).unwrap();
        }
        assert_eq!(retries(&mut gates, NOW), 25);
        assert_eq!(retries(&mut gates, NOW + Duration::from_secs(1)), 50);
    }
}
