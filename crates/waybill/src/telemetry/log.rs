//! The log: where its lines go, which are written, and how that is changed while the process runs.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::TelemetryError;
use super::repeats::{self, Repeats};
use crate::config::{LogFormat, TelemetryConfig};

/// Which log lines are written. Clones share it.
#[derive(Clone)]
pub struct Log {
    filter: Arc<Mutex<String>>,
    apply: Arc<dyn Fn(Targets) + Send + Sync>,
    repeats: Repeats,
}

impl Log {
    /// Sends log lines to standard error.
    pub(super) fn install(config: &TelemetryConfig) -> Result<Self, TelemetryError> {
        let LogFilter { text, targets } = config.log_filter.parse()?;
        let (filter, handle) = reload::Layer::new(applied(targets));
        let repeats = Repeats::default();
        let logger = tracing_subscriber::registry()
            .with(filter)
            .with(repeats.clone());
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
        match config.log_format {
            LogFormat::Text => logger.with(lines.with_ansi(is_coloured())).try_init(),
            LogFormat::Json => {
                let lines = lines.json().flatten_event(true).with_current_span(false);
                logger.with(lines).try_init()
            }
        }
        .map_err(TelemetryError::Logger)?;
        Ok(Self {
            filter: Arc::new(Mutex::new(text)),
            // The logger lasts as long as the process does.
            apply: Arc::new(move |filter| drop(handle.reload(filter))),
            repeats,
        })
    }

    /// A log that nobody writes to.
    pub(super) fn detached() -> Self {
        Self {
            filter: Arc::new(Mutex::new(TelemetryConfig::default().log_filter)),
            apply: Arc::new(drop),
            repeats: Repeats::default(),
        }
    }

    /// The filter that applies.
    #[must_use]
    pub fn filter(&self) -> String {
        self.lock().clone()
    }

    /// Lets another filter apply from now on, until the process ends.
    pub fn set_filter(&self, filter: LogFilter) {
        let mut stands = self.lock();
        (self.apply)(applied(filter.targets));
        *stands = filter.text;
    }

    /// Tells which lines were held back, once their time is over.
    pub(super) fn tell_held_back(&self) {
        self.repeats.tell();
    }

    /// Tells which lines are held back now, at the end of the process.
    pub(super) fn tell_all_held_back(&self) {
        self.repeats.tell_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, String> {
        self.filter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

/// A filter as it applies: what was held back is told whatever it says.
fn applied(filter: Targets) -> Targets {
    filter.with_target(repeats::OWN_TARGET, LevelFilter::INFO)
}

/// Whether lines have colours: on a terminal, unless somebody wants none (https://no-color.org).
fn is_coloured() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !no_color && io::IsTerminal::is_terminal(&io::stderr())
}

/// Why a log filter cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogFilterError {
    /// A part of it is a word that is no level.
    #[error(
        "{0:?} is neither a level (error, warn, info, debug, trace, off) nor a pair such as \
         waybill=debug"
    )]
    Word(String),
    /// A pair of it cannot be read.
    #[error(transparent)]
    Pair(#[from] ParseError),
}

/// Which lines are written: levels, or `target=level` pairs, separated by commas.
#[derive(Clone, Debug)]
pub struct LogFilter {
    text: String,
    targets: Targets,
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    /// `Targets` alone would take any word for a target, and so a misspelt level for one that logs everything.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = text
            .split(',')
            .find(|part| !part.contains('=') && !is_level(part));
        match word {
            Some(word) => Err(LogFilterError::Word(word.to_owned())),
            None => Ok(Self {
                text: text.to_owned(),
                targets: text.parse()?,
            }),
        }
    }
}

fn is_level(word: &str) -> bool {
    ["error", "warn", "info", "debug", "trace", "off"]
        .iter()
        .any(|level| word.eq_ignore_ascii_case(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_or_pairs_of_target_and_level() {
        for good in [
            "info",
            "warn,waybill=debug",
            "waybill::scheduler=trace",
            "off",
            "INFO,waybill=debug",
        ] {
            assert!(good.parse::<LogFilter>().is_ok(), "{good}");
        }
        for bad in [
            "waybill=loud",
            "info,,=,",
            "bananas",
            "info,bananas",
            "info, debug",
            "",
            "inf",
        ] {
            assert!(bad.parse::<LogFilter>().is_err(), "{bad}");
        }
    }
}
