//! Throttles the attempts at an agent: none while it refuses them, a few trial attempts after its
//! pause, and more as they succeed. Retries are limited to a share of its traffic.
//!
//! A throttled attempt waits in its operation, with a time to check again, and does not count as a
//! failure. The gates are in the engine's memory only: a new owner starts with open gates.
//!
//! Waiting attempts check again one after the other: each gets its own instant, so that thousands
//! of them cost no more checks per second than a few.
//!
//! What must hold: each throttled attempt gets a time to check again, at most [`WAIT_MAX`] after
//! the gate may be open. Retries are admitted at a minimum rate even without other traffic. So no
//! attempt waits for ever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::time::Timestamp;

/// Attempts admitted after an agent's pause.
const TRIALS: u32 = 3;
/// Further attempts admitted after each success.
const GROWTH: u32 = 2;
/// After this many successes since the last refusal a gate is open again.
const SUCCESSES_TO_OPEN: u32 = 100;
/// The minimum wait of an attempt that is not admitted.
const NO_ROOM_WAIT: Duration = Duration::from_millis(500);
/// Minimum time between the checks of two waiting attempts.
const CHECKS_APART: Duration = Duration::from_millis(2);
/// Maximum wait before the next check, however many attempts wait.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// If no admitted attempt has succeeded, another is admitted this long after the last.
const TRIAL_WAIT: Duration = Duration::from_secs(2);
/// The maximum share of retries in an agent's traffic.
const RETRY_SHARE: f64 = 0.25;
/// Retries admitted per second, regardless of other traffic.
const RETRIES_PER_SECOND_MIN: f64 = 50.0;
/// How many unused retries may accumulate.
const RETRIES_SAVED_MAX: f64 = 200.0;
/// Minimum wait of a retry that exceeds the share.
const RETRY_WAIT: Duration = Duration::from_secs(1);
/// Minimum time between the checks of two waiting retries.
const RETRY_CHECKS_APART: Duration = Duration::from_millis(5);

/// The gates of all agents, for one partition.
#[derive(Debug, Default)]
pub struct Gates {
    by_agent: BTreeMap<Arc<str>, Gate>,
}

/// The kind of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Traffic {
    /// The first attempt.
    First,
    /// An attempt after a failure.
    Retry,
}

#[derive(Debug)]
struct Gate {
    throttled: Option<Throttled>,
    /// Retries that may start now.
    retries: f64,
    refilled_at: Timestamp,
    /// Attempts that wait for room.
    waiters: Queue,
    /// Retries that wait for their share.
    retry_waiters: Queue,
}

/// Gives each waiting attempt an instant at which to check again.
#[derive(Debug, Default)]
struct Queue {
    /// The next instant that is not assigned.
    free: Timestamp,
}

/// An agent that has refused an attempt.
#[derive(Debug)]
struct Throttled {
    closed_until: Timestamp,
    room: u32,
    successes: u32,
    /// When the agent last refused an attempt, or the last attempt was admitted.
    asked_at: Timestamp,
}

