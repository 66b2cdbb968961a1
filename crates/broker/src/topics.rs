//! The topics and their partitions.
//!
//! Requests look topics up under a short read lock. Creating, deleting and changing topics is
//! serialised by one lock of its own, and blocks on the disk: callers do it on a blocking thread.

mod reopening;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use uuid::Uuid;

use crate::log::{Limits, LogError, Partition};
use crate::meta::{Meta, MetaError, TopicRecord};
use crate::retention::{RunTime, SegmentAges};
use crate::{TopicConfig, locked};

/// The longest name of a topic, as Kafka has it.
const NAME_CHARS_MAX: usize = 249;

/// A topic. It is replaced as a whole when it changes.
pub(crate) struct Topic {
    pub(crate) name: Arc<str>,
    pub(crate) id: Uuid,
    pub(crate) config: TopicConfig,
    pub(crate) partitions: Vec<Arc<Partition>>,
    /// Bytes of its logs.
    bytes: Arc<AtomicU64>,
}

impl Topic {
    pub(crate) fn partition(&self, index: i32) -> Option<&Arc<Partition>> {
        self.partitions.get(usize::try_from(index).ok()?)
    }
}

/// Why topics could not be read at the start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenTopicsError {
    #[error("cannot read the list of topics")]
    Meta(#[from] MetaError),
    #[error("cannot open partition {partition} of topic {topic}")]
    Log {
        topic: String,
        partition: u32,
        #[source]
        source: LogError,
    },
    #[error("cannot prepare {path}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Why a topic was not created or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopicError {
    #[error("the name must have 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'")]
    Name,
    #[error("the topic already exists")]
    Exists,
    #[error("the topic does not exist")]
    Unknown,
    #[error(
        "the number of partitions must be positive and higher than before, and all topics together \
         may have at most {max} (broker.partitionsMax)"
    )]
    Partitions { max: usize },
    #[error("the disk failed")]
    Disk,
}

pub(crate) struct Topics {
    logs: PathBuf,
    graves: PathBuf,
    partitions_max: usize,
    limits: Limits,
    meta: Arc<Meta>,
    run_time: RunTime,
    /// By topic and partition.
    ages: Mutex<HashMap<(Uuid, i32), SegmentAges>>,
    topics: RwLock<HashMap<Arc<str>, Arc<Topic>>>,
    changing: Mutex<()>,
}

