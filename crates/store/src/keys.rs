//! The keys of the stores' entries: fixed-width and big-endian, so that their byte order is the
//! order in which entries are listed.

use waybill_engine::{OperationId, PartitionId, Timestamp};

use crate::{LayoutGeneration, LeaseKey, LeaseRole};

/// The length of an index key: index shard, instant, operation.
pub(crate) const INDEX_KEY_LEN: usize = 4 + 8 + 16;

/// The length of an entry's key without its index shard: instant, operation.
pub(crate) const ENTRY_KEY_LEN: usize = 8 + 16;

/// The length of an expiry key: hour, operation.
pub(crate) const EXPIRY_KEY_LEN: usize = 8 + 16;

/// The length of the key of a value that was set aside: operation, instant, part.
pub(crate) const ASIDE_KEY_LEN: usize = 16 + 8 + 1;

/// Microseconds in a slot of the expiry index.
const HOUR_US: i64 = 3_600_000_000;

/// The key of an operation's row.
pub(crate) fn row(id: OperationId) -> [u8; 16] {
    id.0.into_bytes()
}

/// The operation of a key that [`row`] made.
pub(crate) fn read_row(key: &[u8]) -> Option<OperationId> {
    operation(key)
}

/// The key of the layout, among those of the leases.
pub(crate) const LAYOUT: [u8; 1] = [3];

/// The key of the time of retention, among those of the leases.
pub(crate) const RETENTION: [u8; 1] = [4];

/// The key of the reply key, among those of the leases.
pub(crate) const REPLY_KEY: [u8; 1] = [5];

/// The key of a lease. Leases of the first layout keep the keys that they had before there were
/// others.
pub(crate) fn lease(key: LeaseKey) -> Vec<u8> {
    let role = match (key.role, key.generation) {
        (LeaseRole::Scheduler, LayoutGeneration(0)) => 0,
        (LeaseRole::Supervisor, _) => 1,
        (LeaseRole::Scheduler, _) => 2,
    };
    let mut bytes = vec![role];
    if role == 2 {
        bytes.extend_from_slice(&key.generation.0.to_be_bytes());
    }
    bytes.extend_from_slice(&key.number.to_be_bytes());
    bytes
}

/// A part of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowPart {
    State,
    Created,
}

impl RowPart {
    /// Its name in messages.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Created => "immutable part",
        }
    }
}

/// The key under which an unreadable value is set aside.
pub(crate) fn aside(id: OperationId, at: Timestamp, part: RowPart) -> [u8; ASIDE_KEY_LEN] {
    let mut key = [0; ASIDE_KEY_LEN];
    key[..16].copy_from_slice(id.0.as_bytes());
    key[16..24].copy_from_slice(&ordered(at.0));
    key[24] = match part {
        RowPart::State => 0,
        RowPart::Created => 1,
    };
    key
}

/// The key of a value that exists once per index shard.
pub(crate) fn partition(partition: PartitionId) -> [u8; 4] {
    partition.0.to_be_bytes()
}

/// The partition of a key that [`partition`] made.
pub(crate) fn read_partition(key: &[u8]) -> Option<PartitionId> {
    Some(PartitionId(u32::from_be_bytes(key.try_into().ok()?)))
}

/// The key of an entry in the deadline index or the attention table.
pub(crate) fn index(
    index_shard: PartitionId,
    at: Timestamp,
    id: OperationId,
) -> [u8; INDEX_KEY_LEN] {
    let mut key = [0; INDEX_KEY_LEN];
    key[..4].copy_from_slice(&index_shard.0.to_be_bytes());
    key[4..12].copy_from_slice(&ordered(at.0));
    key[12..].copy_from_slice(id.0.as_bytes());
    key
}

