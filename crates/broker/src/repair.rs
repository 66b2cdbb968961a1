//! Drops damaged data from the logs of a stopped broker, on request.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use waybill_disk::boot_id;

use crate::broker::{StartError, lock};
use crate::log::{LogError, Repair, SyncedEnds, aside_path, system_disk};
use crate::meta::{Meta, MetaError};
use crate::topics::{logs_dir, partition_dir};

/// The data that a repair drops in one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogRepair {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The segment's file.
    pub path: PathBuf,
    /// Where in it the damage begins.
    pub position: u64,
    /// How many bytes are damaged; none if bytes are missing.
    pub bytes: u64,
    /// The first offset that is lost.
    pub first_offset: i64,
    /// How many offsets are lost. Each was a record's, unless the log has been repaired there
    /// before.
    pub records: u64,
    /// Where the damaged bytes are kept, or would be; `None` if there are none.
    pub aside: Option<PathBuf>,
}

/// Why logs were not repaired.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The data directory cannot be used: another process may hold its lock.
    #[error(transparent)]
    Start(#[from] StartError),
    /// There is no such topic or partition.
    #[error("{what} does not exist")]
    Unknown {
        /// The missing topic or partition.
        what: String,
    },
    /// The disk failed.
    #[error("cannot repair the log of partition {partition} of topic {topic}")]
    Log {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Reads the logs in the data directory of a stopped broker, verifies every batch, and returns the
/// damage: of all topics, of one, or of one partition of it. With `apply` it drops the damage: a
/// batch without records replaces lost records, and damaged bytes go to `damaged/` in the data
/// directory. Without it no log is changed. Blocks.
///
/// # Errors
///
/// See [`RepairError`].
pub fn repair_logs(
    data_dir: &Path,
    topic: Option<&str>,
    partition: Option<i32>,
    apply: bool,
) -> Result<Vec<LogRepair>, RepairError> {
    let _lock = lock(data_dir)?;
    let unreadable = |error: MetaError| StartError::Open {
        path: data_dir.to_owned(),
        source: Box::new(error),
    };
    let meta = Meta::open(&data_dir.join("meta")).map_err(unreadable)?;
    let disk = system_disk();
    let ends = SyncedEnds::load(Arc::clone(&disk), data_dir, boot_id());
    let ends = ends.map_err(StartError::in_dir(data_dir))?;
    let logs = logs_dir(data_dir);
    let mut found = Vec::new();
    let mut is_known = topic.is_none() && partition.is_none();
    for (name, record) in meta.topics().map_err(unreadable)? {
        for index in 0..i32::try_from(record.partitions).unwrap_or(i32::MAX) {
            if topic.is_some_and(|topic| topic != name)
                || partition.is_some_and(|partition| partition != index)
            {
                continue;
            }
            is_known = true;
            let failed = |error: LogError| RepairError::Log {
                topic: name.clone(),
                partition: index,
                source: Box::new(error),
            };
            let dir = partition_dir(&logs, &name, index);
            let plan = Repair::plan(&*disk, &dir, ends.of((record.id, index))).map_err(failed)?;
            let aside = partition_dir(&data_dir.join("damaged"), &name, index);
            found.extend(plan.dropped().map(|dropped| {
                let bytes = dropped.bytes.end - dropped.bytes.start;
                let lost = dropped.offsets.end - dropped.offsets.start;
                LogRepair {
                    topic: name.clone(),
                    partition: index,
                    path: dropped.path.clone(),
                    position: dropped.bytes.start,
                    bytes,
                    first_offset: dropped.offsets.start,
                    records: u64::try_from(lost).unwrap_or(0),
                    aside: (bytes > 0).then(|| aside_path(&aside, dropped)),
                }
            }));
            if apply {
                plan.apply(&*disk, &aside).map_err(failed)?;
            }
        }
    }
    if is_known {
        return Ok(found);
    }
    let mut what = topic.map_or("topic".to_owned(), |topic| format!("topic {topic}"));
    if let Some(partition) = partition {
        what = format!("partition {partition} of {what}");
    }
    Err(RepairError::Unknown { what })
}
