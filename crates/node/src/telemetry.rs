//! The output of the process: log lines on standard error, metrics for the admin listener, spans
//! for an optional collector, and one stable line on standard output for every address that it
//! listens on.
//!
//! Log lines report changes. The work on single records appears only in spans, which are off by
//! default.

mod config;
mod lines;
mod log;
mod panics;
mod rate_limit;
pub mod traces;

use std::fmt;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use metrics::Gauge;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use waybill_telemetry::{Declared, Metric, VERSION};

pub use self::config::{LogFormat, TelemetryConfig, TracesConfig};
pub use self::log::Log;
use crate::log_filter::LogFilterError;
pub use waybill_telemetry::process::METRICS as PROCESS_METRICS;

const BUILD_INFO: Metric<Gauge, 1> = Metric::new(
    "waybill_build_info",
    "The version of the running program; always 1",
    ["version"],
);

/// How often recorded values are folded into their histograms. Each value takes memory until then,
/// so this bounds memory, even if nothing scrapes the metrics.
const KEEP_UP_EVERY: Duration = Duration::from_secs(1);

/// Upper bounds for metrics whose name ends in `_seconds`: from a switch between two tasks to the
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

/// Upper bounds for all other metrics, which are counts: the size of a batch, the length of a
/// queue.
const COUNTS: [f64; 13] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0,
];

/// Why telemetry could not start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is invalid.
    #[error("telemetry.logFilter is invalid")]
    Filter(#[from] LogFilterError),
    /// This process already has a logger.
    #[error("this process already has another log output")]
    Logger(#[source] tracing_subscriber::util::TryInitError),
    /// This process already has a metrics recorder.
    #[error("cannot install the metrics recorder")]
    Metrics(#[from] BuildError),
}

/// The metrics of the program itself and of its spans.
#[must_use]
pub fn metrics() -> Vec<&'static dyn Declared> {
    let build_info: &'static dyn Declared = &BUILD_INFO;
    std::iter::once(build_info)
        .chain(panics::METRICS.iter().copied())
        .chain(traces::METRICS.iter().copied())
        .collect()
}

/// Sends log lines to standard error, installs the metrics recorder, describes `metrics` to it, and
/// from now on logs and counts panics.
/// Call it once per process.
///
/// # Errors
///
/// If the filter is invalid, or a logger or a recorder is already installed.
pub fn install(
    config: &TelemetryConfig,
    metrics: &[&'static dyn Declared],
) -> Result<Telemetry, TelemetryError> {
    let log = Log::install(config)?;
    let handle = builder()?.install_recorder()?;
    metrics.iter().for_each(|metric| metric.describe());
    BUILD_INFO.of([VERSION]).set(1.0);
    panics::report_all();
    Ok(Telemetry { handle, log })
}

/// The metrics of this process, and its log filter. Clones share them.
#[derive(Clone)]
pub struct Telemetry {
    handle: PrometheusHandle,
    log: Log,
}

impl Telemetry {
    /// For tests: metrics without a recorder, and a log without a writer.
    #[must_use]
    pub fn detached() -> Self {
        Self {
            handle: PrometheusBuilder::new().build_recorder().handle(),
            log: Log::detached(),
        }
    }

    /// The log and its filter.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// All metrics in Prometheus' text format, including those of the operating system for this
    /// process.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = self.handle.render();
        waybill_telemetry::process::render(&mut text);
        text
    }

    /// Folds recorded values into their histograms, and logs the counts of suppressed lines, until
    /// `stop` is cancelled.
    ///
    /// # Errors
    ///
    /// Never: it returns a result as every task of the program does.
    pub async fn keep_up(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut turns = tokio::time::interval(KEEP_UP_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    self.log.report_all_suppressed();
                    return Ok(());
                }
                _ = turns.tick() => {
                    self.handle.run_upkeep();
                    self.log.report_suppressed();
                }
            }
        }
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new()
        .set_buckets(&COUNTS)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_bytes".into()), &BYTES)
}

/// Announces the address of a listener: in a log line, and on standard output as
/// `listening <name> <address>`, which is stable and the only way to learn which port replaced
/// port 0.
///
/// The names are `http`, `admin`, `broker` and `services`.
pub fn announce(name: &'static str, address: SocketAddr) {
    tracing::info!(listener = name, %address, "listening");
    // Standard output may be closed; that is no reason to stop.
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
        let log = Log::detached();
        let text = Telemetry { handle, log }.render();
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

    #[tokio::test]
    async fn the_upkeep_of_telemetry_ends_on_a_stop() {
        let stop = CancellationToken::new();
        stop.cancel();
        Telemetry::detached().keep_up(stop).await.unwrap();
    }
}