impl Gates {
    /// Admits an attempt, or returns how long to wait before the next check.
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
                throttled: None,
                retries: RETRIES_SAVED_MAX,
                refilled_at: now,
                waiters: Queue::default(),
                retry_waiters: Queue::default(),
            }),
        };
        if let Some(throttled) = &mut gate.throttled {
            if now < throttled.closed_until {
                let pause = throttled.closed_until.since(now);
                return Err(gate.waiters.wait(pause, CHECKS_APART, now));
            }
            // Failures and time-outs free no capacity: without this, no attempt would ever be
            // admitted again.
            if throttled.room == 0 && now >= throttled.asked_at + TRIAL_WAIT {
                throttled.room = 1;
            }
            if throttled.room == 0 {
                return Err(gate.waiters.wait(NO_ROOM_WAIT, CHECKS_APART, now));
            }
        }
        if traffic == Traffic::Retry && !gate.take_retry(now) {
            let waiters = &mut gate.retry_waiters;
            return Err(waiters.wait(RETRY_WAIT, RETRY_CHECKS_APART, now));
        }
        if traffic == Traffic::First {
            gate.retries = (gate.retries + RETRY_SHARE).min(RETRIES_SAVED_MAX);
        }
        if let Some(throttled) = &mut gate.throttled {
            throttled.room -= 1;
            throttled.asked_at = now;
        }
        Ok(())
    }

    /// The rest of the pause that an agent has asked for. Waiting attempts may wait longer.
    #[must_use]
    pub fn pause(&self, agent: &str, now: Timestamp) -> Duration {
        let throttled = self
            .by_agent
            .get(agent)
            .and_then(|gate| gate.throttled.as_ref());
        throttled.map_or(Duration::ZERO, |throttled| {
            throttled.closed_until.since(now)
        })
    }

    /// The agent did not try, and asks for no attempts for `retry_after`.
    pub fn refused(&mut self, agent: &str, retry_after: Duration, now: Timestamp) {
        if let Some(gate) = self.by_agent.get_mut(agent) {
            let until = now + retry_after;
            let before = gate
                .throttled
                .as_ref()
                .map(|throttled| throttled.closed_until);
            gate.throttled = Some(Throttled {
                closed_until: before.map_or(until, |before| before.max(until)),
                room: TRIALS,
                successes: 0,
                asked_at: now,
            });
        }
    }

    /// An attempt has succeeded.
    pub fn succeeded(&mut self, agent: &str) {
        let Some(gate) = self.by_agent.get_mut(agent) else {
            return;
        };
        if let Some(throttled) = &mut gate.throttled {
            throttled.successes += 1;
            throttled.room = throttled.room.saturating_add(GROWTH);
            if throttled.successes >= SUCCESSES_TO_OPEN {
                gate.throttled = None;
            }
        }
    }

    /// How many agents are throttled.
    #[cfg(test)]
    fn throttled(&self) -> usize {
        let gates = self.by_agent.values();
        gates.filter(|gate| gate.throttled.is_some()).count()
    }
}

impl Queue {
    /// Assigns a wait of at least `least`, and `apart` from all other waiting attempts.
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
    fn a_throttled_agent_gets_a_few_probes_after_its_pause() {
        let mut gates = Gates::default();
        assert_eq!(admitted(&mut gates, NOW), 1_000);
        gates.refused("drone", Duration::from_secs(5), NOW);
        let wait = gates.admit(&agent(), Traffic::First, NOW + Duration::from_secs(1));
        assert_eq!(wait, Err(Duration::from_secs(4)));
        let later = NOW + Duration::from_secs(5);
        assert_eq!(admitted(&mut gates, later), TRIALS);
        assert_eq!(gates.throttled(), 1);
    }

    #[test]
    fn another_attempt_is_admitted_if_none_has_succeeded() {
        let mut gates = Gates::default();
        admitted(&mut gates, NOW);
        gates.refused("drone", Duration::ZERO, NOW);
        assert_eq!(admitted(&mut gates, NOW), TRIALS);
        assert_eq!(admitted(&mut gates, NOW + Duration::from_secs(1)), 0);
        assert_eq!(admitted(&mut gates, NOW + TRIAL_WAIT), 1);
        assert_eq!(admitted(&mut gates, NOW + 2 * TRIAL_WAIT), 1);
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
            assert!(rounds < 20, "the circuit never opens");
            for _ in 0..room {
                gates.succeeded("drone");
            }
        }
        assert!(
            (3..=6).contains(&rounds),
            "it grows, but not immediately: {rounds}"
        );
        assert_eq!(gates.throttled(), 0);
    }

    #[test]
    fn waiting_attempts_probe_one_at_a_time_and_none_starves() {
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
            "each has its own time up to the longest wait"
        );
        assert_eq!(gates.pause("drone", NOW), Duration::from_secs(5));
        let later = NOW + Duration::from_secs(60);
        assert_eq!(gates.pause("drone", later), Duration::ZERO);
        assert_eq!(admitted(&mut gates, later), TRIALS);
        let wait = gates.admit(&agent(), Traffic::First, later).unwrap_err();
        assert!(wait <= WAIT_MAX + NO_ROOM_WAIT, "{wait:?}");
    }

    #[test]
    fn retries_are_a_share_of_the_traffic_and_at_least_one() {
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
