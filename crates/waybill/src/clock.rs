//! The clocks that every role of this process shares.

pub(crate) use waybill_clock::{BootTime, wall_clock};
