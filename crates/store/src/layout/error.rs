//! Why a layout has no such successor.

use waybill_engine::{DivisionError, READERS_PER_PARTITION_MAX};

use super::GENERATIONS_MAX;

/// Why a layout has no such successor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// Its readers could not follow.
    #[error(transparent)]
    Division(#[from] DivisionError),
    /// The number of partitions is being changed.
    #[error(
        "the topics are going over from {from} to {to} partitions: `waybill topics {verb} --partitions {to}` goes \
         on with that", verb = if to > from { "grow" } else { "shrink" }
    )]
    Changing {
        /// From how many.
        from: u32,
        /// To how many.
        to: u32,
    },
    /// Each partition would have too many readers meanwhile.
    #[error(
        "while {now} partitions become {wanted}, {readers} readers would share each, and \
         {READERS_PER_PARTITION_MAX} are the most: go by way of a number between them"
    )]
    TooFar {
        /// How many there are.
        now: u32,
        /// How many were asked for.
        wanted: u32,
        /// How many readers each would have.
        readers: u32,
    },
    /// That is neither a multiple nor a part of what there is.
    #[error(
        "{now} partitions become a whole multiple of themselves, or a whole part, and {wanted} is neither"
    )]
    Partitions {
        /// How many there are.
        now: u32,
        /// How many were asked for.
        wanted: u32,
    },
    /// The change of the number has not come so far, or further.
    #[error("this step of changing the number of partitions is not the next one")]
    Step,
    /// It was replaced too often.
    #[error("the layout was changed {GENERATIONS_MAX} times, and cannot be changed again")]
    Generations,
}
