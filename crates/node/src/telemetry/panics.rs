//! Panics: each is logged and counted, in whatever thread or task it happens.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};
use std::thread;

use metrics::Counter;
use waybill_telemetry::{Declared, Metric};

const PANICS: Metric<Counter> = Metric::new(
    "waybill_panics_total",
    "Panics in any thread or task of the process",
    [],
);

/// The target of their log lines, which every filter passes.
pub(super) const TARGET: &str = module_path!();

/// The metrics of panics.
pub(super) const METRICS: &[&dyn Declared] = &[&PANICS];

/// Logs and counts each panic from now on, instead of the text that the standard library writes to
/// standard error.
pub(super) fn report_all() {
    PANICS.of([]).increment(0);
    panic::set_hook(Box::new(report));
}

fn report(panic: &PanicHookInfo<'_>) {
    PANICS.of([]).increment(1);
    let thread = thread::current();
    let location = panic.location().map(ToString::to_string);
    // Captured only if RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
    tracing::error!(
        thread = thread.name().unwrap_or_default(),
        location,
        panic = panic.payload_as_str().unwrap_or("no text"),
        backtrace = backtrace.as_ref().map(tracing::field::display),
        "a thread panicked"
    );
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::{LogFormat, TelemetryConfig, install, metrics};
    use super::*;

    /// A process of its own, because the hook and the log are the process's.
    #[test]
    #[ignore = "started by the test below"]
    fn process_with_a_panic() {
        let config = TelemetryConfig {
            log_format: LogFormat::Json,
            log_filter: "off".to_owned(),
            ..TelemetryConfig::default()
        };
        let telemetry = install(&config, &metrics()).unwrap();
        let thread = thread::Builder::new().name("a thread".to_owned());
        let ended = thread.spawn(|| panic!("a bug in row {}", 7)).unwrap();
        assert!(ended.join().is_err());
        println!("{}", telemetry.render());
    }

    #[test]
    fn a_panic_of_any_thread_is_logged_and_counted() {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "telemetry::panics::tests::process_with_a_panic"])
            .args(["--ignored", "--nocapture"])
            .output()
            .unwrap();
        let metrics = String::from_utf8(process.stdout).unwrap();
        assert!(metrics.contains("\nwaybill_panics_total 1\n"), "{metrics}");
        let log = String::from_utf8(process.stderr).unwrap();
        let line: serde_json::Value = serde_json::from_str(log.trim()).unwrap();
        assert_eq!(line["message"], "a thread panicked", "{log}");
        assert_eq!(line["thread"], "a thread", "{log}");
        assert_eq!(line["panic"], "a bug in row 7", "{log}");
        let location = line["location"].as_str().unwrap();
        assert!(location.contains("panics.rs:"), "{log}");
    }
}
