//! The time, as the driver passes it in.

use waybill_engine::{BootTime, Timestamp};

/// A reading of both clocks of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// The wall clock, for due times. It may go back.
    pub wall: Timestamp,
    /// The clock that leases, intervals and rates are measured with.
    pub boot: BootTime,
}
