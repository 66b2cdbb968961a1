//! What the process says of itself: log lines on standard error, metrics for the admin listener,
//! and one stable line on standard output for every address that it listens on.
//!
//! Deliberately absent: a span per record. Work is measured by counters and histograms; log lines
//! tell what changed.

pub mod catalogue;
mod process;

use std::fmt;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{ParseError, Targets};

use crate::config::{LogFormat, TelemetryConfig};

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How often recorded values are folded into their histograms. Between two folds each value takes
/// memory, so this bounds it, also where nobody scrapes.
const FOLD_EVERY: Duration = Duration::from_secs(1);

/// Upper bounds for metrics whose name ends in `_seconds`: from a hop between two tasks to the
/// longest wait that is still measured, in steps of at most 2.5.
const SECONDS: [f64; 18] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.007, 0.012, 0.02, 0.035, 0.06, 0.1, 0.2,
    0.5, 1.0, 2.5, 10.0, 60.0,
];

/// Upper bounds for metrics whose name ends in `_bytes`.
const BYTES: [f64; 10] = [
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Upper bounds for all others, which count things: the size of a batch, the length of a queue.
const COUNTS: [f64; 13] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0,
];

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error("telemetry.logFilter cannot be read")]
    Filter(#[from] LogFilterError),
    /// Something else in this process logs already.
    #[error("log lines already go elsewhere")]
    Logger(#[source] tracing_subscriber::util::TryInitError),
    /// Something else in this process measures already.
    #[error("the metrics recorder could not be installed")]
    Metrics(#[from] BuildError),
}

/// Sends log lines to standard error and installs the recorder of all metrics. Once per process.
///
/// # Errors
///
/// If the filter cannot be read, or a logger or a recorder is installed already.
pub fn install(config: &TelemetryConfig) -> Result<Metrics, TelemetryError> {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;

    let logger = tracing_subscriber::registry().with(log_filter(&config.log_filter)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    match config.log_format {
        LogFormat::Text => {
            let is_terminal = io::IsTerminal::is_terminal(&io::stderr());
            logger.with(lines.with_ansi(is_terminal)).try_init()
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(false);
            logger.with(lines).try_init()
        }
    }
    .map_err(TelemetryError::Logger)?;
    let handle = builder()?.install_recorder()?;
    catalogue::describe();
    catalogue::BUILD_INFO.of([VERSION]).set(1.0);
    Ok(Metrics { handle })
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

/// Reads a log filter: levels, or `target=level` pairs, separated by commas.
///
/// # Errors
///
/// If a part of it is neither. `Targets` alone would take any word for a target, and so a misspelt
/// level for one that logs everything.
pub fn log_filter(text: &str) -> Result<Targets, LogFilterError> {
    let word = text
        .split(',')
        .find(|part| !part.contains('=') && !is_level(part));
    match word {
        Some(word) => Err(LogFilterError::Word(word.to_owned())),
        None => Ok(text.parse()?),
    }
}

fn is_level(word: &str) -> bool {
    ["error", "warn", "info", "debug", "trace", "off"]
        .iter()
        .any(|level| word.eq_ignore_ascii_case(level))
}

/// The metrics of this process. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    handle: PrometheusHandle,
}

impl Metrics {
    /// Metrics that nothing records to, for a test of whatever shows them.
    #[must_use]
    pub fn detached() -> Self {
        Self {
            handle: PrometheusBuilder::new().build_recorder().handle(),
        }
    }

    /// All metrics in Prometheus' text format, those of the operating system's process included.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = self.handle.render();
        process::render(&mut text);
        text
    }

    /// Folds recorded values into their histograms until `stop` is cancelled.
    ///
    /// # Errors
    ///
    /// Never: it returns a result as every task of the program does.
    pub async fn fold(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut turns = tokio::time::interval(FOLD_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = turns.tick() => self.handle.run_upkeep(),
            }
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new()
        .set_buckets(&COUNTS)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_bytes".into()), &BYTES)
}

/// Tells people and programs where a listener was bound: a log line, and on standard output
/// `listening <name> <address>`, which is stable and the only thing that says which port 0 became.
///
/// The names are `http`, `admin`, `broker` and `services`.
pub fn announce(name: &'static str, address: SocketAddr) {
    tracing::info!(listener = name, %address, "listening");
    // Nobody may be reading; that is no reason to stop.
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "listening {name} {address}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_have_buckets_that_fit_their_unit() {
        let recorder = builder().unwrap().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            metrics::histogram!("waybill_commit_seconds").record(0.003);
            metrics::histogram!("waybill_commit_bytes").record(2_000.0);
            metrics::histogram!("waybill_commit_rows").record(7.0);
        });
        let text = Metrics { handle }.render();
        for line in [
            "waybill_commit_seconds_bucket{le=\"0.002\"} 0",
            "waybill_commit_seconds_bucket{le=\"0.004\"} 1",
            "waybill_commit_bytes_bucket{le=\"1024\"} 0",
            "waybill_commit_bytes_bucket{le=\"4096\"} 1",
            "waybill_commit_rows_bucket{le=\"5\"} 0",
            "waybill_commit_rows_bucket{le=\"10\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn filters_are_levels_or_pairs_of_target_and_level() {
        for good in [
            "info",
            "warn,waybill=debug",
            "waybill::scheduler=trace",
            "off",
            "INFO,waybill=debug",
        ] {
            assert!(log_filter(good).is_ok(), "{good}");
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
            assert!(log_filter(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn folding_ends_when_it_is_told_to() {
        let stop = CancellationToken::new();
        stop.cancel();
        Metrics::detached().fold(stop).await.unwrap();
    }
}