/// The key of an entry among those of its index shard.
pub(crate) fn entry(at: Timestamp, id: OperationId) -> [u8; ENTRY_KEY_LEN] {
    let mut key = [0; ENTRY_KEY_LEN];
    key[..8].copy_from_slice(&ordered(at.0));
    key[8..].copy_from_slice(id.0.as_bytes());
    key
}

/// The instant and the operation of a key that [`entry`] made.
pub(crate) fn read_entry(key: &[u8]) -> Option<(Timestamp, OperationId)> {
    let key: &[u8; ENTRY_KEY_LEN] = key.try_into().ok()?;
    Some((Timestamp(read_ordered(&key[..8])?), operation(&key[8..])?))
}

/// Where the index shard after that of a key begins; `None` after the last.
pub(crate) fn next_index_shard(key: &[u8; INDEX_KEY_LEN]) -> Option<[u8; INDEX_KEY_LEN]> {
    let [a, b, c, d, ..] = *key;
    let index_shard = u32::from_be_bytes([a, b, c, d]).checked_add(1)?;
    let mut next = [0; INDEX_KEY_LEN];
    next[..4].copy_from_slice(&index_shard.to_be_bytes());
    Some(next)
}

/// The instant and the operation of a key that [`index`] made.
pub(crate) fn read_index(key: &[u8]) -> Option<(Timestamp, OperationId)> {
    let key: &[u8; INDEX_KEY_LEN] = key.try_into().ok()?;
    Some((
        Timestamp(read_ordered(&key[4..12])?),
        operation(&key[12..])?,
    ))
}

/// The hour of the expiry index that holds `at`.
pub(crate) fn hour(at: Timestamp) -> i64 {
    at.0.div_euclid(HOUR_US)
}

/// The key of an entry in the expiry index.
pub(crate) fn expiry(hour: i64, id: OperationId) -> [u8; EXPIRY_KEY_LEN] {
    let mut key = [0; EXPIRY_KEY_LEN];
    key[..8].copy_from_slice(&ordered(hour));
    key[8..].copy_from_slice(id.0.as_bytes());
    key
}

/// The hour and the operation of a key that [`expiry`] made.
pub(crate) fn read_expiry(key: &[u8]) -> Option<(i64, OperationId)> {
    let key: &[u8; EXPIRY_KEY_LEN] = key.try_into().ok()?;
    Some((read_ordered(&key[..8])?, operation(&key[8..])?))
}

/// Which entries of a table have keys from `first` to `last`, for people.
pub(crate) fn in_words(table: &str, first: &[u8], last: &[u8]) -> String {
    let words = match table {
        "state" | "created" => row_words(first, last),
        "due" | "attention" => index_words(first, last),
        "cursors" => read_partition(first)
            .map(|index_shard| format!("the sweep cursor of index shard {index_shard}")),
        _ => None,
    };
    words.unwrap_or_else(|| format!("the entries with keys from {first:02x?} to {last:02x?}"))
}

fn row_words(first: &[u8], last: &[u8]) -> Option<String> {
    let (first, last) = (read_row(first)?, read_row(last)?);
    Some(match first == last {
        true => format!("operation {first}"),
        false => format!("the operations from {first} to {last}"),
    })
}

fn index_words(first: &[u8], last: &[u8]) -> Option<String> {
    let index_shard = |key: &[u8]| read_partition(key.get(..4)?);
    let ((from, _), (to, _)) = (read_index(first)?, read_index(last)?);
    let (from, to) = (from.as_millis(), to.as_millis());
    let (of_first, of_last) = (index_shard(first)?, index_shard(last)?);
    Some(match of_first == of_last {
        true => {
            format!("the entries of index shard {of_first} from {from} ms to {to} ms since 1970")
        }
        false => format!(
            "the entries from {from} ms since 1970 of index shard {of_first} to {to} ms of index shard {of_last}"
        ),
    })
}

