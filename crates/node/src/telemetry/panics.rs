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
