//! The broker's metadata: topics, log starts, producer ids and group offsets, in an embedded
//! key-value store.
//!
//! Topics and blocks of producer ids are synced before they are used. Group offsets and log starts
//! survive the death of the process. After a power loss they may be up to ten seconds old:
//! consumers then repeat records, and logs begin earlier.

mod store;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fjall::{Keyspace, PersistMode, Readable, Snapshot};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;
use waybill_disk::keyspaces;

use self::store::{Reopening, Store};
use crate::retention::SegmentAges;
use crate::{TopicConfig, locked};

/// Producer ids are taken from the store in blocks.
const PRODUCER_ID_BLOCK: i64 = 1_000;

const CLUSTER_ID: &[u8] = b"cluster-id";
const LOGIN_SECRET: &[u8] = b"login-secret";
const NEXT_PRODUCER_ID: &[u8] = b"next-producer-id";
const RUN_TIME: &[u8] = b"run-time";
/// How far producer ids skip ahead when a backup is restored: further than any process gets.
const PRODUCER_ID_LEAP: i64 = 1 << 40;
pub(crate) const TOPIC_PREFIX: &[u8] = b"topic/";
const LOG_START_PREFIX: &[u8] = b"start/";
const AGES_PREFIX: &[u8] = b"ages/";

/// Why a metadata operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MetaError {
    #[error("cannot {action} the broker's metadata in {path}")]
    Store {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the broker's metadata in {path} holds a value that cannot be read: {key}")]
    Corrupt { path: PathBuf, key: String },
}

/// A topic as it is stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TopicRecord {
    pub(crate) id: [u8; 16],
    pub(crate) partitions: u32,
    pub(crate) config: TopicConfig,
}

/// A committed offset of a consumer group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct CommittedOffset {
    pub(crate) offset: i64,
    pub(crate) leader_epoch: i32,
    pub(crate) metadata: String,
}

pub(crate) struct Meta {
    path: PathBuf,
    store: Reopening,
    producer_ids: Mutex<std::ops::Range<i64>>,
    stored_groups: Mutex<StoredGroups>,
}

/// How many groups have committed offsets.
struct StoredGroups {
    at_most: usize,
    /// There may be fewer: a group was removed, or was counted and did not commit.
    is_outdated: bool,
}

impl Meta {
    pub(crate) fn open(path: &Path) -> Result<Self, MetaError> {
        let failed = |source| MetaError::Store {
            action: "open",
            path: path.to_owned(),
            source,
        };
        Ok(Self {
            path: path.to_owned(),
            store: Reopening::open(path).map_err(failed)?,
            producer_ids: Mutex::new(0..0),
            // Unknown until they are counted.
            stored_groups: Mutex::new(StoredGroups {
                at_most: usize::MAX,
                is_outdated: true,
            }),
        })
    }

    /// The cluster's id, made at the first start.
    pub(crate) fn cluster_id(&self) -> Result<String, MetaError> {
        if let Some(id) = self.get(&self.store()?.cluster, CLUSTER_ID)? {
            return Ok(id);
        }
        let id = Uuid::new_v4().simple().to_string();
        self.put_synced(CLUSTER_ID, &id)?;
        Ok(id)
    }

    /// The secret that conceals from clients which users exist, made at the first start: two
    /// answers of which one precedes a restart must not differ.
    pub(crate) fn login_secret(&self) -> Result<[u8; 32], MetaError> {
        if let Some(secret) = self.get(&self.store()?.cluster, LOGIN_SECRET)? {
            return Ok(secret);
        }
        let mut secret = [0; 32];
        let (first, second) = secret.split_at_mut(16);
        first.copy_from_slice(Uuid::new_v4().as_bytes());
        second.copy_from_slice(Uuid::new_v4().as_bytes());
        self.put_synced(LOGIN_SECRET, &secret)?;
        Ok(secret)
    }

    /// A producer id that was never given out before.
    pub(crate) fn next_producer_id(&self) -> Result<i64, MetaError> {
        let mut block = locked(&self.producer_ids);
        if let Some(id) = block.next() {
            return Ok(id);
        }
        let store = self.store()?;
        let first: i64 = self.get(&store.cluster, NEXT_PRODUCER_ID)?.unwrap_or(0);
        drop(store);
        let end = first + PRODUCER_ID_BLOCK;
        self.put_synced(NEXT_PRODUCER_ID, &end)?;
        *block = first + 1..end;
        Ok(first)
    }

