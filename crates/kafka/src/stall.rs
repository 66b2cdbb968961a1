//! Partitions that stall without an error.
//!
//! librdkafka takes a record that it cannot parse for the cut-off end of an answer. It requests the
//! same records again, forever, and reports nothing. So consumers watch for partitions that have
//! records left and hand none over, and ask the brokers about them (`damage`).
//!
//! The watch counts the time between polls: each poll adds at most [`GAP_MAX`], and only a poll
//! that emptied the client's queue counts. So no time passes while the application holds records
//! back.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use waybill_engine::{Offset, PartitionId};

use crate::native;

/// How long polls may find nothing in a partition with records left before the brokers are asked
/// about it.
const STALLED_AFTER: Duration = Duration::from_secs(10);
/// A check without a finding doubles the time until the next one, up to this.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(600);
/// How often to read the positions.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest counted time between two reads of the positions.
const GAP_MAX: Duration = Duration::from_secs(2);

/// A partition and where to continue reading it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Behind {
    pub(crate) topic: String,
    pub(crate) partition: PartitionId,
    /// Where to continue reading; `None` before the first record, when only the group knows.
    pub(crate) position: Option<Offset>,
}

/// Counts how long partitions have made no progress.
#[derive(Default, Debug)]
pub(crate) struct StallWatch {
    still: HashMap<(String, PartitionId), Still>,
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct Still {
    position: Option<Offset>,
    counted: Duration,
    suspect_after: Duration,
}

impl StallWatch {
    /// Whether it is time to read the positions again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.looked_at
            .is_none_or(|at| now.saturating_duration_since(at) >= CHECK_INTERVAL)
    }

    /// Takes the partitions after a poll that found no more records. Returns those with records
    /// left that have made no progress for too long.
    pub(crate) fn suspects<C: ClientContext>(
        &mut self,
        now: Instant,
        client: &Client<C>,
        mut partitions: Vec<Behind>,
    ) -> Vec<Behind> {
        partitions.retain(|at| {
            let end = native::known_end(client, &at.topic, at.partition);
            end.is_some_and(|end| at.position.unwrap_or(Offset(0)) < end)
        });
        self.suspects_at(now, partitions)
    }

    /// The same, for partitions that have records left.
    fn suspects_at(&mut self, now: Instant, behind: Vec<Behind>) -> Vec<Behind> {
        let before = self.looked_at.replace(now).unwrap_or(now);
        let gap = now.saturating_duration_since(before).min(GAP_MAX);
        let mut old = std::mem::take(&mut self.still);
        let mut suspects = Vec::new();
        for at in behind {
            let key = (at.topic.clone(), at.partition);
            let mut still = old
                .remove(&key)
                .filter(|still| still.position == at.position)
                .map(|still| Still {
                    counted: still.counted + gap,
                    ..still
                })
                .unwrap_or(Still {
                    position: at.position,
                    counted: Duration::ZERO,
                    suspect_after: STALLED_AFTER,
                });
            if still.counted >= still.suspect_after {
                still.counted = Duration::ZERO;
                suspects.push(at);
            }
            self.still.insert(key, still);
        }
        suspects
    }

    /// Doubles the time until the next check, after one without a finding: the brokers do not
    /// answer, or only open transactions of others or a gap are left.
    pub(crate) fn back_off(&mut self, topic: &str, partition: PartitionId) {
        if let Some(still) = self.still.get_mut(&(topic.to_owned(), partition)) {
            still.suspect_after = (still.suspect_after * 2).min(AGAIN_AFTER_MAX);
        }
    }

    /// Forgets everything, because nothing is read for now.
    pub(crate) fn clear(&mut self) {
        self.still.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(position: i64) -> Vec<Behind> {
        vec![Behind {
            topic: "t".to_owned(),
            partition: PartitionId(0),
            position: Some(Offset(position)),
        }]
    }

    /// The first second, counted from the first check, at which the partition is suspect.
    fn suspect_at(
        watch: &mut StallWatch,
        start: Instant,
        seconds: std::ops::Range<u64>,
        mut position: impl FnMut(u64) -> Option<i64>,
    ) -> Option<u64> {
        seconds.into_iter().find(|second| {
            let at = position(*second).map(behind).unwrap_or_default();
            !watch
                .suspects_at(start + Duration::from_secs(*second), at)
                .is_empty()
        })
    }

    #[test]
    fn a_partition_is_suspect_after_ten_seconds_without_progress() {
        let mut watch = StallWatch::default();
        let start = Instant::now();
        let found = suspect_at(&mut watch, start, 0..60, |_| Some(7));
        assert_eq!(found, Some(10));
    }

    #[test]
    fn a_partition_with_progress_or_at_its_end_is_not_suspect() {
        let start = Instant::now();
        let moving = |second: u64| Some(i64::try_from(second / 9).unwrap());
        let found = suspect_at(&mut StallWatch::default(), start, 0..60, moving);
        assert_eq!(found, None);
        let at_end = |second: u64| (!second.is_multiple_of(9)).then_some(7);
        let found = suspect_at(&mut StallWatch::default(), start, 0..60, at_end);
        assert_eq!(found, None);
    }

    #[test]
    fn time_without_polls_counts_two_seconds() {
        let mut watch = StallWatch::default();
        let start = Instant::now();
        assert_eq!(watch.suspects_at(start, behind(7)), []);
        assert_eq!(
            watch.suspects_at(start + Duration::from_secs(3600), behind(7)),
            []
        );
        let found = suspect_at(&mut watch, start, 3601..3700, |_| Some(7));
        assert_eq!(found, Some(3608));
    }

    #[test]
    fn a_partition_that_was_checked_is_suspect_again_after_twice_the_time() {
        let mut watch = StallWatch::default();
        let start = Instant::now();
        let mut seconds = Vec::new();
        let mut next = 0;
        while let Some(second) = suspect_at(&mut watch, start, next..2000, |_| Some(7)) {
            watch.back_off("t", PartitionId(0));
            seconds.push(second);
            next = second + 1;
        }
        assert_eq!(seconds[..4], [10, 30, 70, 150]);
        assert_eq!(seconds[seconds.len() - 1] - seconds[seconds.len() - 2], 600);
    }

    #[test]
    fn positions_are_checked_once_a_second() {
        let mut watch = StallWatch::default();
        let start = Instant::now();
        assert!(watch.is_due(start));
        watch.suspects_at(start, Vec::new());
        assert!(!watch.is_due(start + Duration::from_millis(999)));
        assert!(watch.is_due(start + CHECK_INTERVAL));
    }
}
