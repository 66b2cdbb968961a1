//! The figures that the gauges of parked operations show.

use waybill_engine::Timestamp;

/// How many operations of one state are parked, and since when the oldest is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct ParkedStats {
    pub(super) count: usize,
    pub(super) oldest: Option<Timestamp>,
}
