use std::collections::BTreeSet;

use super::*;

/// The obvious tracker: all begun offsets, and those of them that are not done.
struct Model {
    begun: BTreeSet<i64>,
    open: BTreeSet<i64>,
    next: i64,
}

impl Model {
    fn low(&self) -> i64 {
        self.open.first().copied().unwrap_or(self.next)
    }

    /// The fingerprint of the last record below the mark.
    fn below_low(&self) -> Option<u64> {
        let below = self.begun.range(..self.low()).next_back()?;
        Some(fingerprint(*below))
    }
}

fn fingerprint(offset: i64) -> u64 {
    offset.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// xorshift64*
fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % below
}

#[test]
fn the_tracker_agrees_with_a_set_of_open_offsets() {
    for seed in 1..=500_u64 {
        let mut rng = seed;
        let start = i64::try_from(random(&mut rng, 1_000)).unwrap();
        let mut tracker = OffsetTracker::new(Offset(start));
        let mut model = Model {
            begun: BTreeSet::new(),
            open: BTreeSet::new(),
            next: start,
        };
        for _ in 0..400 {
            let any = start - 5 + i64::try_from(random(&mut rng, 600)).unwrap();
            match random(&mut rng, 10) {
                0..=3 => {
                    let gap = match random(&mut rng, 6) {
                        0 => i64::try_from(random(&mut rng, 50)).unwrap(),
                        _ => 0,
                    };
                    let offset = model.next + gap;
                    assert!(tracker.begin_with(Offset(offset), fingerprint(offset)));
                    model.begun.insert(offset);
                    model.open.insert(offset);
                    model.next = offset + 1;
                }
                6 if random(&mut rng, 2) == 0 => {
                    let gap = i64::try_from(random(&mut rng, 3)).unwrap();
                    let offset = model.next + gap;
                    tracker.pass(Offset(offset), fingerprint(offset));
                    model.begun.insert(offset);
                    model.next = offset + 1;
                }
                4 => {
                    let old = any.min(model.next - 1);
                    assert!(!tracker.begin_with(Offset(old), 1), "{old} came before");
                }
                5 => {
                    // An offset that is done already, was never begun, or is not yet done.
                    tracker.done(Offset(any));
                    model.open.remove(&any);
                }
                _ => {
                    let count = model.open.len() as u64;
                    if count > 0 {
                        let nth = usize::try_from(random(&mut rng, count)).unwrap();
                        let offset = *model.open.iter().nth(nth).unwrap();
                        tracker.done(Offset(offset));
                        model.open.remove(&offset);
                    }
                }
            }
            assert_eq!(tracker.low(), Offset(model.low()), "seed {seed}");
            assert_eq!(tracker.next(), Offset(model.next), "seed {seed}");
            assert_eq!(tracker.pending(), model.open.len(), "seed {seed}");
            assert_eq!(
                tracker.fingerprint_below_low(),
                model.below_low(),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn the_checkpoint_waits_for_the_slowest_record() {
    let mut tracker = OffsetTracker::new(Offset(10));
    for offset in 10..15 {
        tracker.begin_with(Offset(offset), fingerprint(offset));
    }
    for offset in [14, 12, 11, 13] {
        tracker.done(Offset(offset));
        assert_eq!(tracker.low(), Offset(10));
        assert_eq!(tracker.fingerprint_below_low(), None);
    }
    tracker.done(Offset(10));
    assert_eq!(tracker.low(), Offset(15));
    assert_eq!(tracker.fingerprint_below_low(), Some(fingerprint(14)));
    assert_eq!(tracker.pending(), 0);
}

#[test]
fn a_gap_counts_as_done_once_the_next_record_begins() {
    let mut tracker = OffsetTracker::new(Offset(0));
    tracker.begin(Offset(5));
    assert_eq!(tracker.low(), Offset(5));
    tracker.begin(Offset(1_000_000_000));
    tracker.done(Offset(5));
    assert_eq!(tracker.low(), Offset(1_000_000_000));
    tracker.done(Offset(1_000_000_000));
    assert_eq!(tracker.low(), Offset(1_000_000_001));
}

#[test]
fn repeated_and_unknown_offsets_are_ignored() {
    let mut tracker = OffsetTracker::new(Offset(3));
    tracker.begin(Offset(3));
    tracker.begin(Offset(4));
    for offset in [-1, 0, 2, 5, i64::MAX, i64::MIN] {
        tracker.done(Offset(offset));
    }
    assert_eq!((tracker.low(), tracker.pending()), (Offset(3), 2));
    tracker.done(Offset(3));
    tracker.done(Offset(3));
    assert_eq!((tracker.low(), tracker.pending()), (Offset(4), 1));
}

#[test]
fn skipped_records_are_done_immediately() {
    let mut tracker = OffsetTracker::new(Offset(0));
    tracker.pass(Offset(4), fingerprint(4));
    assert_eq!(tracker.low(), Offset(5));
    assert_eq!(tracker.fingerprint_below_low(), Some(fingerprint(4)));
    tracker.begin_with(Offset(5), fingerprint(5));
    for offset in 6..1_000 {
        tracker.pass(Offset(offset), fingerprint(offset));
    }
    assert_eq!(tracker.records.len(), 2, "a run of them is one entry");
    tracker.begin_with(Offset(1_000), fingerprint(1_000));
    assert_eq!((tracker.low(), tracker.pending()), (Offset(5), 2));
    tracker.done(Offset(5));
    assert_eq!(tracker.low(), Offset(1_000));
    assert_eq!(tracker.fingerprint_below_low(), Some(fingerprint(999)));
    tracker.pass(Offset(7), 1);
    assert_eq!(tracker.next(), Offset(1_001), "it was passed before");
}
