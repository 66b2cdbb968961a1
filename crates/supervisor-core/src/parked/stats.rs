//! The figures that the gauges of parked operations show.

use waybill_engine::Timestamp;

/// How many operations of one state are parked, and since when the oldest is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ParkedStats {
    /// How many there are.
    pub count: usize,
    /// Since when the oldest one is parked.
    pub oldest: Option<Timestamp>,
}
