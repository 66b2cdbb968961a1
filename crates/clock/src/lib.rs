//! The clocks that every part of a process reads.
//!
//! Two clocks:
//!
//! * [`wall_clock`] returns the current time. It follows the system's wall clock, but holds back a
//!   step until the step has lasted for [`HOLD`]. Deadlines, complete-by, due times and ids use it.
//!   It may go back: after a backward step that lasted, and by less than [`STEP_MIN`] at any time.
//! * [`boot_clock`] measures durations, including the time for which the machine was suspended.
//!   Leases use it. (`std::time::Instant` stops while a Linux machine is suspended.)
//!
//! [`Suspensions`] detects that the machine was suspended.
//!
//! Deliberately absent: stamps. The engine keeps stamps monotonic whatever this clock does.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use waybill_engine::{BootTime, Now, Timestamp};

pub use boot::{Suspensions, boot_clock};
pub use filter::{Change, HOLD, STEP_MIN, StepFilter};
pub use text::time_text;

mod boot;
mod filter;
mod text;

/// How often the clocks are compared even if no caller reads the time: a step is adopted only after
/// it was observed for [`HOLD`].
const COMPARE_EVERY: Duration = Duration::from_secs(1);

/// The filter of this process. The first use starts the thread that compares the clocks.
static FILTER: LazyLock<Mutex<StepFilter>> = LazyLock::new(|| {
    let (wall, boot) = read_both();
    let watching = thread::Builder::new().name("clock".to_owned()).spawn(|| {
        loop {
            thread::sleep(COMPARE_EVERY);
            // A panic is reported, and the next comparison may succeed.
            _ = std::panic::catch_unwind(wall_clock);
        }
    });
    if let Err(error) = watching {
        tracing::warn!(
            %error,
            "cannot start the clock thread; steps are detected only when the time is read"
        );
    }
    Mutex::new(StepFilter::new(wall, boot))
});

/// The current time, without steps of the system's wall clock shorter than [`HOLD`].
#[must_use]
pub fn wall_clock() -> Timestamp {
    clocks().wall
}

/// The [`wall_clock`] and the [`boot_clock`], read together.
#[must_use]
pub fn clocks() -> Now {
    let mut filter = FILTER.lock().unwrap_or_else(PoisonError::into_inner);
    // Read under the lock, so that the filter sees readings in order.
    let (wall, boot) = read_both();
    let (wall, change) = filter.read(wall, boot);
    drop(filter);
    match change {
        None => {}
        Some(Change::Held { by_micros }) => tracing::warn!(
            step_ms = by_micros / 1_000,
            hold_s = HOLD.as_secs(),
            "wall clock stepped; ignoring the step until it persists"
        ),
        Some(Change::Dropped) => {
            tracing::info!("wall clock stepped back to the time before its step")
        }
        Some(Change::Adopted { by_micros }) => tracing::warn!(
            step_ms = by_micros / 1_000,
            "adopted a step of the wall clock"
        ),
    }
    Now { wall, boot }
}

/// The system's wall clock, unfiltered.
#[must_use]
pub fn system_clock() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_micros();
    Timestamp(i64::try_from(since_epoch).unwrap_or(i64::MAX))
}

/// Reads both clocks at nearly the same instant.
fn read_both() -> (Timestamp, BootTime) {
    let (boot, wall) = boot::together(boot_clock, system_clock);
    (wall, boot)
}
