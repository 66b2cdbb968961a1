//! Opening partitions again after a full disk.

use std::error::Error;
use std::io;
use std::sync::Arc;

use waybill_disk::is_full;

use super::{Topic, Topics};
use crate::locked;
use crate::log::{Condition, has_room};

impl Topics {
    /// Resolves when partitions must be [opened again](Self::reopen_full).
    pub(crate) async fn full(&self) {
        self.limits.syncs.full().await;
    }

    /// Opens partitions again whose disk was full at a sync, if there is room. Returns `false` if
    /// some are left. Blocks.
    pub(crate) fn reopen_full(&self) -> bool {
        let has_room = has_room(&*self.limits.disk, &self.logs).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot tell whether the disk has room");
            false
        });
        if !has_room {
            return false;
        }
        let _changing = locked(&self.changing);
        let mut is_done = true;
        for topic in self.all() {
            let mut partitions = topic.partitions.clone();
            let mut is_changed = false;
            for partition in &mut partitions {
                if partition.condition() != Condition::Full {
                    continue;
                }
                match partition.reopen() {
                    Ok(opened) => {
                        let lowered = self.lower_log_start(&opened, partition.log_start());
                        *partition = Arc::new(opened);
                        is_changed = true;
                        if let Err(error) = lowered {
                            partition.fail("reopen", &io::Error::other(with_causes(&error)));
                        }
                    }
                    Err(error) if is_full(&error) => is_done = false,
                    Err(error) => {
                        partition.fail("reopen", &io::Error::other(with_causes(&error)));
                    }
                }
            }
            if is_changed {
                tracing::info!(topic = %topic.name, "the disk has room again");
                self.put(Arc::new(Topic {
                    name: Arc::clone(&topic.name),
                    id: topic.id,
                    config: topic.config,
                    partitions,
                    bytes: Arc::clone(&topic.bytes),
                }));
            }
        }
        is_done
    }
}

/// An error and its causes, in one line.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
