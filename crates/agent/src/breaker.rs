//! The circuit breaker of one service.
//!
//! Closed, it keeps the results of the last calls, and opens on a failure that brings the share of
//! failures to the limit. A success never opens it: after a repair the window may still hold many
//! failures. After `open_for`, the next calls are probes, a few at a time, and only their results
//! close the breaker or open it again.
//!
//! What must hold: a result counts only in the state in which its call began. A call that began
//! before the breaker opened does not show whether the service has recovered.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::Gauge;
use tokio::time::Instant;

/// When a breaker opens, and for how long.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct BreakerSettings {
    /// The share of failures among the last `calls` at which it opens.
    pub(crate) failure_rate: f32,
    /// The number of calls that the share is computed over; the breaker stays closed until that
    /// many were made.
    pub(crate) calls: usize,
    /// How long it stays open.
    pub(crate) open_for: Duration,
    /// The number of probes before it closes, and how many of them may be in flight.
    pub(crate) half_open_calls: usize,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    /// The agent's name, for log lines.
    agent: String,
    settings: BreakerSettings,
    current: Mutex<Current>,
    gauge: Gauge,
}

#[derive(Debug)]
struct Current {
    state: State,
    /// Counts changes of the state, so that a call can tell whether its state is over.
    changes: u64,
}

#[derive(Debug)]
enum State {
    Closed { results: Results },
    Open { until: Instant },
    HalfOpen { in_flight: usize, results: Results },
}

/// How a call counts for the breaker. A request that the service refused for good counts as a
/// success of the service.
pub(crate) enum Judged<T> {
    Healthy(T),
    Failure(T),
    /// The call had too little time. It counts neither as a success nor as a failure, except for a
    /// probe, which has then failed.
    CutShort(T),
}

/// A call that was made.
pub(crate) struct Called<T> {
    pub(crate) value: T,
    /// Whether it was a probe.
    pub(crate) was_probe: bool,
}

/// The breaker refused the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// When it may let calls through again.
    pub(crate) retry_after: Duration,
}

impl Breaker {
    pub(crate) fn new(agent: &str, settings: BreakerSettings, gauge: Gauge) -> Self {
        gauge.set(0.0);
        let results = Results::of_last(settings.calls);
        let current = Current {
            state: State::Closed { results },
            changes: 0,
        };
        Self {
            agent: agent.to_owned(),
            settings,
            current: Mutex::new(current),
            gauge,
        }
    }

    /// Makes the call, unless the breaker is open or enough probes are in flight.
    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Judged<T>>,
    ) -> Result<Called<T>, Refused> {
        let admitted = self.admit()?;
        let was_probe = admitted.is_probe;
        let (value, failed) = match call.await {
            Judged::Healthy(value) => (value, Some(false)),
            Judged::CutShort(value) if !was_probe => (value, None),
            Judged::Failure(value) | Judged::CutShort(value) => (value, Some(true)),
        };
        if let Some(failed) = failed {
            self.record(&admitted, failed);
        }
        Ok(Called { value, was_probe })
    }

    /// How long it stays open.
    pub(crate) fn open_for(&self) -> Duration {
        self.settings.open_for
    }

    fn admit(&self) -> Result<Admitted<'_>, Refused> {
        let mut current = self.current();
        let is_probe = match &mut current.state {
            State::Closed { .. } => false,
            State::Open { until } => {
                let retry_after = until.saturating_duration_since(Instant::now());
                if !retry_after.is_zero() {
                    return Err(Refused { retry_after });
                }
                let results = Results::of_last(self.settings.half_open_calls);
                self.change(
                    &mut current,
                    State::HalfOpen {
                        in_flight: 1,
                        results,
                    },
                );
                true
            }
            State::HalfOpen { in_flight, .. } => {
                if *in_flight >= self.settings.half_open_calls {
                    return Err(Refused {
                        retry_after: self.settings.open_for / 10,
                    });
                }
                *in_flight += 1;
                true
            }
        };
        Ok(Admitted {
            breaker: self,
            is_probe,
            changes: current.changes,
        })
    }

    /// Counts a result, and opens or closes the breaker if the result decides that.
    fn record(&self, admitted: &Admitted<'_>, failed: bool) {
        let mut current = self.current();
        if current.changes != admitted.changes {
            return;
        }
        let rate_max = self.settings.failure_rate;
        match &mut current.state {
            State::Closed { results } => {
                let rate = results.record(failed);
                if failed && rate.is_some_and(|rate| rate >= rate_max) {
                    tracing::warn!(
                        agent = self.agent,
                        open_for = ?self.settings.open_for,
                        "circuit breaker opened: the service failed too often; its steps are \
                         postponed"
                    );
                    self.open(&mut current);
                }
            }
            State::HalfOpen { results, .. } => match results.record(failed) {
                Some(rate) if failed && rate >= rate_max => self.open(&mut current),
                Some(rate) if !failed && rate <= rate_max => {
                    tracing::info!(
                        agent = self.agent,
                        "circuit breaker closed: the service answers again"
                    );
                    let results = Results::of_last(self.settings.calls);
                    self.change(&mut current, State::Closed { results });
                }
                Some(_) | None => {}
            },
            // No call begins while it is open.
            State::Open { .. } => {}
        }
    }

    fn open(&self, current: &mut Current) {
        let until = Instant::now() + self.settings.open_for;
        self.change(current, State::Open { until });
    }

    fn change(&self, current: &mut Current, state: State) {
        self.gauge.set(match state {
            State::Closed { .. } => 0.0,
            State::HalfOpen { .. } => 1.0,
            State::Open { .. } => 2.0,
        });
        current.state = state;
        current.changes += 1;
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that was let through. On drop, a probe is no longer in flight, however it ended.
struct Admitted<'a> {
    breaker: &'a Breaker,
    is_probe: bool,
    /// The changes of the state when it was let through.
    changes: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut current = self.breaker.current();
        if current.changes == self.changes
            && let State::HalfOpen { in_flight, .. } = &mut current.state
        {
            *in_flight = in_flight.saturating_sub(1);
        }
    }
}

