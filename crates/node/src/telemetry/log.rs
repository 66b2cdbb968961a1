//! The log: its output, its filter, and changes of the filter while the process runs.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;
use waybill_telemetry::visible::may_be_colored;

use super::rate_limit::{self, LogRateLimiter};
use super::{LogFormat, TelemetryConfig, TelemetryError, lines, panics};
use crate::log_filter::LogFilter;

/// The log filter. Clones share it.
#[derive(Clone)]
pub struct Log {
    filter: Arc<Mutex<String>>,
    apply: Arc<dyn Fn(Targets) + Send + Sync>,
    limiter: LogRateLimiter,
}

impl Log {
    /// Sends log lines to standard error.
    pub(super) fn install(config: &TelemetryConfig) -> Result<Self, TelemetryError> {
        let LogFilter { text, targets } = config.log_filter.parse()?;
        let (filter, handle) = reload::Layer::new(applied(targets));
        let limiter = LogRateLimiter::default();
        let logger = tracing_subscriber::registry()
            .with(filter)
            .with(limiter.clone());
        match config.log_format {
            LogFormat::Text => logger
                .with(lines::text(io::stderr, may_be_colored(&io::stderr())))
                .try_init(),
            LogFormat::Json => logger.with(lines::json(io::stderr)).try_init(),
        }
        .map_err(TelemetryError::Logger)?;
        Ok(Self {
            filter: Arc::new(Mutex::new(text)),
            // The logger exists as long as the process.
            apply: Arc::new(move |filter| drop(handle.reload(filter))),
            limiter,
        })
    }

    /// A log without a writer.
    pub(super) fn detached() -> Self {
        Self {
            filter: Arc::new(Mutex::new(TelemetryConfig::default().log_filter)),
            apply: Arc::new(drop),
            limiter: LogRateLimiter::default(),
        }
    }

    /// The current filter.
    #[must_use]
    pub fn filter(&self) -> String {
        self.lock().clone()
    }

    /// Replaces the filter until the process ends.
    pub fn set_filter(&self, filter: LogFilter) {
        let mut current = self.lock();
        (self.apply)(applied(filter.targets));
        *current = filter.text;
    }

    /// Logs the counts of suppressed lines whose minute is over.
    pub(super) fn report_suppressed(&self) {
        self.limiter.report();
    }

    /// Logs all counts of suppressed lines, at the end of the process.
    pub(super) fn report_all_suppressed(&self) {
        self.limiter.report_all();
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

/// The effective filter: it always passes panics and the counts of suppressed lines.
fn applied(filter: Targets) -> Targets {
    filter
        .with_target(panics::TARGET, LevelFilter::ERROR)
        .with_target(rate_limit::OWN_TARGET, LevelFilter::INFO)
}
