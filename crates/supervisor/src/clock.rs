//! The time that the state machines are driven with.

use waybill_clock::{BootTime as BootClock, wall_clock};
use waybill_engine::BootTime;
use waybill_supervisor_core::Now;

/// The time of both clocks.
pub(super) fn now() -> Now {
    Now {
        wall: wall_clock(),
        boot: boot_time(),
    }
}

/// The time that leases, intervals and rates are measured with.
pub(super) fn boot_time() -> BootTime {
    BootTime::new(BootClock::now().as_duration())
}
