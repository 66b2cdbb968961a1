//! The time as the loop gets it.

use waybill_clock::clocks;
use waybill_scheduler_core::Now;

/// Reads the clocks.
pub(super) fn now() -> Now {
    let (wall, boot) = clocks();
    Now { wall, boot }
}