/// A signed number as bytes that sort as it does: big-endian, the sign bit flipped.
fn ordered(value: i64) -> [u8; 8] {
    (value.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

fn read_ordered(bytes: &[u8]) -> Option<i64> {
    let value = u64::from_be_bytes(bytes.try_into().ok()?);
    Some((value ^ (1 << 63)).cast_signed())
}

fn operation(bytes: &[u8]) -> Option<OperationId> {
    Some(OperationId(uuid::Uuid::from_slice(bytes).ok()?))
}

#[cfg(test)]
mod tests {
    use waybill_engine::ShardId;

    use super::*;

    const EDGES: [i64; 7] = [i64::MIN, -HOUR_US, -1, 0, 1, HOUR_US, i64::MAX];

    fn id(n: u128) -> OperationId {
        OperationId(uuid::Uuid::from_u128(n))
    }

    #[test]
    fn index_keys_sort_by_index_shard_then_time_then_operation() {
        let mut keys = Vec::new();
        for index_shard in [0, 1, 255, 256, u32::MAX] {
            for at in EDGES {
                for n in [0, 1, u128::MAX] {
                    keys.push(index(PartitionId(index_shard), Timestamp(at), id(n)));
                }
            }
        }
        assert!(keys.is_sorted());
    }

    #[test]
    fn expiry_keys_sort_by_hour_then_operation() {
        let keys: Vec<_> = EDGES
            .iter()
            .flat_map(|&hour| [expiry(hour, id(1)), expiry(hour, id(2))])
            .collect();
        assert!(keys.is_sorted());
    }

    #[test]
    fn every_key_round_trips() {
        for at in EDGES {
            let key = index(PartitionId(7), Timestamp(at), id(42));
            assert_eq!(read_index(&key), Some((Timestamp(at), id(42))));
            assert_eq!(read_expiry(&expiry(at, id(42))), Some((at, id(42))));
        }
        assert_eq!(
            read_partition(&partition(PartitionId(9))),
            Some(PartitionId(9))
        );
    }

    #[test]
    fn the_next_index_shard_begins_after_every_key_of_an_index_shard() {
        let last = index(PartitionId(7), Timestamp(i64::MAX), id(u128::MAX));
        let first = index(PartitionId(8), Timestamp(i64::MIN), id(0));
        assert_eq!(next_index_shard(&last), Some(first));
        let last = index(PartitionId(u32::MAX), Timestamp(0), id(0));
        assert_eq!(next_index_shard(&last), None);
    }

    #[test]
    fn keys_of_different_leases_and_copies_differ() {
        let numbers = [0, 1, 256];
        let of_shards = [0, 1, 256].map(|generation| {
            let generation = LayoutGeneration(generation);
            numbers.map(|number| lease(LeaseKey::scheduler(generation, ShardId(number))))
        });
        let of_index_shards =
            numbers.map(|number| lease(LeaseKey::supervisor(PartitionId(number))));
        assert_eq!(
            of_shards[0][2],
            [0, 0, 0, 1, 0],
            "as the first version had it"
        );
        let leases = [
            &of_shards[..],
            &[of_index_shards],
            &[[LAYOUT, RETENTION, REPLY_KEY].map(|key| key.to_vec())],
        ];
        let asides = [RowPart::State, RowPart::Created]
            .map(|part| EDGES.map(|at| aside(id(1), Timestamp(at), part)));
        let leases: std::collections::HashSet<_> = leases.concat().concat().into_iter().collect();
        let asides: std::collections::HashSet<_> = asides.concat().into_iter().collect();
        assert_eq!((leases.len(), asides.len()), (15, 2 * EDGES.len()));
    }

    #[test]
    fn a_key_of_another_length_is_refused() {
        for len in 0..64_usize {
            let key = vec![7; len];
            assert_eq!(read_index(&key).is_some(), len == INDEX_KEY_LEN);
            assert_eq!(read_expiry(&key).is_some(), len == EXPIRY_KEY_LEN);
            assert_eq!(read_partition(&key).is_some(), len == 4);
        }
    }
}
