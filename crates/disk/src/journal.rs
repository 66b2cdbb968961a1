//! Verifies the journals before the key-value store replays them.
//!
//! The key-value store treats the first bytes of a journal that it cannot parse as a torn end: it
//! silently truncates the file there, whatever follows. A byte that changed in the middle would
//! cost every acknowledged row after it. So every journal is verified here first.
//!
//! What must hold: an end is torn only if no valid batch follows it, or if the power may have
//! failed and it was not synced: that leaves unsynced batches out of order. It is then cut off
//! here. Otherwise the store is not opened.
//!
//! A damaged last batch looks like a torn end. `synced.rs` notices if the batch was synced before.
//!
//! A batch is `1 · items u32 · number u64`, its items, and `3 · XXH3 of the items u64 · "FJL" 3`.
//! An item is
//! `2 · kind u8 · compression u8 · table u64 · key length u16 · length u32 · length as stored u32 ·
//! key · value`, or `4 · table u64`. Numbers are little-endian, and each batch has a higher one
//! than the batch before.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::{CheckError, DamagedFile, GiveUp, at, record};

/// The trailer of a batch's end marker.
const TRAILER: &[u8] = b"FJL\x03";
/// A start marker: tag, items, number.
const START_BYTES: usize = 1 + 4 + 8;
/// An end marker: tag, checksum, trailer.
const END_BYTES: usize = 1 + 8 + TRAILER.len();

/// The part of a journal whose batches are whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Journal {
    pub(crate) number: u64,
    /// Where its last batch ends.
    pub(crate) bytes: u64,
    /// The number of its last batch.
    pub(crate) last: Option<u64>,
}

/// Refuses a store if valid batches follow damage in one of its journals, unless `is_unsynced` says
/// of the journal and the last batch before the damage that what follows was not synced. Returns
/// the journals, ordered by number.
///
/// # Errors
///
/// [`CheckError::Damaged`] if one is; [`CheckError::Io`] if one cannot be read.
pub(crate) fn check(
    store: &Path,
    is_unsynced: impl Fn(u64, Option<u64>) -> bool,
) -> Result<Vec<Journal>, CheckError> {
    let mut journals = Vec::new();
    for number in numbers(store).map_err(at(store))? {
        let file = path(store, number);
        let bytes = fs::read(&file).map_err(at(&file))?;
        match read(&bytes) {
            Ok(Batches { bytes, last }) => journals.push(Journal {
                number,
                bytes: bytes as u64,
                last,
            }),
            Err(Damage { before, .. }) if is_unsynced(number, before.last) => {
                tracing::warn!(
                    file = %file.display(),
                    cut_bytes = bytes.len() - before.bytes,
                    "cut off what was not synced before the machine stopped"
                );
                cut(&file, before.bytes as u64).map_err(at(&file))?;
                journals.push(Journal {
                    number,
                    bytes: before.bytes as u64,
                    last: before.last,
                });
            }
            Err(Damage { before, problem }) => {
                let offset = before.bytes;
                return Err(CheckError::Damaged(DamagedFile {
                    file,
                    problem: format!("the batch at offset {offset} cannot be read: {problem}"),
                    give_up: Some(GiveUp::Damaged {
                        offset: offset as u64,
                        record: record::path(store),
                    }),
                }));
            }
        }
    }
    Ok(journals)
}

fn cut(file: &Path, bytes: u64) -> io::Result<()> {
    let file = File::options().write(true).open(file)?;
    file.set_len(bytes)?;
    file.sync_all()
}

/// The file of a journal.
pub(crate) fn path(store: &Path, number: u64) -> PathBuf {
    store.join(format!("{number}.jnl"))
}

/// The numbers of the journals in a store, in their order. The key-value store takes no other files
/// for journals.
pub(crate) fn numbers(store: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(store) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut numbers: Vec<u64> = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".jnl"));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The whole batches that a journal begins with.
#[derive(PartialEq, Eq, Debug)]
struct Batches {
    /// Where they end.
    bytes: usize,
    /// The number of the last one.
    last: Option<u64>,
}

/// Damage of a journal.
#[derive(PartialEq, Eq, Debug)]
struct Damage {
    /// The batches in front of it.
    before: Batches,
    problem: String,
}

/// Reads a journal that is whole, or has a torn end.
///
/// # Errors
///
/// The location of the damage.
fn read(journal: &[u8]) -> Result<Batches, Damage> {
    let (mut at, mut last) = (0, None);
    let found = loop {
        match Batch::read(&journal[at..]) {
            Some(batch) if !batch.is_intact => break "its checksum does not match",
            Some(batch) if last.is_some_and(|last| batch.number <= last) => {
                break "its number is not higher than that of the previous batch";
            }
            Some(batch) => {
                last = Some(batch.number);
                at += batch.bytes;
            }
            None => break "it is not a batch",
        }
    };
    let batches = Batches { bytes: at, last };
    let rest = &journal[at..];
    // Journals are preallocated: zeros follow the last batch.
    if rest.iter().all(|byte| *byte == 0) {
        return Ok(batches);
    }
    let follows = (1..rest.len())
        .find(|&behind| Batch::read(&rest[behind..]).is_some_and(|batch| batch.is_intact));
    let is_whole = Batch::read(rest).is_some();
    let problem = match follows {
        Some(behind) => format!(
            "{found}, and valid batches follow from offset {}",
            at + behind
        ),
        // The key-value store refuses a journal that ends like this.
        None if is_whole => format!("{found}, and it is the last one"),
        None => return Ok(batches),
    };
    Err(Damage {
        before: batches,
        problem,
    })
}

