//! Readiness and liveness, which roles report and the admin listener serves; and whether disk space
//! is low.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// All conditions that must hold before the process is ready for traffic. Clones share one list.
/// Each change of readiness is logged.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    conditions: Arc<Mutex<Vec<ConditionState>>>,
    warnings: Arc<Mutex<Vec<Warnings>>>,
    /// Whether the process was ready when a condition last changed.
    was_ready: Arc<Mutex<bool>>,
}

/// A source of warnings.
struct Warnings(Box<dyn Fn() -> Vec<String> + Send + Sync>);

impl fmt::Debug for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warnings").finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct ConditionState {
    what: String,
    holds: Arc<AtomicBool>,
    /// Why it cannot become true without intervention.
    note: Arc<Mutex<Option<String>>>,
}

impl Readiness {
    /// Adds a condition that does not hold yet. Name what the process waits for, as in `lease of
    /// partition 2`. A role adds all its conditions before it starts, so that the process is never
    /// reported ready too early.
    #[must_use = "a condition that nobody sets never holds"]
    pub fn expect(&self, what: impl Into<String>) -> Condition {
        let stated = ConditionState {
            what: what.into(),
            holds: Arc::default(),
            note: Arc::default(),
        };
        self.conditions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(stated.clone());
        self.log_change();
        Condition {
            stated,
            readiness: self.clone(),
        }
    }

    /// Adds a source of warnings: problems that do not stop traffic. It is called on
    /// each readiness check.
    pub fn add_warnings(&self, warnings: impl Fn() -> Vec<String> + Send + Sync + 'static) {
        self.warnings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Warnings(Box::new(warnings)));
    }

    /// The current warnings: problems that do not stop traffic.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.iter().flat_map(|of| of.0()).collect()
    }

    /// The conditions that do not hold, in the order in which they were added.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let conditions = self
            .conditions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        conditions
            .iter()
            .filter(|stated| !stated.holds.load(Ordering::Relaxed))
            .map(|stated| {
                let note = stated.note.lock().unwrap_or_else(PoisonError::into_inner);
                match &*note {
                    Some(note) => format!("{} ({note})", stated.what),
                    None => stated.what.clone(),
                }
            })
            .collect()
    }

    /// Logs a change of readiness. Returns whether there was one.
    fn log_change(&self) -> bool {
        let mut was_ready = self
            .was_ready
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let missing = self.missing();
        let is_ready = missing.is_empty();
        if std::mem::replace(&mut *was_ready, is_ready) == is_ready {
            return false;
        }
        match is_ready {
            true => tracing::info!("ready"),
            false => tracing::info!(waits_for = missing.join("; "), "not ready"),
        }
        true
    }
}

/// One condition of [`Readiness`]. It keeps its last value when it is dropped.
#[derive(Clone, Debug)]
pub struct Condition {
    stated: ConditionState,
    readiness: Readiness,
}

impl Condition {
    /// Sets whether the condition holds. It may stop holding, for example when a lease is lost.
    pub fn set(&self, holds: bool) {
        if self.stated.holds.swap(holds, Ordering::Relaxed) != holds {
            self.readiness.log_change();
        }
    }

    /// Sets why it does not become true without intervention; `None` clears the reason.
    pub fn note(&self, why: Option<&str>) {
        let mut note = self
            .stated
            .note
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if note.as_deref() != why {
            *note = why.map(str::to_owned);
        }
    }

    /// Removes the condition: readiness does not depend on it any more.
    pub fn withdraw(&self) {
        let mut conditions = self
            .readiness
            .conditions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        conditions.retain(|stated| !Arc::ptr_eq(&stated.holds, &self.stated.holds));
        drop(conditions);
        self.readiness.log_change();
    }
}

/// The loops that must keep sending heartbeats. Clones share one list.
#[derive(Clone, Debug)]
pub struct Liveness {
    started: Instant,
    loops: Arc<Mutex<Vec<Watched>>>,
}

