//! The newest owner of each shard that has sent requests to this process.
//!
//! Why: a superseded owner might not know it yet, and its requests may arrive late, because its
//! machine was suspended or a client buffered the record. Its successor requests all remaining
//! steps again, so an older owner's request is refused.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use waybill_engine::{BootTime, Epoch, LayoutShard, OWNER_SUPERSEDED, Outcome, StepRequest};

use super::queue::RETRY_AFTER_MIN;
use crate::handler::not_attempted;

/// How many shards to remember. Beyond that, those of the oldest layout are forgotten.
const SHARDS_MAX: usize = 10_000;

/// An owner without requests for this long is forgotten. After a restore from a backup epochs start
/// lower than before, and must not be refused for good.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// The newest owner of each remembered shard.
#[derive(Debug, Default)]
pub(super) struct Epochs(Mutex<BTreeMap<LayoutShard, Newest>>);

#[derive(Debug)]
struct Newest {
    epoch: Epoch,
    asked_at: BootTime,
}

impl Epochs {
    /// Records the owner that sends a request at `now`. Returns whether a newer owner of the shard
    /// has sent one before.
    pub(super) fn is_superseded(&self, request: &StepRequest, now: BootTime) -> bool {
        let Some(shard) = request.shard else {
            return false;
        };
        let mut shards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_request = Newest {
            epoch: request.epoch,
            asked_at: now,
        };
        match shards.get_mut(&shard) {
            Some(newest) => {
                let is_older = request.epoch < newest.epoch;
                if is_older && now.since(newest.asked_at) < REMEMBERED {
                    return true;
                }
                *newest = of_request;
            }
            None => {
                if shards.len() >= SHARDS_MAX {
                    shards.pop_first();
                }
                shards.insert(shard, of_request);
            }
        }
        false
    }
}

/// The answer to a superseded owner.
pub(super) fn superseded() -> Outcome {
    let message = "a newer owner of the shard has requested steps";
    not_attempted(OWNER_SUPERSEDED, message, RETRY_AFTER_MIN)
}

#[cfg(test)]
mod tests {
    use waybill_clock::boot_clock;

    use super::*;
    use crate::testing::StepRequestBuilder;

    const SHARD: LayoutShard = LayoutShard {
        layout: 1,
        number: 3,
    };

    fn request(shard: Option<LayoutShard>, epoch: u64) -> StepRequest {
        let builder = StepRequestBuilder::new("drone", "drone").epoch(Epoch(epoch));
        StepRequest {
            shard,
            ..builder.build()
        }
    }

    #[test]
    fn an_older_epoch_is_refused() {
        let (epochs, now) = (Epochs::default(), boot_clock());
        let other = LayoutShard { layout: 2, ..SHARD };
        let is_superseded = |shard, epoch| epochs.is_superseded(&request(shard, epoch), now);
        assert!(!is_superseded(Some(SHARD), 4));
        assert!(!is_superseded(Some(SHARD), 5));
        assert!(is_superseded(Some(SHARD), 4));
        assert!(!is_superseded(Some(SHARD), 5));
        assert!(!is_superseded(Some(other), 4), "it has its own epochs");
        assert!(!is_superseded(None, 4), "its epoch cannot be compared");
    }

    #[test]
    fn the_epoch_of_an_idle_shard_is_forgotten() {
        let (epochs, now) = (Epochs::default(), boot_clock());
        assert!(!epochs.is_superseded(&request(Some(SHARD), 50), now));
        let later = now + REMEMBERED - Duration::from_secs(1);
        assert!(epochs.is_superseded(&request(Some(SHARD), 2), later));
        assert!(!epochs.is_superseded(&request(Some(SHARD), 2), now + REMEMBERED));
        assert!(!epochs.is_superseded(&request(Some(SHARD), 3), now + REMEMBERED));
    }

    #[test]
    fn the_number_of_remembered_shards_is_bounded() {
        let (epochs, now) = (Epochs::default(), boot_clock());
        for number in 0..=u32::try_from(SHARDS_MAX).unwrap() {
            let shard = LayoutShard { number, ..SHARD };
            assert!(!epochs.is_superseded(&request(Some(shard), 1), now));
        }
        assert_eq!(epochs.0.lock().unwrap().len(), SHARDS_MAX);
    }
}