/// A batch at the start of a byte slice.
struct Batch {
    number: u64,
    bytes: usize,
    /// Whether the checksum of its items matches.
    is_intact: bool,
}

impl Batch {
    /// Reads a batch from its start marker to its end marker; `None` if there is none.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (start, rest) = bytes.split_at_checked(START_BYTES)?;
        if start[0] != 1 {
            return None;
        }
        let items = u32::from_le_bytes(start[1..5].try_into().ok()?);
        let number = u64::from_le_bytes(start[5..].try_into().ok()?);
        let mut end = 0;
        for _ in 0..items {
            end += item_bytes(rest.get(end..)?)?;
        }
        let marker = rest.get(end..end + END_BYTES)?;
        if marker[0] != 3 || !marker.ends_with(TRAILER) {
            return None;
        }
        let checksum = u64::from_le_bytes(marker[1..9].try_into().ok()?);
        Some(Self {
            number,
            bytes: START_BYTES + end + END_BYTES,
            is_intact: xxh3_64(&rest[..end]) == checksum,
        })
    }
}

/// The length of the item at the start of a byte slice.
fn item_bytes(bytes: &[u8]) -> Option<usize> {
    const ITEM_BYTES: usize = 1 + 1 + 1 + 8 + 2 + 4 + 4;
    match bytes.first()? {
        2 => {
            let head = bytes.get(..ITEM_BYTES)?;
            let key = u16::from_le_bytes(head[11..13].try_into().ok()?);
            let value = u32::from_le_bytes(head[17..].try_into().ok()?);
            let bytes = ITEM_BYTES + usize::from(key);
            bytes.checked_add(usize::try_from(value).ok()?)
        }
        4 => Some(1 + 8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of one item, as the key-value store writes it.
    fn batch(number: u64, value: &[u8]) -> Vec<u8> {
        let mut item = vec![2, 0, 0];
        item.extend_from_slice(&7_u64.to_le_bytes());
        item.extend_from_slice(&3_u16.to_le_bytes());
        let length = u32::try_from(value.len()).unwrap().to_le_bytes();
        item.extend([length, length].concat());
        item.extend_from_slice(b"key");
        item.extend_from_slice(value);
        let mut batch = vec![1];
        batch.extend_from_slice(&1_u32.to_le_bytes());
        batch.extend_from_slice(&number.to_le_bytes());
        batch.extend_from_slice(&item);
        batch.push(3);
        batch.extend_from_slice(&xxh3_64(&item).to_le_bytes());
        batch.extend_from_slice(TRAILER);
        batch
    }

    /// Where the batches of an undamaged journal end, and the number of the last one.
    fn batches(journal: &[u8]) -> (usize, Option<u64>) {
        let Batches { bytes, last } = read(journal).unwrap();
        (bytes, last)
    }

    #[test]
    fn whole_empty_and_torn_journals_are_not_damaged() {
        let whole = [batch(1, b"one"), batch(2, b"two")].concat();
        let room = vec![0; 100];
        for journal in [
            vec![],
            room.clone(),
            whole.clone(),
            [whole.clone(), room].concat(),
        ] {
            let expected = match journal.starts_with(&whole) {
                true => (whole.len(), Some(2)),
                false => (0, None),
            };
            assert_eq!(batches(&journal), expected);
        }
        // Wherever it ends.
        let first = batch(1, b"one").len();
        for end in 0..whole.len() {
            let expected = match end < first {
                true => (0, None),
                false => (first, Some(1)),
            };
            assert_eq!(batches(&whole[..end]), expected, "{end}");
        }
    }

    #[test]
    fn a_byte_that_changed_in_front_of_a_valid_batch_is_found_where_it_lies() {
        let (first, second) = (batch(5, b"one"), batch(9, b"two"));
        let journal = [&first[..], &second, &batch(12, b"three")].concat();
        for at in first.len()..first.len() + second.len() {
            let mut damaged = journal.clone();
            damaged[at] ^= 0x80;
            let found = read(&damaged).expect_err("it is damaged");
            // The number of the next batch does not reveal what a damaged number was.
            let of_number = first.len() + 5..first.len() + START_BYTES;
            let offsets = [first.len(), first.len() + second.len()];
            assert_eq!(
                found.before.bytes,
                offsets[usize::from(of_number.contains(&at))],
                "{at}"
            );
        }
    }

    #[test]
    fn damage_is_cut_off_if_it_was_not_synced() {
        let dir = tempfile::tempdir().unwrap();
        let (first, mut second) = (batch(5, b"one"), batch(9, b"two"));
        second[20] ^= 0x80;
        let file = path(dir.path(), 3);
        fs::write(&file, [&first[..], &second, &batch(12, b"three")].concat()).unwrap();
        let synced = check(dir.path(), |_, _| false);
        assert!(matches!(synced, Err(CheckError::Damaged(_))), "{synced:?}");
        let is_unsynced = |number, last| (number, last) == (3, Some(5));
        let whole = Journal {
            number: 3,
            bytes: first.len() as u64,
            last: Some(5),
        };
        assert_eq!(check(dir.path(), is_unsynced).unwrap(), [whole]);
        assert_eq!(fs::read(&file).unwrap(), first);
    }
}
