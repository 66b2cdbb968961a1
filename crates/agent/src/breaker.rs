//! The circuit breaker before one service.
//!
//! [`recloser`] decides when it opens, half-opens and closes. This wrapper adds what an agent needs
//! beside that: when to come back while it is open, a bound on concurrent probes while it is
//! half-open (recloser lets every call through then), and its state as a metric. The state shown is
//! what callers last saw: it turns to open with the first call that is refused.

use std::future::{self, Future};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::Gauge;
use recloser::{AsyncRecloser, Recloser};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// When a breaker opens, and for how long.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct BreakerSettings {
    /// The share of failures among the last `calls` at which it opens.
    pub(crate) failure_rate: f32,
    /// How many calls the share is taken over; it stays closed until that many were made.
    pub(crate) calls: usize,
    /// How long it stays open.
    pub(crate) open_for: Duration,
    /// How many calls probe the service before it closes, and how many of them at once.
    pub(crate) half_open_calls: usize,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    /// The agent's name, for log lines.
    agent: String,
    recloser: AsyncRecloser,
    settings: BreakerSettings,
    view: Mutex<View>,
    gauge: Gauge,
}

/// What is known of recloser's state, which it does not tell.
#[derive(Clone, Copy, PartialEq, Debug)]
enum View {
    Closed,
    /// Seen refusing calls for the first time at `since`.
    Open {
        since: Instant,
    },
    HalfOpen {
        in_flight: usize,
        finished: usize,
    },
}

/// How a call ended, in the breaker's eyes. What the service refused for good is a success of the
/// service.
pub(crate) enum Judged<T> {
    Healthy(T),
    Failure(T),
    /// It had too little time to tell: it counts neither for the service nor against it. A probe, which has to tell,
    /// has failed.
    CutShort(T),
}

/// A call that was made.
pub(crate) struct Called<T> {
    pub(crate) value: T,
    /// It was one of the few that find out whether the service is back.
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
        let recloser = Recloser::custom()
            .error_rate(settings.failure_rate)
            .closed_len(settings.calls)
            .half_open_len(settings.half_open_calls)
            .open_wait(settings.open_for)
            .build();
        gauge.set(0.0);
        Self {
            agent: agent.to_owned(),
            recloser: AsyncRecloser::from(recloser),
            settings,
            view: Mutex::new(View::Closed),
            gauge,
        }
    }

    /// Makes the call, unless the breaker is open or enough calls probe the service already.
    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Judged<T>>,
    ) -> Result<Called<T>, Refused> {
        if matches!(*self.view(), View::HalfOpen { in_flight, .. }
            if in_flight >= self.settings.half_open_calls)
        {
            return Err(Refused {
                retry_after: self.settings.open_for / 10,
            });
        }
        // Recloser counts what it is told the end of. Of a call that says nothing it is told none.
        let (count_not, not_counted) = oneshot::channel();
        let guarded = async {
            let in_flight = self.admitted();
            let judged = call.await;
            let was_probe = in_flight.is_some();
            match judged {
                Judged::Healthy(value) => Ok(Called { value, was_probe }),
                Judged::CutShort(value) if !was_probe => {
                    _ = count_not.send(Called { value, was_probe });
                    future::pending().await
                }
                Judged::Failure(value) | Judged::CutShort(value) => {
                    Err(Called { value, was_probe })
                }
            }
        };
        let counted = tokio::select! {
            biased;
            counted = self.recloser.call(guarded) => counted,
            Ok(called) = not_counted => return Ok(called),
        };
        match counted {
            Ok(called) => {
                self.finished(View::Closed);
                Ok(called)
            }
            Err(recloser::Error::Inner(called)) => {
                let since = Instant::now();
                self.finished(View::Open { since });
                Ok(called)
            }
            Err(recloser::Error::Rejected) => Err(Refused {
                retry_after: self.refused(),
            }),
        }
    }

    /// A call was let through: it is a probe, if the breaker was open before.
    fn admitted(&self) -> Option<InFlight<'_>> {
        let mut view = self.view();
        match &mut *view {
            View::Closed => return None,
            View::Open { .. } => {
                *view = View::HalfOpen {
                    in_flight: 1,
                    finished: 0,
                };
                self.gauge.set(1.0);
            }
            View::HalfOpen { in_flight, .. } => *in_flight += 1,
        }
        Some(InFlight(self))
    }

    /// How long it stays open.
    pub(crate) fn open_for(&self) -> Duration {
        self.settings.open_for
    }

    /// A call's result was counted. Recloser decides at the result after its ring has filled: most
    /// often to become `then`, which the next calls put right where it is wrong.
    fn finished(&self, then: View) {
        let mut view = self.view();
        if let View::HalfOpen { finished, .. } = &mut *view {
            *finished += 1;
            if *finished > self.settings.half_open_calls {
                *view = then;
                if then == View::Closed {
                    tracing::info!(
                        agent = self.agent,
                        "the service answers again: its circuit breaker is closed"
                    );
                }
                self.gauge.set(match then {
                    View::Closed => 0.0,
                    View::HalfOpen { .. } => 1.0,
                    View::Open { .. } => 2.0,
                });
            }
        }
    }

    fn refused(&self) -> Duration {
        let now = Instant::now();
        let mut view = self.view();
        let since = match *view {
            View::Open { since } if now < since + self.settings.open_for => since,
            View::Open { .. } | View::Closed | View::HalfOpen { .. } => {
                if *view == View::Closed {
                    tracing::warn!(
                        agent = self.agent,
                        open_for = ?self.settings.open_for,
                        "the service has failed too often: its circuit breaker is open, and its steps are put off"
                    );
                }
                *view = View::Open { since: now };
                self.gauge.set(2.0);
                now
            }
        };
        (since + self.settings.open_for).saturating_duration_since(now)
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a probe until it ends, however it ends.
struct InFlight<'a>(&'a Breaker);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let View::HalfOpen { in_flight, .. } = &mut *self.0.view() {
            *in_flight = in_flight.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_is_cut_short_counts_neither_way() {
        let settings = BreakerSettings {
            failure_rate: 0.5,
            calls: 4,
            open_for: Duration::from_secs(3600),
            half_open_calls: 2,
        };
        let breaker = Breaker::new("agent", settings, Gauge::noop());
        for _ in 0..20 {
            let called = breaker.call(async { Judged::CutShort("cut short") }).await;
            assert_eq!(called.map(|called| called.value), Ok("cut short"));
        }
        // Each that tells is a failure, so it opens, whatever came between.
        let mut failures = 0;
        while breaker.call(async { Judged::Failure(()) }).await.is_ok() {
            failures += 1;
            assert!(failures < 20, "it never opens");
            for _ in 0..3 {
                _ = breaker.call(async { Judged::CutShort(()) }).await;
            }
        }
    }
}
