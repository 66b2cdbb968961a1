//! The time that the state machines are driven with.

use waybill_clock::{boot_clock, wall_clock};
use waybill_supervisor_core::Now;

/// The time of both clocks.
pub(super) fn now() -> Now {
    Now {
        wall: wall_clock(),
        boot: boot_clock(),
    }
}
