//! Why a layout has no such successor.

use waybill_engine::DivisionError;

use super::GENERATIONS_MAX;

/// Why a layout has no such successor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// Its readers could not follow.
    #[error(transparent)]
    Division(#[from] DivisionError),
    /// The number of partitions is being changed.
    #[error(
        "the topics are going over to {0} partitions; `waybill topics grow` (or `shrink`) `--partitions {0}` \
         goes on with that"
    )]
    Changing(u32),
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
