//! Descriptions of damaged logs and batches.

use std::path::PathBuf;

/// Why a start refuses a log: it would lose records that may have been acknowledged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damage {
    /// Valid records follow damaged or missing ones, so that this is no interrupted write.
    #[error(
        "{} is damaged at byte {position}: records from offset {offset} on are unreadable or missing, but {} \
         from offset {next_offset} (byte {next_position} of {})",
        path.display(),
        if *is_verified { "valid ones follow" } else { "others seem to follow" },
        next_path.display()
    )]
    Inside {
        /// The segment's file.
        path: PathBuf,
        /// Where in it the first damaged batch begins, or it ends too early.
        position: u64,
        /// The first offset that cannot be read.
        offset: i64,
        /// The file with the next valid batch.
        next_path: PathBuf,
        /// Where in it that batch begins.
        next_position: u64,
        /// Its first offset.
        next_offset: i64,
        /// Whether that batch was verified. If not, too many bytes look like batches to verify all.
        is_verified: bool,
    },
    /// The log ends before its known synced end.
    #[error(
        "{} ends at byte {position}, before offset {offset}, but records up to offset {synced_end} were synced to disk",
        path.display()
    )]
    Short {
        /// The last segment's file.
        path: PathBuf,
        /// How many bytes of it are valid.
        position: u64,
        /// The first offset that is missing.
        offset: i64,
        /// The end up to which the log was synced.
        synced_end: i64,
    },
    /// The log has no segment files, although records of it were synced.
    #[error(
        "{} has no segment files, but records below offset {synced_end} were synced to disk",
        path.display()
    )]
    Missing {
        /// The log's directory.
        path: PathBuf,
        /// The end up to which the log was synced.
        synced_end: i64,
    },
}

/// A batch that was found to be damaged when it was read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the record batch with offset {offset} at byte {position} of {} is damaged", path.display())]
pub struct DamagedBatch {
    /// The segment's file.
    pub path: PathBuf,
    /// Where in it the batch begins.
    pub position: u64,
    /// The first offset that cannot be read.
    pub offset: i64,
}