impl Topics {
    /// Opens all topics. Completes the deletion of deleted ones.
    pub(crate) fn open(
        data_dir: &Path,
        partitions_max: usize,
        limits: Limits,
        meta: Arc<Meta>,
    ) -> Result<Self, OpenTopicsError> {
        let (logs, graves) = (logs_dir(data_dir), data_dir.join("deleted"));
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenTopicsError::Directory { path, source }
        };
        match fs::remove_dir_all(&graves) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(at(&graves)(error));
            }
            _ => {}
        }
        for dir in [&logs, &graves] {
            fs::create_dir_all(dir).map_err(at(dir))?;
        }
        let registry = Self {
            logs,
            graves,
            partitions_max,
            limits,
            run_time: RunTime::since(meta.run_time_ms()?),
            ages: Mutex::default(),
            meta,
            topics: RwLock::default(),
            changing: Mutex::new(()),
        };
        let mut topics = HashMap::new();
        for (name, record) in registry.meta.topics()? {
            let name: Arc<str> = name.into();
            let bytes = Arc::new(AtomicU64::new(0));
            let mut partitions = Vec::new();
            for index in 0..record.partitions {
                let number = i32::try_from(index).unwrap_or(i32::MAX);
                let log_start = registry.meta.log_start(record.id, number)?;
                let partition = registry
                    .open_partition(&name, number, &record, log_start, &bytes)
                    .map_err(|source| OpenTopicsError::Log {
                        topic: name.to_string(),
                        partition: index,
                        source,
                    })?;
                registry.lower_log_start(&partition, log_start)?;
                partitions.push(partition);
                let ages = registry.meta.ages(record.id, number)?;
                locked(&registry.ages).insert((Uuid::from_bytes(record.id), number), ages);
            }
            topics.insert(
                Arc::clone(&name),
                topic_of(name, &record, partitions, bytes),
            );
        }
        let ids: HashMap<_, _> = topics
            .values()
            .map(|topic| (*topic.id.as_bytes(), topic.partitions.len()))
            .collect();
        let syncs = &registry.limits.syncs;
        let mut opened = topics.values().flat_map(|topic| &topic.partitions);
        if syncs.ends.is_new && opened.any(|partition| partition.high_watermark() > 0) {
            tracing::warn!(
                "nothing is stored about how far the logs are synced, as after a restore: this start cannot tell whether they lost records"
            );
        }
        syncs.ends.retain(|(id, partition)| {
            ids.get(id).is_some_and(|&partitions| {
                usize::try_from(*partition).is_ok_and(|partition| partition < partitions)
            })
        });
        syncs.store_ends();
        *registry
            .topics
            .write()
            .unwrap_or_else(PoisonError::into_inner) = topics;
        Ok(registry)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.topics
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// The topic with this id.
    pub(crate) fn by_id(&self, id: Uuid) -> Option<Arc<Topic>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.values().find(|topic| topic.id == id).cloned()
    }

    /// All topics, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Topic>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = topics.values().cloned().collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Bytes of all logs, and how many partitions there are.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.values().fold((0, 0), |(bytes, partitions), topic| {
            (
                bytes + topic.bytes.load(Ordering::Relaxed),
                partitions + topic.partitions.len() as u64,
            )
        })
    }

    /// Whether a topic could be created.
    pub(crate) fn check_new(&self, name: &str, partitions: i32) -> Result<(), TopicError> {
        if !is_topic_name(name) {
            return Err(TopicError::Name);
        }
        if self.get(name).is_some() {
            return Err(TopicError::Exists);
        }
        self.check_growth(0, partitions)
    }

    /// Whether a topic of `now` partitions could get `wanted`.
    pub(crate) fn check_growth(&self, now: usize, wanted: i32) -> Result<(), TopicError> {
        let max = self.partitions_max;
        let all = usize::try_from(self.totals().1).unwrap_or(usize::MAX);
        usize::try_from(wanted)
            .ok()
            .filter(|&wanted| wanted > now && all + (wanted - now) <= max)
            .map(|_| ())
            .ok_or(TopicError::Partitions { max })
    }

    /// Creates a topic; durable when it returns. Blocks.
    pub(crate) fn create(
        &self,
        name: &str,
        partitions: i32,
        config: TopicConfig,
    ) -> Result<Arc<Topic>, TopicError> {
        let _changing = locked(&self.changing);
        self.check_new(name, partitions)?;
        let record = TopicRecord {
            id: *Uuid::new_v4().as_bytes(),
            partitions: partitions.unsigned_abs(),
            config,
        };
        let name: Arc<str> = name.into();
        let bytes = Arc::new(AtomicU64::new(0));
        let partitions = (0..partitions)
            .map(|index| self.open_partition(&name, index, &record, 0, &bytes))
            .collect::<Result<Vec<_>, _>>()
            .and_then(|partitions| self.sync_dirs(&name).map(|()| partitions))
            .map_err(disk)?;
        self.meta.put_topic(&name, &record).map_err(disk)?;
        let topic = topic_of(name, &record, partitions, bytes);
        self.put(Arc::clone(&topic));
        Ok(topic)
    }

    /// Adds partitions to a topic; durable when it returns. Blocks.
    pub(crate) fn grow(&self, name: &str, count: i32) -> Result<(), TopicError> {
        let _changing = locked(&self.changing);
        let topic = self.get(name).ok_or(TopicError::Unknown)?;
        let now = topic.partitions.len();
        self.check_growth(now, count)?;
        let record = TopicRecord {
            id: *topic.id.as_bytes(),
            partitions: count.unsigned_abs(),
            config: topic.config,
        };
        let mut partitions = topic.partitions.clone();
        for index in i32::try_from(now).unwrap_or(i32::MAX)..count {
            let partition = self.open_partition(&topic.name, index, &record, 0, &topic.bytes);
            partitions.push(partition.map_err(disk)?);
        }
        self.sync_dirs(&topic.name).map_err(disk)?;
        self.meta.put_topic(name, &record).map_err(disk)?;
        let (name, bytes) = (Arc::clone(&topic.name), Arc::clone(&topic.bytes));
        self.put(topic_of(name, &record, partitions, bytes));
        Ok(())
    }

    /// Changes a topic's configuration; durable when it returns. Blocks.
    pub(crate) fn configure(&self, name: &str, config: TopicConfig) -> Result<(), TopicError> {
        let _changing = locked(&self.changing);
        let topic = self.get(name).ok_or(TopicError::Unknown)?;
        let record = TopicRecord {
            id: *topic.id.as_bytes(),
            partitions: u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX),
            config,
        };
        self.meta.put_topic(name, &record).map_err(disk)?;
        for partition in &topic.partitions {
            partition.set_config(config);
        }
        let (name, bytes) = (Arc::clone(&topic.name), Arc::clone(&topic.bytes));
        self.put(topic_of(name, &record, topic.partitions.clone(), bytes));
        Ok(())
    }

    /// Deletes a topic. Blocks.
    pub(crate) fn delete(&self, name: &str) -> Result<(), TopicError> {
        let _changing = locked(&self.changing);
        let topic = self.get(name).ok_or(TopicError::Unknown)?;
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        topics.remove(name);
        drop(topics);
        for partition in &topic.partitions {
            partition.delete();
        }
        let id = *topic.id.as_bytes();
        self.limits.syncs.ends.retain(|(known, _)| *known != id);
        // Before the files go: a start after a crash in between must not miss them.
        self.limits.syncs.store_ends();
        // Log before list: no log is ever taken for that of another topic of the same name.
        let grave = self.graves.join(Uuid::new_v4().simple().to_string());
        match fs::rename(self.logs.join(name), &grave) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(disk(error)),
            _ => {}
        }
        self.meta
            .remove_topic(name, *topic.id.as_bytes())
            .map_err(disk)?;
        tracing::info!(topic = name, "deleted a topic");
        match fs::remove_dir_all(&grave) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %grave.display(), "a deleted topic's files remain until the next start");
            }
            _ => {}
        }
        Ok(())
    }

    /// Passes all topics to `read`, by name. None is created, changed or deleted in the meantime.
    /// Blocks.
    pub(crate) fn while_unchanged<T>(&self, read: impl FnOnce(&[Arc<Topic>]) -> T) -> T {
        let _changing = locked(&self.changing);
        read(&self.all())
    }

    /// Applies retention to every partition. Blocks.
    pub(crate) fn apply_retention(&self) {
        self.apply_retention_at(self.run_time.now_ms());
    }

    fn apply_retention_at(&self, now_ms: u64) {
        let mut known = locked(&self.ages);
        let mut ages = HashMap::with_capacity(known.len());
        let mut changed = Vec::new();
        for topic in self.all() {
            for partition in &topic.partitions {
                let key = (topic.id, partition.index);
                let before = known.get(&key).cloned().unwrap_or_default();
                let mut now = before.clone();
                if let Err(error) = partition.apply_retention(&mut now, now_ms) {
                    tracing::warn!(%error, topic = %topic.name, partition = partition.index, "retention failed");
                }
                if now != before {
                    changed.push(key);
                }
                ages.insert(key, now);
            }
        }
        *known = ages;
        // Records nothing for a topic that is deleted in the meantime.
        let _changing = locked(&self.changing);
        let changed = changed.iter().filter(|(id, _)| self.by_id(*id).is_some());
        let changed = changed.map(|key| (*key.0.as_bytes(), key.1, &known[key]));
        if let Err(error) = self.meta.put_ages(now_ms, changed) {
            tracing::warn!(%error, "could not store the ages of segments; after a restart they count as younger");
        }
    }

    /// Syncs and closes every log, also after one has failed. Blocks.
    pub(crate) fn close(&self) -> Result<(), LogError> {
        let mut outcome = Ok(());
        for partition in self.all().iter().flat_map(|topic| &topic.partitions) {
            outcome = outcome.and(partition.close());
        }
        self.limits.syncs.store_ends();
        outcome
    }

    fn put(&self, topic: Arc<Topic>) {
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        topics.insert(Arc::clone(&topic.name), topic);
    }

    fn open_partition(
        &self,
        name: &Arc<str>,
        index: i32,
        record: &TopicRecord,
        log_start: i64,
        bytes: &Arc<AtomicU64>,
    ) -> Result<Arc<Partition>, LogError> {
        Partition::open(
            Arc::clone(name),
            (record.id, index),
            partition_dir(&self.logs, name, index),
            record.config,
            log_start,
            Arc::clone(bytes),
            self.limits.clone(),
        )
        .map(Arc::new)
    }

    /// Corrects the stored log start of a partition that lost records from its end, as a topic that
    /// is not synced may in a power loss: else the next start would hide what is appended below it.
    fn lower_log_start(&self, partition: &Partition, stored: i64) -> Result<(), MetaError> {
        let log_start = partition.log_start();
        if log_start >= stored {
            return Ok(());
        }
        let (topic, index) = partition.key();
        self.meta.put_log_start(topic, index, log_start)?;
        self.meta.sync()
    }

    fn sync_dirs(&self, name: &str) -> Result<(), LogError> {
        for dir in [self.logs.join(name), self.logs.clone()] {
            let synced = self.limits.disk.sync_dir(&dir);
            synced.map_err(LogError::of("cannot sync", &dir))?;
        }
        Ok(())
    }
}

/// Whether this is a valid name of a topic.
pub(crate) fn is_topic_name(name: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The directory of the logs in a broker's data directory.
pub(crate) fn logs_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("logs")
}

/// The directory of a partition's log.
pub(crate) fn partition_dir(logs: &Path, topic: &str, index: i32) -> PathBuf {
    logs.join(topic).join(index.to_string())
}

fn topic_of(
    name: Arc<str>,
    record: &TopicRecord,
    partitions: Vec<Arc<Partition>>,
    bytes: Arc<AtomicU64>,
) -> Arc<Topic> {
    let (id, config) = (Uuid::from_bytes(record.id), record.config);
    Arc::new(Topic {
        name,
        id,
        config,
        partitions,
        bytes,
    })
}

/// Logs the cause of a failed disk; clients receive only the kind.
fn disk(error: impl std::error::Error) -> TopicError {
    let cause = error.source().map(ToString::to_string);
    tracing::error!(%error, cause, "could not change a topic");
    TopicError::Disk
}

#[cfg(test)]
mod tests;
