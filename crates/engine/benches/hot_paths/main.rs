//! The instructions that the engine needs, with the limits in `.ci/budgets`: deliveries that
//! succeed, deliveries that fail and are undone, and the offsets behind them.
//!
//! What must hold: a benchmark gives the same result on every run and machine. It uses no clock and
//! no randomness, its allocator is linked in, and the setup is not counted.
//!
//! `.ci/budgets/check engine` runs it.

#![expect(missing_docs, reason = "the macros make public items without a word")]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "the macros make a program that starts others; the engine inside gets all as arguments"
)]

mod load;

use gungraun::prelude::*;
use waybill_engine::{Offset, OffsetTracker};

use crate::load::{Ending, Load};

/// The program's own allocator: system allocators differ in cost.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The number of records in the tracker.
const RECORDS: i64 = 10_000;

/// The number of concurrent records.
const UNDER_WAY: i64 = 1_000;

// Deliveries of five steps, from their requests until all have ended.
#[library_benchmark]
#[bench::one_in_flight(args = (200, 1, Ending::Processed), setup = Load::new)]
#[bench::thousand_in_flight(args = (2_000, 1_000, Ending::Processed), setup = Load::new)]
fn delivery(load: Load) -> Load {
    load.run()
}

// The same, but the third step is refused, and the supervisor decides to undo the first two.
#[library_benchmark]
#[bench::one_in_flight(args = (200, 1, Ending::Compensated), setup = Load::new)]
#[bench::thousand_in_flight(args = (2_000, 1_000, Ending::Compensated), setup = Load::new)]
fn compensation(load: Load) -> Load {
    load.run()
}

// Records that finish out of order, the first of each window last.
#[library_benchmark]
#[bench::without_gaps(args = (1), setup = Records::new)]
#[bench::with_gaps(args = (3), setup = Records::new)]
fn offset_tracker(records: Records) -> OffsetTracker {
    records.run()
}

/// Records in a tracker.
struct Records {
    tracker: OffsetTracker,
    /// Each record that finishes, with the one that begins in its place, so that the number in
    /// progress stays the same.
    changes: Vec<(Offset, Offset)>,
    /// The offset at which all are done.
    end: Offset,
}

impl Records {
    /// Records at every `stride`th offset; the first ones are in progress.
    fn new(stride: i64) -> Self {
        // Coprime to the number of records, so that each of them comes once.
        const STEP: i64 = 617;
        let mut tracker = OffsetTracker::new(Offset(0));
        for number in 0..UNDER_WAY {
            tracker.begin_with(Offset(number * stride), 7);
        }
        let changes = (0..RECORDS).map(|number| {
            let (window, place) = (number / UNDER_WAY, number % UNDER_WAY);
            // The first record of a window finishes last.
            let done = window * UNDER_WAY + (place + 1) * STEP % UNDER_WAY;
            let begun = UNDER_WAY + number;
            (Offset(done * stride), Offset(begun * stride))
        });
        Self {
            tracker,
            changes: changes.collect(),
            end: Offset(RECORDS * stride),
        }
    }

    fn run(mut self) -> OffsetTracker {
        for (done, begun) in self.changes {
            self.tracker.done(done);
            self.tracker.begin_with(begun, 7);
        }
        assert_eq!(self.tracker.low(), self.end, "all are done");
        self.tracker
    }
}

library_benchmark_group!(
    name = engine,
    benchmarks = [delivery, compensation, offset_tracker]
);

main!(library_benchmark_groups = engine);
