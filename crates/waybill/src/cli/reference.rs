//! `waybill reference`: pages of the documents that are made from the program.

use clap::ValueEnum;

use crate::telemetry::catalogue;

/// Which page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Reference {
    /// docs/metrics.md: every metric
    Metrics,
}

impl Reference {
    /// The page.
    #[must_use]
    pub fn page(self) -> String {
        match self {
            Self::Metrics => catalogue::page(),
        }
    }
}
