//! Why a layout has no such successor.

use waybill_engine::{SHARDS_PER_PARTITION_MAX, ShardingError};

use super::GENERATIONS_MAX;

/// Why a layout has no such successor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// The shards of the scheme could not follow the current ones.
    #[error(transparent)]
    Sharding(#[from] ShardingError),
    /// The number of partitions is being changed.
    #[error(
        "the number of partitions is being changed from {from} to {to}: continue that change with \
         `waybill topics {verb} {to}`",
        verb = if to > from { "grow" } else { "shrink" }
    )]
    Changing {
        /// The number before.
        from: u32,
        /// The number after.
        to: u32,
    },
    /// Each partition would have too many shards in the meantime.
    #[error(
        "changing {now} partitions to {wanted} would need {shards} shards per partition in \
         between, but at most {SHARDS_PER_PARTITION_MAX} are allowed: change to a number in \
         between first"
    )]
    TooFar {
        /// How many there are.
        now: u32,
        /// How many were asked for.
        wanted: u32,
        /// How many shards each would have.
        shards: u32,
    },
    /// The number is neither a multiple nor a divisor of the current one.
    #[error("cannot change {now} partitions to {wanted}: {}", possible(*.now))]
    Partitions {
        /// How many there are.
        now: u32,
        /// How many were asked for.
        wanted: u32,
    },
    /// The change is not at the step before this one.
    #[error("the layout does not allow this step of a change of the number of partitions")]
    Step,
    /// The layout was replaced too often.
    #[error("the layout was changed {GENERATIONS_MAX} times and cannot be changed again")]
    Generations,
}

/// The possible numbers after `now` partitions.
fn possible(now: u32) -> String {
    let [twice, thrice] = [2, 3].map(|times| now.saturating_mul(times));
    let divisor = (1..now).rev().find(|&other| now.is_multiple_of(other));
    let divisor = divisor.map_or_else(String::new, |divisor| {
        format!(", or a divisor of {now}, such as {divisor}")
    });
    format!("the new number must be a multiple of {now}, such as {twice} or {thrice}{divisor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_number_of_partitions_is_refused_with_possible_ones() {
        let refusal = |now, wanted| LayoutError::Partitions { now, wanted }.to_string();
        assert_eq!(
            refusal(4, 6),
            "cannot change 4 partitions to 6: the new number must be a multiple of 4, such as 8 or 12, or a divisor \
             of 4, such as 2"
        );
        assert!(refusal(1, 0).ends_with("a multiple of 1, such as 2 or 3"));
    }
}