    /// Records that this is a copy of another broker's metadata. That broker's producers may
    /// continue with ids that it has issued since.
    pub(crate) fn note_restored(&self) -> Result<(), MetaError> {
        let store = self.store()?;
        let first: i64 = self.get(&store.cluster, NEXT_PRODUCER_ID)?.unwrap_or(0);
        drop(store);
        self.put_synced(NEXT_PRODUCER_ID, &first.saturating_add(PRODUCER_ID_LEAP))
    }

    /// How many milliseconds brokers had run on this store when it was last recorded.
    pub(crate) fn run_time_ms(&self) -> Result<u64, MetaError> {
        Ok(self.get(&self.store()?.cluster, RUN_TIME)?.unwrap_or(0))
    }

    /// The ages of a partition's segments, as last recorded.
    pub(crate) fn ages(&self, topic: [u8; 16], partition: i32) -> Result<SegmentAges, MetaError> {
        let key = partition_key(AGES_PREFIX, topic, partition);
        Ok(self.get(&self.store()?.cluster, &key)?.unwrap_or_default())
    }

    /// Records how long brokers have run and which ages changed. Syncs all metadata, offsets
    /// included. After a power loss both may be slightly older, which makes segments younger.
    pub(crate) fn put_ages<'a>(
        &self,
        run_time_ms: u64,
        changed: impl Iterator<Item = ([u8; 16], i32, &'a SegmentAges)>,
    ) -> Result<(), MetaError> {
        keyspaces::copy(&self.path);
        let store = self.store()?;
        let mut batch = store.database.batch();
        batch.insert(&store.cluster, RUN_TIME, self.encode(&run_time_ms)?);
        for (topic, partition, ages) in changed {
            let key = partition_key(AGES_PREFIX, topic, partition);
            batch.insert(&store.cluster, key, self.encode(ages)?);
        }
        self.wrote(store.commit(batch, PersistMode::SyncData))
    }

    /// All topics.
    pub(crate) fn topics(&self) -> Result<Vec<(String, TopicRecord)>, MetaError> {
        let mut topics = Vec::new();
        for entry in self.store()?.cluster.prefix(TOPIC_PREFIX) {
            let (key, value) = entry.into_inner().map_err(self.failed("read"))?;
            let name = String::from_utf8_lossy(&key[TOPIC_PREFIX.len()..]).into_owned();
            topics.push((name, self.decode(&key, &value)?));
        }
        Ok(topics)
    }

    /// Writes a topic; durable when it returns.
    pub(crate) fn put_topic(&self, name: &str, topic: &TopicRecord) -> Result<(), MetaError> {
        self.put_synced(&topic_key(name), topic)
    }

    /// Removes a topic with its log starts, ages and committed offsets; durable when it returns.
    pub(crate) fn remove_topic(&self, name: &str, id: [u8; 16]) -> Result<(), MetaError> {
        let store = self.store()?;
        let mut batch = store.database.batch();
        batch.remove(&store.cluster, topic_key(name));
        for prefix in [LOG_START_PREFIX, AGES_PREFIX] {
            for entry in store.cluster.prefix([prefix, &id].concat()) {
                batch.remove(&store.cluster, entry.key().map_err(self.failed("read"))?);
            }
        }
        for entry in store.offsets.iter() {
            let key = entry.key().map_err(self.failed("read"))?;
            if split_offset_key(&key).is_some_and(|(_, topic, _)| topic == name) {
                batch.remove(&store.offsets, key);
            }
        }
        self.wrote(store.commit(batch, PersistMode::SyncAll))?;
        locked(&self.stored_groups).is_outdated = true;
        Ok(())
    }

    /// Where the log of a partition was made to start, if it was.
    pub(crate) fn log_start(&self, topic: [u8; 16], partition: i32) -> Result<i64, MetaError> {
        Ok(self
            .get(
                &self.store()?.cluster,
                &partition_key(LOG_START_PREFIX, topic, partition),
            )?
            .unwrap_or(0))
    }

    /// Stores where the log of a partition starts.
    pub(crate) fn put_log_start(
        &self,
        topic: [u8; 16],
        partition: i32,
        offset: i64,
    ) -> Result<(), MetaError> {
        let value = self.encode(&offset)?;
        let key = partition_key(LOG_START_PREFIX, topic, partition);
        let store = self.store()?;
        let insert = || store.cluster.insert(key, value);
        self.wrote(store.synced.commit(insert))
    }

