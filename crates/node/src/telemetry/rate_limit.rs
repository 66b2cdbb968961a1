//! The limit on repeated log lines.
//!
//! While a dependency is unavailable, many parts log the failure repeatedly, and a topic full of
//! poison records could fill a disk with lines. So within a minute the same line is written three
//! times at most, and one call site writes a hundred lines. The rest are counted, and
//! their number is logged when the minute is over. Only warnings and errors are limited: other
//! lines report changes, or were requested.
//!
//! Not governor: what is suppressed is counted line by line, and the counts are logged.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use waybill_telemetry::chain;

/// How long lines are counted together.
const WINDOW: Duration = Duration::from_secs(60);
/// How many times the same line is written within it.
const EQUAL_LINES_MAX: u64 = 3;
/// How many lines one call site writes within it.
const CALLSITE_LINES_MAX: u64 = 100;
/// How much of a suppressed line its count repeats.
const SHOWN_CHARS_MAX: usize = 300;
/// How many counts of suppressed lines wait to be logged.
const SUPPRESSED_MAX: usize = 1_000;
/// The target of the lines that count suppressed ones, which are never suppressed.
pub(super) const OWN_TARGET: &str = module_path!();

/// Suppresses repeated lines. Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct LogRateLimiter {
    callsites: Arc<Mutex<HashMap<Identifier, Callsite>>>,
    /// Counts of finished minutes that are not logged yet.
    suppressed: Arc<Mutex<Vec<Suppressed>>>,
    hash: RandomState,
}

/// A call site that writes lines.
struct Callsite {
    began: Instant,
    metadata: &'static Metadata<'static>,
    lines: u64,
    /// Lines by their hash: [`CALLSITE_LINES_MAX`] at most.
    same: HashMap<u64, Same>,
    /// The number of further lines, which are not distinguished.
    further: u64,
}

#[derive(Default)]
struct Same {
    times: u64,
    /// The text of the line, once one was suppressed.
    text: String,
}

/// Lines that were suppressed.
#[derive(PartialEq, Eq, Debug)]
struct Suppressed {
    level: Level,
    target: &'static str,
    /// The line; `None` if there were different ones.
    line: Option<String>,
    times: u64,
}

impl Callsite {
    fn new(metadata: &'static Metadata<'static>, now: Instant) -> Self {
        Self {
            began: now,
            metadata,
            lines: 0,
            same: HashMap::new(),
            further: 0,
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) >= WINDOW
    }

    fn passes(&mut self, hash: u64, text: &str) -> bool {
        if let Some(same) = self.same.get_mut(&hash) {
            same.times += 1;
            if same.times > EQUAL_LINES_MAX {
                if same.text.is_empty() {
                    same.text = text.chars().take(SHOWN_CHARS_MAX).collect();
                }
                return false;
            }
        }
        if self.lines == CALLSITE_LINES_MAX {
            self.further += 1;
            return false;
        }
        self.lines += 1;
        self.same.entry(hash).or_insert_with(|| Same {
            times: 1,
            text: String::new(),
        });
        true
    }

    fn into_suppressed(self, counts: &mut Vec<Suppressed>) {
        let (level, target) = (*self.metadata.level(), self.metadata.target());
        let same = self.same.into_values();
        let repeated = same.filter(|same| same.times > EQUAL_LINES_MAX);
        counts.extend(repeated.map(|same| Suppressed {
            level,
            target,
            line: Some(same.text),
            times: same.times - EQUAL_LINES_MAX,
        }));
        if self.further > 0 {
            counts.push(Suppressed {
                level,
                target,
                line: None,
                times: self.further,
            });
        }
    }
}

impl LogRateLimiter {
    fn passes(&self, event: &Event<'_>, now: Instant) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN || metadata.target() == OWN_TARGET {
            return true;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let hash = self.hash.hash_one(&text.0);
        let mut callsites = self
            .callsites
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let callsite = callsites
            .entry(metadata.callsite())
            .or_insert_with(|| Callsite::new(metadata, now));
        if callsite.is_over(now) {
            // The minute is over, but its counts are not reported yet. Only stored here: reporting
            // logs.
            let ended = std::mem::replace(callsite, Callsite::new(metadata, now));
            let mut suppressed = self
                .suppressed
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            ended.into_suppressed(&mut suppressed);
            suppressed.truncate(SUPPRESSED_MAX);
        }
        callsite.passes(hash, &text.0)
    }

    /// Ends the minutes that are over, and returns the lines that were suppressed in them.
    fn end_windows(&self, now: Instant) -> Vec<Suppressed> {
        self.end(|callsite| callsite.is_over(now))
    }

    fn end(&self, is_over: impl Fn(&Callsite) -> bool) -> Vec<Suppressed> {
        let mut suppressed = self
            .suppressed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut counts = std::mem::take(&mut *suppressed);
        drop(suppressed);
        let mut callsites = self
            .callsites
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (_, callsite) in callsites.extract_if(|_, callsite| is_over(callsite)) {
            callsite.into_suppressed(&mut counts);
        }
        counts
    }

    /// Logs the counts of suppressed lines whose minute is over. Call it about once a second.
    pub(super) fn report(&self) {
        for counts in self.end_windows(Instant::now()) {
            counts.write();
        }
    }

