//! The observability of every component: metrics that are declared once, spans ([`trace`]),
//! liveness and readiness ([`health`]). One declaration has a metric's name, meaning and labels.
//! From it the metric is described to the recorder, registered, and listed in documents.
//!
//! Names follow Prometheus' conventions: a base unit as suffix (`_seconds`, `_bytes`), `_total` for
//! counters. Labels have few values; IDs of short-lived objects are not labels.

mod chain;
pub mod health;
pub mod process;
pub mod trace;
pub mod visible;

pub use chain::chain;

use std::marker::PhantomData;

use metrics::{
    Counter, Gauge, Histogram, Label, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A metric of the kind `K` with `N` labels.
#[derive(Debug)]
pub struct Metric<K, const N: usize = 0> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind, const N: usize> Metric<K, N> {
    /// Declares it. `help` is a phrase without a full stop.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self {
            name,
            help,
            labels,
            kind: PhantomData,
        }
    }

    /// The handle for these label values, in the order of declaration. Each call looks it up: keep
    /// the handle if it is used per record.
    #[must_use]
    pub fn of(&self, values: [&str; N]) -> K {
        let labels = self.labels.into_iter().zip(values);
        let labels = labels.map(|(label, value)| Label::new(label, value.to_owned()));
        K::register(self.name, labels.collect())
    }
}

/// The type of a metric: a [`Counter`], a [`Gauge`] or a [`Histogram`].
pub trait Kind: Sized {
    /// Its name in Prometheus.
    const NAME: &'static str;

    /// Describes a metric of this kind to the recorder.
    fn describe(name: &'static str, help: &'static str);

    /// Creates a handle.
    fn register(name: &'static str, labels: Vec<Label>) -> Self;
}

impl Kind for Counter {
    const NAME: &'static str = "counter";

    fn describe(name: &'static str, help: &'static str) {
        describe_counter!(name, help);
    }

    fn register(name: &'static str, labels: Vec<Label>) -> Self {
        counter!(name, labels)
    }
}

impl Kind for Gauge {
    const NAME: &'static str = "gauge";

    fn describe(name: &'static str, help: &'static str) {
        describe_gauge!(name, help);
    }

    fn register(name: &'static str, labels: Vec<Label>) -> Self {
        gauge!(name, labels)
    }
}

impl Kind for Histogram {
    const NAME: &'static str = "histogram";

    fn describe(name: &'static str, help: &'static str) {
        describe_histogram!(name, help);
    }

    fn register(name: &'static str, labels: Vec<Label>) -> Self {
        histogram!(name, labels)
    }
}

/// A metric of any kind.
pub trait Declared: Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The name of its kind in Prometheus.
    fn kind(&self) -> &'static str;

    /// Its meaning.
    fn help(&self) -> &'static str;

    /// The names of its labels.
    fn labels(&self) -> &[&'static str];

    /// Describes it to the recorder.
    fn describe(&self);
}

impl<K: Kind, const N: usize> Declared for Metric<K, N> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> &'static str {
        K::NAME
    }

    fn help(&self) -> &'static str {
        self.help
    }

    fn labels(&self) -> &[&'static str] {
        &self.labels
    }

    fn describe(&self) {
        K::describe(self.name, self.help);
    }
}