    /// Whether a group may commit offsets: it has some, or fewer than `groups_max` groups have.
    pub(crate) fn takes_group(&self, group: &str, groups_max: usize) -> Result<bool, MetaError> {
        let mut own = self.store()?.offsets.prefix(offset_prefix(group));
        if own.next().is_some() {
            return Ok(true);
        }
        let mut groups = locked(&self.stored_groups);
        if groups.at_most >= groups_max && groups.is_outdated {
            self.count(&mut groups)?;
        }
        let takes = groups.at_most < groups_max;
        if takes {
            groups.at_most += 1;
            groups.is_outdated = true;
        }
        Ok(takes)
    }

    /// How many groups have committed offsets, at most; `None` before they are first counted.
    pub(crate) fn stored_groups(&self) -> Option<usize> {
        let at_most = locked(&self.stored_groups).at_most;
        (at_most < usize::MAX).then_some(at_most)
    }

    /// Counts the groups with committed offsets again if some may have been removed. Blocks.
    pub(crate) fn recount_groups(&self) -> Result<(), MetaError> {
        let mut groups = locked(&self.stored_groups);
        if groups.is_outdated {
            self.count(&mut groups)?;
        }
        Ok(())
    }

    fn count(&self, groups: &mut StoredGroups) -> Result<(), MetaError> {
        *groups = StoredGroups {
            at_most: self.groups()?.len(),
            is_outdated: false,
        };
        Ok(())
    }

    /// Writes committed offsets of a group: all or none.
    pub(crate) fn commit_offsets<'a>(
        &self,
        group: &str,
        offsets: impl Iterator<Item = (&'a str, i32, CommittedOffset)>,
    ) -> Result<(), MetaError> {
        let store = self.store()?;
        let mut batch = store.database.batch();
        for (topic, partition, committed) in offsets {
            let value = self.encode(&committed)?;
            batch.insert(&store.offsets, offset_key(group, topic, partition), value);
        }
        self.wrote(store.commit(batch, PersistMode::Buffer))
    }

    /// The committed offset of a group for one partition.
    pub(crate) fn offset(
        &self,
        group: &str,
        topic: &str,
        partition: i32,
    ) -> Result<Option<CommittedOffset>, MetaError> {
        self.get(&self.store()?.offsets, &offset_key(group, topic, partition))
    }

    /// All committed offsets of a group.
    pub(crate) fn offsets(
        &self,
        group: &str,
    ) -> Result<Vec<(String, i32, CommittedOffset)>, MetaError> {
        let mut found = Vec::new();
        for entry in self.store()?.offsets.prefix(offset_prefix(group)) {
            let (key, value) = entry.into_inner().map_err(self.failed("read"))?;
            if let Some((_, topic, partition)) = split_offset_key(&key) {
                found.push((topic.to_owned(), partition, self.decode(&key, &value)?));
            }
        }
        Ok(found)
    }

    /// The groups that have committed offsets.
    pub(crate) fn groups(&self) -> Result<Vec<String>, MetaError> {
        let mut groups: Vec<String> = Vec::new();
        for entry in self.store()?.offsets.iter() {
            let key = entry.key().map_err(self.failed("read"))?;
            if let Some((group, _, _)) = split_offset_key(&key)
                && groups.last().is_none_or(|last| last != group)
            {
                groups.push(group.to_owned());
            }
        }
        Ok(groups)
    }

    /// Forgets the offsets of a group; `false` if there were none.
    pub(crate) fn remove_group(&self, group: &str) -> Result<bool, MetaError> {
        let store = self.store()?;
        let mut batch = store.database.batch();
        for entry in store.offsets.prefix(offset_prefix(group)) {
            batch.remove(&store.offsets, entry.key().map_err(self.failed("read"))?);
        }
        let found = !batch.is_empty();
        self.wrote(store.commit(batch, PersistMode::Buffer))?;
        locked(&self.stored_groups).is_outdated |= found;
        Ok(found)
    }

    /// Everything as it is now.
    pub(crate) fn snapshot(self: &Arc<Self>) -> Result<MetaSnapshot, MetaError> {
        let store = self.store()?;
        Ok(MetaSnapshot {
            snapshot: store.database.snapshot(),
            store,
            meta: Arc::clone(self),
        })
    }

    /// Writes an entry that was read from a snapshot; `false` if there is no such table. Durable
    /// after the next [`sync`](Self::sync).
    pub(crate) fn put_raw(&self, table: &str, key: &[u8], value: &[u8]) -> Result<bool, MetaError> {
        let store = self.store()?;
        let tables = tables(&store);
        let Some((_, keyspace)) = tables.into_iter().find(|(name, _)| *name == table) else {
            return Ok(false);
        };
        let insert = || keyspace.insert(key, value);
        self.wrote(store.synced.commit(insert)).map(|()| true)
    }

