//! The newest owner of each shard that has sent requests to this process.
//!
//! Why: a superseded owner might not know it yet, and its requests may arrive late, because its
//! machine was suspended or a client buffered the record. Its successor requests all remaining
//! steps again, so an older owner's request is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use waybill_engine::{BootTime, Epoch, LayoutShard, StepRequest};

/// How many shards to remember. Beyond that, those of the oldest layout are forgotten.
const SHARDS_MAX: usize = 10_000;

/// An owner without requests for this long is forgotten. After a restore from a backup epochs start
/// lower than before, and must not be refused for good.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// The newest owner of each remembered shard.
#[derive(Debug, Default)]
pub(crate) struct Epochs(BTreeMap<LayoutShard, Newest>);

#[derive(Debug)]
struct Newest {
    epoch: Epoch,
    asked_at: BootTime,
}

impl Epochs {
    /// Records the owner that sends a request at `now`. Returns whether a newer owner of the shard
    /// has sent one before.
    pub(crate) fn is_superseded(&mut self, request: &StepRequest, now: BootTime) -> bool {
        let Some(shard) = request.shard else {
            return false;
        };
        let of_request = Newest {
            epoch: request.epoch,
            asked_at: now,
        };
        match self.0.get_mut(&shard) {
            Some(newest) => {
                let is_older = request.epoch < newest.epoch;
                if is_older && now.since(newest.asked_at) < REMEMBERED {
                    return true;
                }
                *newest = of_request;
            }
            None => {
                if self.0.len() >= SHARDS_MAX {
                    self.0.pop_first();
                }
                self.0.insert(shard, of_request);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{self, SHARD, at};

    fn request(shard: Option<LayoutShard>, epoch: u64) -> StepRequest {
        StepRequest {
            shard,
            ..requests::request(epoch, at(0))
        }
    }

    #[test]
    fn an_older_epoch_is_refused() {
        let mut epochs = Epochs::default();
        let other = LayoutShard { layout: 2, ..SHARD };
        let mut is_superseded =
            |shard, epoch| epochs.is_superseded(&request(shard, epoch), at(0).boot);
        assert!(!is_superseded(Some(SHARD), 4));
        assert!(!is_superseded(Some(SHARD), 5));
        assert!(is_superseded(Some(SHARD), 4));
        assert!(!is_superseded(Some(SHARD), 5));
        assert!(!is_superseded(Some(other), 4), "it has its own epochs");
        assert!(!is_superseded(None, 4), "its epoch cannot be compared");
    }

    #[test]
    fn the_epoch_of_an_idle_shard_is_forgotten() {
        let (mut epochs, now) = (Epochs::default(), at(0).boot);
        assert!(!epochs.is_superseded(&request(Some(SHARD), 50), now));
        let later = now + REMEMBERED - Duration::from_secs(1);
        assert!(epochs.is_superseded(&request(Some(SHARD), 2), later));
        assert!(!epochs.is_superseded(&request(Some(SHARD), 2), now + REMEMBERED));
        assert!(!epochs.is_superseded(&request(Some(SHARD), 3), now + REMEMBERED));
    }

    #[test]
    fn the_number_of_remembered_shards_is_bounded() {
        let (mut epochs, now) = (Epochs::default(), at(0).boot);
        for number in 0..=u32::try_from(SHARDS_MAX).unwrap() {
            let shard = LayoutShard { number, ..SHARD };
            assert!(!epochs.is_superseded(&request(Some(shard), 1), now));
        }
        assert_eq!(epochs.0.len(), SHARDS_MAX);
    }
}