    /// Logs all counts of suppressed lines, even within their minute, because the process ends.
    pub(super) fn report_all(&self) {
        for counts in self.end(|_| true) {
            counts.write();
        }
    }
}

impl<S: Subscriber> Layer<S> for LogRateLimiter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.passes(event, Instant::now())
    }
}

impl Suppressed {
    fn write(self) {
        let Self {
            level,
            target: of,
            line,
            times,
        } = self;
        macro_rules! counts {
            ($level:ident) => {
                match line {
                    Some(line) => {
                        tracing::$level!(of, line, times, "suppressed repeats of a line")
                    }
                    None => tracing::$level!(of, times, "suppressed further lines of this source"),
                }
            };
        }
        match level {
            Level::ERROR => counts!(error),
            _ => counts!(warn),
        }
    }
}

/// The whole text of an event, on one line.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    /// Adds the causes, which the error's own text omits.
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.record_debug(field, &chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let gap = if self.0.is_empty() { "" } else { " " };
        // Writing to a `String` cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{gap}{value:?}"),
            name => write!(self.0, "{gap}{name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;
    use waybill_test_support::log::Lines;

    use super::*;

    /// The lines that remain of those that `log` writes.
    fn lines(limiter: &LogRateLimiter, log: impl FnOnce()) -> Vec<String> {
        let lines = Lines::default();
        let layer = tracing_subscriber::fmt::layer()
            .without_time()
            .with_ansi(false)
            .with_target(false)
            .with_writer(lines.clone());
        let logger = tracing_subscriber::registry()
            .with(limiter.clone())
            .with(layer);
        tracing::subscriber::with_default(logger, log);
        lines
            .text()
            .lines()
            .map(|line| line.trim().to_owned())
            .collect()
    }

    fn away(broker: u32) {
        tracing::warn!(broker, "is away");
    }

    #[test]
    fn the_same_line_is_written_three_times_and_then_summarized_once() {
        let limiter = LogRateLimiter::default();
        let written = lines(&limiter, || (0..10).for_each(|_| away(1)));
        assert_eq!(written, ["WARN is away broker=1"; 3]);
        assert_eq!(limiter.end_windows(Instant::now()), []);
        let counts = limiter.end_windows(Instant::now() + WINDOW);
        let expected = Suppressed {
            level: Level::WARN,
            target: module_path!(),
            line: Some("is away broker=1".to_owned()),
            times: 7,
        };
        assert_eq!(counts, [expected]);
        let counts = lines(&limiter, || counts.into_iter().for_each(Suppressed::write));
        let expected = "WARN suppressed repeats of a line of=\"waybill_node::telemetry::rate_limit::tests\" \
                        line=\"is away broker=1\" times=7";
        assert_eq!(counts, [expected]);
        // After the minute the line may be written again.
        assert_eq!(lines(&limiter, || away(1)).len(), 1);
    }

    #[test]
    fn a_window_without_a_timer_ends_with_the_next_line() {
        let limiter = LogRateLimiter::default();
        lines(&limiter, || (0..5).for_each(|_| away(1)));
        for callsite in limiter.callsites.lock().unwrap().values_mut() {
            callsite.began -= WINDOW;
        }
        assert_eq!(lines(&limiter, || away(1)).len(), 1);
        let counts = limiter.end_windows(Instant::now());
        assert_eq!(
            counts.iter().map(|counts| counts.times).collect::<Vec<_>>(),
            [2]
        );
    }

    #[test]
    fn a_hundred_different_lines_are_written() {
        let limiter = LogRateLimiter::default();
        let written = lines(&limiter, || (0..250).for_each(away));
        assert_eq!(written.len(), 100);
        assert_eq!(written[99], "WARN is away broker=99");
        let counts = limiter.end_windows(Instant::now() + WINDOW);
        assert_eq!(counts.len(), 1);
        assert_eq!((counts[0].line.as_deref(), counts[0].times), (None, 150));
    }

    #[test]
    fn errors_with_different_causes_are_different_lines() {
        let limiter = LogRateLimiter::default();
        let fail = |cause: &str| {
            let error = anyhow::anyhow!("{cause}").context("it failed");
            let error: &(dyn Error + 'static) = error.as_ref();
            tracing::error!(error, "stopping");
        };
        let written = lines(&limiter, || {
            (0..8).for_each(|number| fail(if number % 2 == 0 { "one" } else { "other" }));
        });
        assert_eq!(written.len(), 6);
        let mut counts = limiter.end(|_| true);
        counts.sort_by(|one, other| one.line.cmp(&other.line));
        let shown: Vec<_> = counts
            .iter()
            .map(|counts| (counts.level, counts.line.as_deref(), counts.times))
            .collect();
        let expected =
            ["one", "other"].map(|cause| format!("stopping error=\"it failed: {cause}\""));
        assert_eq!(
            shown,
            [
                (Level::ERROR, Some(expected[0].as_str()), 1),
                (Level::ERROR, Some(expected[1].as_str()), 1),
            ]
        );
    }

    #[test]
    fn debug_and_info_lines_are_never_suppressed() {
        let limiter = LogRateLimiter::default();
        let written = lines(&limiter, || {
            (0..10).for_each(|_| tracing::debug!("a detail"));
            (0..200).for_each(|partition| tracing::info!(partition, "is owned"));
        });
        assert_eq!(written.len(), 210);
    }
}