    /// Makes everything durable.
    pub(crate) fn sync(&self) -> Result<(), MetaError> {
        let store = self.store()?;
        store
            .synced
            .sync(&store.database)
            .inspect_err(|error| self.store.note(error))
            .map_err(self.failed("sync"))
    }

    fn store(&self) -> Result<Arc<Store>, MetaError> {
        self.store.get().map_err(self.failed("use"))
    }

    fn wrote(&self, result: Result<(), fjall::Error>) -> Result<(), MetaError> {
        result
            .inspect_err(|error| self.store.note(error))
            .map_err(self.failed("write"))
    }

    fn get<T: DeserializeOwned>(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<T>, MetaError> {
        let value = keyspace.get(key).map_err(self.failed("read"))?;
        value.map(|value| self.decode(key, &value)).transpose()
    }

    fn put_synced<T: Serialize>(&self, key: &[u8], value: &T) -> Result<(), MetaError> {
        let value = self.encode(value)?;
        let store = self.store()?;
        let mut batch = store.database.batch();
        batch.insert(&store.cluster, key, value);
        self.wrote(store.commit(batch, PersistMode::SyncAll))
    }

    fn encode<T: Serialize>(&self, value: &T) -> Result<Vec<u8>, MetaError> {
        postcard::to_stdvec(value).map_err(|_| MetaError::Corrupt {
            path: self.path.clone(),
            key: "new value".to_owned(),
        })
    }

    fn decode<T: DeserializeOwned>(&self, key: &[u8], value: &[u8]) -> Result<T, MetaError> {
        postcard::from_bytes(value).map_err(|_| MetaError::Corrupt {
            path: self.path.clone(),
            key: String::from_utf8_lossy(key).into_owned(),
        })
    }

    fn failed(&self, action: &'static str) -> impl Fn(fjall::Error) -> MetaError {
        move |source| MetaError::Store {
            action,
            path: self.path.clone(),
            source: source.into(),
        }
    }
}

/// The store as it was at one instant.
pub(crate) struct MetaSnapshot {
    meta: Arc<Meta>,
    store: Arc<Store>,
    snapshot: Snapshot,
}

impl MetaSnapshot {
    /// Every entry: table, key and value.
    pub(crate) fn entries(
        &self,
    ) -> impl Iterator<Item = Result<(&'static str, Vec<u8>, Vec<u8>), MetaError>> {
        tables(&self.store)
            .into_iter()
            .flat_map(move |(table, keyspace)| {
                self.snapshot.iter(keyspace).map(move |entry| {
                    let (key, value) = entry.into_inner().map_err(self.meta.failed("read"))?;
                    Ok((table, key.to_vec(), value.to_vec()))
                })
            })
    }
}

fn tables(store: &Store) -> [(&'static str, &Keyspace); 2] {
    [("cluster", &store.cluster), ("offsets", &store.offsets)]
}

fn topic_key(name: &str) -> Vec<u8> {
    [TOPIC_PREFIX, name.as_bytes()].concat()
}

fn partition_key(prefix: &[u8], topic: [u8; 16], partition: i32) -> Vec<u8> {
    [prefix, &topic, &partition.to_be_bytes()].concat()
}

/// Group and topic with their lengths in front, then the partition.
fn offset_key(group: &str, topic: &str, partition: i32) -> Vec<u8> {
    let mut key = offset_prefix(group);
    key.extend_from_slice(topic.as_bytes());
    key.extend_from_slice(&partition.to_be_bytes());
    key
}

fn offset_prefix(group: &str) -> Vec<u8> {
    // A protocol string has at most 2^15 bytes.
    let length = u16::try_from(group.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes(), group.as_bytes()].concat()
}

fn split_offset_key(key: &[u8]) -> Option<(&str, &str, i32)> {
    let (length, rest) = key.split_first_chunk()?;
    let (group, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    let (topic, partition) = rest.split_last_chunk()?;
    let group = std::str::from_utf8(group).ok()?;
    Some((
        group,
        std::str::from_utf8(topic).ok()?,
        i32::from_be_bytes(*partition),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_commit_offsets_up_to_a_number_of_groups() {
        let dir = tempfile::tempdir().unwrap();
        let meta = Meta::open(dir.path()).unwrap();
        let commit = |group: &str| {
            let takes = meta.takes_group(group, 2).unwrap();
            let committed = CommittedOffset {
                offset: 1,
                leader_epoch: -1,
                metadata: String::new(),
            };
            if takes {
                meta.commit_offsets(group, [("orders", 0, committed)].into_iter())
                    .unwrap();
            }
            takes
        };
        let stored = || {
            meta.recount_groups().unwrap();
            meta.stored_groups()
        };
        assert_eq!(meta.stored_groups(), None, "they are not counted yet");
        assert_eq!(stored(), Some(0));
        assert!(commit("a") && commit("b"));
        assert!(!commit("c"));
        assert!(commit("a"), "it has offsets");
        assert_eq!(stored(), Some(2));
        meta.remove_group("b").unwrap();
        assert_eq!(stored(), Some(1));
        assert!(commit("c"));
        assert_eq!(stored(), Some(2));
        assert_eq!(meta.groups().unwrap(), ["a", "c"]);

        // A group that is counted but does not commit takes no place from others.
        meta.remove_group("c").unwrap();
        assert!(meta.takes_group("d", 2).unwrap());
        assert!(commit("e"));
        assert_eq!(stored(), Some(2));
    }

    #[test]
    fn records_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let topic = TopicRecord {
            id: [7; 16],
            partitions: 3,
            config: TopicConfig::default(),
        };
        let committed = CommittedOffset {
            offset: 5,
            leader_epoch: -1,
            metadata: "mark".to_owned(),
        };
        let meta = Meta::open(dir.path()).unwrap();
        let cluster_id = meta.cluster_id().unwrap();
        let login_secret = meta.login_secret().unwrap();
        meta.put_topic("orders", &topic).unwrap();
        meta.put_log_start([7; 16], 2, 40).unwrap();
        let mut ages = SegmentAges::default();
        ages.observe([(0, 40)].into_iter(), 3_000);
        let noted = [([7; 16], 2, &ages)].into_iter();
        meta.put_ages(5_000, noted).unwrap();
        meta.commit_offsets("g", [("orders", 1, committed.clone())].into_iter())
            .unwrap();
        meta.commit_offsets("gg", [("orders", 1, committed.clone())].into_iter())
            .unwrap();
        let first = meta.next_producer_id().unwrap();
        assert_eq!(meta.next_producer_id().unwrap(), first + 1);
        meta.sync().unwrap();
        drop(meta);

        let meta = Meta::open(dir.path()).unwrap();
        assert_eq!(meta.cluster_id().unwrap(), cluster_id);
        assert_eq!(meta.login_secret().unwrap(), login_secret);
        assert_eq!(meta.topics().unwrap(), [("orders".to_owned(), topic)]);
        assert_eq!(meta.log_start([7; 16], 2).unwrap(), 40);
        assert_eq!(meta.log_start([7; 16], 1).unwrap(), 0);
        assert_eq!(meta.run_time_ms().unwrap(), 5_000);
        assert_eq!(meta.ages([7; 16], 2).unwrap(), ages);
        assert_eq!(meta.ages([7; 16], 1).unwrap(), SegmentAges::default());
        assert_eq!(
            meta.offset("g", "orders", 1).unwrap(),
            Some(committed.clone())
        );
        assert_eq!(
            meta.offsets("g").unwrap(),
            [("orders".to_owned(), 1, committed)]
        );
        assert_eq!(meta.groups().unwrap(), ["g", "gg"]);
        assert!(meta.next_producer_id().unwrap() >= first + PRODUCER_ID_BLOCK);
        assert!(meta.remove_group("g").unwrap());
        assert!(!meta.remove_group("g").unwrap());
        meta.remove_topic("orders", [7; 16]).unwrap();
        assert_eq!(meta.topics().unwrap(), []);
        assert_eq!(meta.groups().unwrap(), Vec::<String>::new());
        assert_eq!(meta.log_start([7; 16], 2).unwrap(), 0);
        assert_eq!(meta.ages([7; 16], 2).unwrap(), SegmentAges::default());
    }

    #[test]
    fn a_restored_broker_assigns_no_producer_id_twice() {
        let directory = tempfile::tempdir().unwrap();
        let meta = Meta::open(directory.path()).unwrap();
        let before = meta.next_producer_id().unwrap();
        meta.note_restored().unwrap();
        drop(meta);
        let meta = Meta::open(directory.path()).unwrap();
        let after = meta.next_producer_id().unwrap();
        assert!(after - before >= PRODUCER_ID_LEAP, "{before} {after}");
    }
}