/// Which of the last calls failed.
#[derive(Debug)]
struct Results {
    len: usize,
    failed: VecDeque<bool>,
    failures: usize,
}

impl Results {
    fn of_last(len: usize) -> Self {
        Self {
            len,
            failed: VecDeque::new(),
            failures: 0,
        }
    }

    /// Adds a result. Returns the share of failures once the window is full.
    fn record(&mut self, failed: bool) -> Option<f32> {
        if self.failed.len() >= self.len && self.failed.pop_front() == Some(true) {
            self.failures -= 1;
        }
        self.failed.push_back(failed);
        self.failures += usize::from(failed);
        (self.failed.len() >= self.len).then(|| self.failures as f32 / self.len as f32)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    const OPEN_FOR: Duration = Duration::from_millis(200);

    fn breaker(calls: usize, open_for: Duration, half_open_calls: usize) -> Breaker {
        let settings = BreakerSettings {
            failure_rate: 0.5,
            calls,
            open_for,
            half_open_calls,
        };
        Breaker::new("agent", settings, Gauge::noop())
    }

    /// Makes a call, and returns whether the breaker let it through.
    async fn is_admitted(breaker: &Breaker, fails: bool) -> bool {
        let judged = match fails {
            true => Judged::Failure(()),
            false => Judged::Healthy(()),
        };
        breaker.call(async { judged }).await.is_ok()
    }

    #[tokio::test]
    async fn only_a_failure_opens_it() {
        const CALLS: usize = 50;
        let breaker = breaker(CALLS, Duration::from_secs(3600), 5);
        for _ in 0..40 {
            assert!(is_admitted(&breaker, true).await);
        }
        // The service is repaired, while most of the last calls are failures.
        for success in 0..2 * CALLS {
            assert!(is_admitted(&breaker, false).await, "success {success}");
        }
        let mut failures = 0;
        while is_admitted(&breaker, true).await {
            failures += 1;
            assert!(failures <= CALLS, "the circuit never opens");
        }
        assert_eq!(failures, CALLS / 2);
    }

    #[tokio::test]
    async fn it_closes_after_as_many_successful_probes_as_it_is_set_to() {
        let breaker = breaker(1, OPEN_FOR, 3);
        assert!(is_admitted(&breaker, true).await);
        assert!(!is_admitted(&breaker, false).await, "it is open");
        tokio::time::sleep(OPEN_FOR).await;
        for probe in 0..4 {
            let called = breaker.call(async { Judged::Healthy(()) }).await;
            let was_probe = called.map(|called| called.was_probe);
            assert_eq!(was_probe, Ok(probe < 3), "call {probe}");
        }
    }

    #[tokio::test]
    async fn failed_probes_open_it_again_and_no_more_calls_probe_than_it_is_set_to() {
        let breaker = breaker(1, OPEN_FOR, 2);
        assert!(is_admitted(&breaker, true).await);
        tokio::time::sleep(OPEN_FOR).await;
        let (end, ended) = oneshot::channel();
        let slow = breaker.call(async {
            _ = ended.await;
            Judged::Failure(())
        });
        let meanwhile = async {
            let beside = breaker.call(async {
                assert!(!is_admitted(&breaker, false).await, "two calls probe");
                Judged::Failure(())
            });
            assert!(beside.await.is_ok_and(|beside| beside.was_probe));
            _ = end.send(());
        };
        let (slow, ()) = tokio::join!(slow, meanwhile);
        assert!(slow.is_ok_and(|slow| slow.was_probe));
        assert!(!is_admitted(&breaker, false).await, "it is open again");
    }

    #[tokio::test]
    async fn a_call_that_began_before_it_opened_does_not_count_as_a_probe() {
        let breaker = breaker(1, OPEN_FOR, 2);
        let (end, ended) = oneshot::channel();
        let slow = breaker.call(async {
            _ = ended.await;
            Judged::Failure(())
        });
        let meanwhile = async {
            assert!(is_admitted(&breaker, true).await);
            tokio::time::sleep(OPEN_FOR).await;
            assert!(is_admitted(&breaker, false).await, "a probe");
            _ = end.send(());
        };
        let (slow, ()) = tokio::join!(slow, meanwhile);
        assert!(slow.is_ok_and(|slow| !slow.was_probe));
        assert!(is_admitted(&breaker, false).await, "the last probe");
        let called = breaker.call(async { Judged::Healthy(()) }).await;
        assert!(called.is_ok_and(|called| !called.was_probe), "it is closed");
    }

    #[tokio::test]
    async fn a_cancelled_call_is_neither_success_nor_failure() {
        let breaker = breaker(4, Duration::from_secs(3600), 2);
        for _ in 0..20 {
            let called = breaker.call(async { Judged::CutShort("cut short") }).await;
            assert_eq!(called.map(|called| called.value), Ok("cut short"));
        }
        // Each counted result is a failure, so the breaker opens in spite of the uncounted ones
        // between.
        let mut failures = 0;
        while breaker.call(async { Judged::Failure(()) }).await.is_ok() {
            failures += 1;
            assert!(failures < 20, "the circuit never opens");
            for _ in 0..3 {
                _ = breaker.call(async { Judged::CutShort(()) }).await;
            }
        }
    }
}