#[derive(Debug)]
struct Watched {
    name: String,
    silence_max: Duration,
    last_ms: Arc<AtomicU64>,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            loops: Arc::default(),
        }
    }
}

impl Liveness {
    /// Watches a loop from now on. It counts as dead after a silence longer than `silence_max`; a
    /// loop ends the watch by dropping its heartbeat.
    #[must_use = "a loop whose heartbeat was dropped is not watched"]
    pub fn register(&self, name: impl Into<String>, silence_max: Duration) -> Heartbeat {
        let last_ms = Arc::new(AtomicU64::new(millis_since(self.started)));
        self.loops
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Watched {
                name: name.into(),
                silence_max,
                last_ms: Arc::clone(&last_ms),
            });
        Heartbeat {
            started: self.started,
            last_ms,
        }
    }

    /// The loops that were silent for too long, and for how long.
    #[must_use]
    pub fn silent(&self) -> Vec<String> {
        self.silent_after(millis_since(self.started))
    }

    fn silent_after(&self, now_ms: u64) -> Vec<String> {
        let mut loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        loops.retain(|watched| Arc::strong_count(&watched.last_ms) > 1);
        loops
            .iter()
            .filter_map(|watched| {
                let silence = now_ms.saturating_sub(watched.last_ms.load(Ordering::Relaxed));
                let silence = Duration::from_millis(silence);
                (silence > watched.silence_max)
                    .then(|| format!("{} for {} s", watched.name, silence.as_secs()))
            })
            .collect()
    }
}

/// The heartbeat of one loop.
#[derive(Debug)]
pub struct Heartbeat {
    started: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Heartbeat {
    /// Records a heartbeat. Cheap: once per iteration of a loop is fine.
    pub fn beat(&self) {
        self.last_ms
            .store(millis_since(self.started), Ordering::Relaxed);
    }
}

fn millis_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Whether free disk space is low. Clones share the state; without a watcher it is never low.
#[derive(Clone, Debug, Default)]
pub struct LowDisk(Arc<AtomicBool>);

impl LowDisk {
    /// Whether free disk space is low, so that new requests are refused.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets whether to refuse new requests.
    pub fn set(&self, is_low: bool) {
        self.0.store(is_low, Ordering::Relaxed);
    }

    /// The flag, for the embedded broker.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmet_condition_is_reported_again() {
        let readiness = Readiness::default();
        let lease = readiness.expect("lease of partition 0");
        lease.set(true);
        assert!(readiness.missing().is_empty());
        lease.set(false);
        assert_eq!(readiness.missing(), ["lease of partition 0"]);
    }

    #[test]
    fn each_change_of_readiness_is_logged_once() {
        let readiness = Readiness::default();
        let was_ready = || *readiness.was_ready.lock().unwrap();
        let first = readiness.expect("lease of partition 0");
        assert!(!was_ready());
        first.set(true);
        assert!(was_ready());
        let second = readiness.expect("lease of partition 1");
        assert!(!was_ready());
        second.withdraw();
        assert!(was_ready());
        first.set(false);
        assert!(!was_ready());
        assert!(
            !readiness.log_change(),
            "an unchanged state is logged again"
        );
    }

    #[test]
    fn a_silent_loop_is_reported_and_an_ended_one_is_not() {
        let liveness = Liveness::default();
        let heartbeat = liveness.register("inbox", Duration::from_secs(1));
        assert!(liveness.silent_after(1_000).is_empty());
        heartbeat.last_ms.store(2_000, Ordering::Relaxed);
        assert!(liveness.silent_after(3_000).is_empty());
        assert_eq!(liveness.silent_after(5_500), ["inbox for 3 s"]);
        heartbeat.beat();
        assert!(
            liveness
                .silent_after(millis_since(liveness.started))
                .is_empty()
        );

        drop(heartbeat);
        assert!(liveness.silent_after(60_000).is_empty());
    }
}
