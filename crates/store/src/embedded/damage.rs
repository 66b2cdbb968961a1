//! Reads past damaged blocks.
//!
//! A block of a table on disk carries a checksum, and the key-value store refuses to read one that
//! does not match. What must hold here:
//!
//! * A damaged block makes only its own entries unreadable. A read of one key fails for that key; a
//!   walk continues with the first key after the block.
//! * Skipped entries are recorded, and logged once with the file that holds them.
//!
//! The key-value store does not report where a block ends, so [`Walk`] finds the end by trial: it
//! halves the key space. Between the same two keys it reads the other files one by one. Entries in
//! memory are skipped there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::{RangeBounds, RangeInclusive};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fjall::{AbstractTree, Error, Keyspace, LsmError, Readable, Snapshot, UserKey};
use tokio::sync::Notify;

use super::tables::failed;
use crate::{DamageReport, DamagedPart, StoreError, keys};

/// `EIO`: what the operating system reports for a sector that it cannot read.
const EIO: i32 = 5;

/// The description of damage if an error is caused by damaged data; `None` for other errors, such
/// as too many open files.
pub(super) fn cause(error: &Error) -> Option<String> {
    let text = match error {
        Error::Storage(LsmError::Io(error)) | Error::Io(error) => return io_cause(error),
        Error::Storage(LsmError::ChecksumMismatch { got, expected }) => {
            format!("a block has checksum {got}, not {expected}")
        }
        Error::Storage(LsmError::InvalidTag((what, tag))) | Error::InvalidTag((what, tag)) => {
            format!("{tag} is not a valid {what}")
        }
        Error::Storage(LsmError::InvalidHeader(what)) => {
            format!("the header of a {what} is invalid")
        }
        Error::Storage(LsmError::InvalidTrailer) | Error::InvalidTrailer => {
            "the trailer of a block is invalid".to_owned()
        }
        Error::Storage(LsmError::Decompress(_)) | Error::Decompress(_) => {
            "a block cannot be decompressed".to_owned()
        }
        Error::Storage(LsmError::Utf8(error)) => error.to_string(),
        _ => return None,
    };
    Some(text)
}

fn io_cause(error: &io::Error) -> Option<String> {
    let is_damage = error.raw_os_error() == Some(EIO)
        || matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::NotFound
        );
    is_damage.then(|| error.to_string())
}

/// What stands for the table of what a rebuild left out.
const REBUILD: &str = "rebuild";

/// The damage that was found since the store was opened.
#[derive(Debug, Default)]
pub(super) struct Damages {
    observed: Mutex<Observed>,
    /// Signals that writes are refused.
    refused: Notify,
}

#[derive(Debug, Default)]
struct Observed {
    /// By table and last key.
    parts: BTreeMap<(&'static str, Vec<u8>), Part>,
    more: u64,
    /// Why writes are refused.
    refused: Option<String>,
}

#[derive(Debug)]
struct Part {
    number: usize,
    first: Vec<u8>,
    report: DamagedPart,
}

impl Damages {
    /// All damage, in the order in which it was found.
    pub(super) fn report(&self) -> DamageReport {
        let observed = self.observed();
        let mut parts: Vec<&Part> = observed.parts.values().collect();
        parts.sort_by_key(|part| part.number);
        DamageReport {
            refused: observed.refused.clone(),
            parts: parts.into_iter().map(|part| part.report.clone()).collect(),
            more: observed.more,
        }
    }

    /// How many parts were found.
    pub(super) fn count(&self) -> u64 {
        let observed = self.observed();
        observed.parts.len() as u64 + observed.more
    }

    /// Records that nothing can be written any more, and why; the text ends with what to do.
    pub(super) fn writes_are_refused(&self, cause: &str) {
        let mut observed = self.observed();
        if observed.refused.is_some() {
            return;
        }
        tracing::error!(cause, "the state store no longer accepts writes");
        observed.refused = Some(cause.to_owned());
        drop(observed);
        self.refused.notify_waiters();
    }

    /// Whether writes are refused.
    pub(super) fn are_writes_refused(&self) -> bool {
        self.observed().refused.is_some()
    }

    /// Waits until writes are refused.
    pub(super) async fn refused(&self) -> String {
        loop {
            let notified = self.refused.notified();
            if let Some(cause) = &self.observed().refused {
                return cause.clone();
            }
            notified.await;
        }
    }

    /// Records that the entries from `first` to `last` cannot be read.
    pub(super) fn note(
        &self,
        table: &'static str,
        keyspace: &Keyspace,
        span: RangeInclusive<&[u8]>,
        cause: &str,
    ) {
        let (first, last) = span.into_inner();
        let key = (table, last.to_vec());
        if self.observed().parts.contains_key(&key) {
            return;
        }
        let report = DamagedPart {
            table: Some(table),
            entries: keys::in_words(table, first, last),
            files: files(keyspace, first, last),
            cause: cause.to_owned(),
        };
        let mut observed = self.observed();
        if observed.parts.len() == DamageReport::PARTS_MAX {
            observed.more += 1;
            return;
        }
        tracing::error!(
            table,
            entries = report.entries,
            files = ?report.files,
            cause,
            "skipped damaged entries of the state store"
        );
        let part = Part {
            number: observed.parts.len(),
            first: first.to_vec(),
            report,
        };
        observed.parts.insert(key, part);
    }

    /// Records that a rebuild has left out parts of the operations in the file `list`: `count` says
    /// how many these are, or why that is unknown.
    pub(super) fn note_lost(&self, list: &Path, count: &str) {
        let file = list.display().to_string();
        let report = DamagedPart {
            table: None,
            entries: format!("the operations in {file} ({count})"),
            files: vec![file],
            cause: "the store was rebuilt without its damaged blocks; when the operations are settled, \
                    remove the file and restart the process"
                .to_owned(),
        };
        let mut observed = self.observed();
        let part = Part {
            number: observed.parts.len(),
            first: Vec::new(),
            report,
        };
        let key = (REBUILD, Vec::new());
        observed.parts.insert(key, part);
    }

    /// The last key of the known damage that includes `key`.
    fn known_end(&self, table: &'static str, key: &[u8]) -> Option<Vec<u8>> {
        let observed = self.observed();
        let mut behind = observed.parts.range((table, key.to_vec())..);
        let ((of, last), part) = behind.next()?;
        (*of == table && part.first.as_slice() <= key).then(|| last.clone())
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files of a table in which entries between two keys cannot be read. If all of them can be
/// read now, those that may hold such entries.
fn files(keyspace: &Keyspace, first: &[u8], last: &[u8]) -> Vec<String> {
    let version = keyspace.tree.current_version();
    let holding = version.iter_tables().filter(|table| {
        let range = &table.metadata.key_range;
        **range.min() <= *last && **range.max() >= *first
    });
    let (mut damaged, mut others) = (Vec::new(), Vec::new());
    for table in holding {
        let mut items = table.range(UserKey::from(first)..=UserKey::from(last));
        let path = table.path.display().to_string();
        match items.any(|item| item.is_err()) {
            true => damaged.push(path),
            false => others.push(path),
        }
    }
    if damaged.is_empty() { others } else { damaged }
}

/// The damaged files of a table that may hold entries from `key` on; all that may hold such
/// entries, if none of them is damaged now.
pub(super) fn files_from(keyspace: &Keyspace, key: Option<&[u8]>) -> Vec<String> {
    let version = keyspace.tree.current_version();
    let ends = version.iter_tables();
    let last = ends.map(|table| table.metadata.key_range.max()).max();
    last.map_or_else(Vec::new, |last| {
        files(keyspace, key.unwrap_or_default(), last)
    })
}

/// Visits every key between two keys in the files of a table whose entry can be read, deleted ones
/// included. Each file is read alone, so that a damaged block hides nothing of the others. A key
/// may come several times.
pub(super) fn each_key_of_files(
    table: &Keyspace,
    span: impl RangeBounds<UserKey> + Clone + Send,
    mut visit: impl FnMut(UserKey) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for file in table.tree.current_version().iter_tables() {
        // After a damaged block the iterator continues with the next one; after a damaged index it
        // returns the same error for ever.
        let mut blocks = 0..file.metadata.data_block_count;
        for entry in file.range(span.clone()) {
            match entry.map_err(Error::from) {
                Ok(entry) => visit(entry.key.user_key)?,
                Err(error) if cause(&error).is_some() => {
                    if blocks.next().is_none() {
                        break;
                    }
                }
                Err(error) => return Err(failed("reading a damaged store")(error)),
            }
        }
    }
    Ok(())
}

/// In which order keys are walked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Ascending,
    Descending,
}

/// The readable keys of a table between two keys, in order. All keys of the table
/// are as long as the two.
pub(super) struct Walk {
    damages: Arc<Damages>,
    snapshot: Snapshot,
    table: &'static str,
    keyspace: Keyspace,
    order: Order,
    /// The range that was left when `items` was made, both ends included.
    first: Vec<u8>,
    last: Vec<u8>,
    items: fjall::Iter,
    /// The last key that `items` returned.
    given: Option<UserKey>,
    /// Keys that precede `items`.
    before: VecDeque<UserKey>,
    is_over: bool,
}

impl Walk {
    pub(super) fn new(
        damages: &Arc<Damages>,
        snapshot: &Snapshot,
        (table, keyspace): (&'static str, &Keyspace),
        span: RangeInclusive<&[u8]>,
        order: Order,
    ) -> Self {
        let (first, last) = span.into_inner();
        let is_over = first > last;
        Self {
            damages: Arc::clone(damages),
            snapshot: snapshot.clone(),
            table,
            keyspace: keyspace.clone(),
            order,
            first: first.to_vec(),
            last: last.to_vec(),
            // A range that ends before it begins is none.
            items: match is_over {
                true => snapshot.range(keyspace, last..=last),
                false => snapshot.range(keyspace, first..=last),
            },
            given: None,
            before: VecDeque::new(),
            is_over,
        }
    }

    /// Skips the next damage and continues after it. Returns whether anything is left.
    fn pass_over(&mut self, cause: &str) -> Result<bool, StoreError> {
        if let Some(given) = self.given.take() {
            let (end, next) = match self.order {
                Order::Ascending => (&mut self.first, successor(&given)),
                Order::Descending => (&mut self.last, predecessor(&given)),
            };
            match next {
                Some(next) => *end = next,
                None => return Ok(false),
            }
        }
        if self.first > self.last {
            return Ok(false);
        }
        let goes_on = match self.order {
            Order::Ascending => self.pass_over_upwards(cause)?,
            Order::Descending => self.pass_over_downwards(cause)?,
        };
        if goes_on && self.first <= self.last {
            let range = self.first.as_slice()..=self.last.as_slice();
            self.items = self.snapshot.range(&self.keyspace, range);
            return Ok(true);
        }
        // Nothing is left except what was read before the damage.
        self.items = self
            .snapshot
            .range(&self.keyspace, [].as_slice()..=[].as_slice());
        Ok(!self.before.is_empty())
    }

    /// Returns whether there is anything above the damage.
    fn pass_over_upwards(&mut self, cause: &str) -> Result<bool, StoreError> {
        let end = match self.damages.known_end(self.table, &self.first) {
            Some(end) => end.min(self.last.clone()),
            None => self.damaged_up_to()?,
        };
        let readable = last_that(self.first.len(), |key| {
            if key < self.first.as_slice() || key > end.as_slice() {
                return Ok(key < self.first.as_slice());
            }
            Ok(self.keys(&self.first, key)?.is_some())
        })?;
        let mut begin = self.first.clone();
        if let Some(readable) = readable.filter(|key| *key >= self.first) {
            let keys = self.keys(&self.first, &readable)?;
            self.before.extend(keys.into_iter().flatten());
            begin = successor(&readable).unwrap_or(readable);
        }
        if let Some(key) = self.alone(&begin)? {
            begin = successor(&key).unwrap_or_else(|| key.to_vec());
            self.before.push_back(key);
        }
        self.note(&begin, &end, cause);
        self.before.extend(self.hidden(&begin, &end)?);
        let next = successor(&end);
        let is_any = next.is_some();
        self.first = next.unwrap_or(end);
        Ok(is_any)
    }

    /// Returns whether there is anything below the damage.
    fn pass_over_downwards(&mut self, cause: &str) -> Result<bool, StoreError> {
        let next = self.damaged_down_to()?;
        let mut begin = match &next {
            Some(next) => successor(next).unwrap_or_else(|| next.clone()),
            None => self.first.clone(),
        };
        let lowest = self.alone(&begin)?;
        if let Some(key) = &lowest {
            begin = successor(key).unwrap_or_else(|| key.to_vec());
        }
        let damaged = last_that(self.last.len(), |key| {
            if key <= begin.as_slice() || key > self.last.as_slice() {
                return Ok(key <= begin.as_slice());
            }
            Ok(self.keys(key, &self.last)?.is_none())
        })?;
        let end = damaged.unwrap_or_else(|| begin.clone());
        if let Some(readable) = successor(&end).filter(|key| *key <= self.last) {
            let keys = self.keys(&readable, &self.last)?;
            self.before.extend(keys.into_iter().flatten().rev());
        }
        self.note(&begin, &end, cause);
        let hidden = self.hidden(&begin, &end)?;
        self.before.extend(hidden.into_iter().rev());
        self.before.extend(lowest);
        let is_any = next.is_some();
        self.last = next.unwrap_or(begin);
        Ok(is_any)
    }

    /// The readable keys between two keys that damage hides from a walk over all files at once, in
    /// order.
    fn hidden(&self, first: &[u8], last: &[u8]) -> Result<BTreeSet<UserKey>, StoreError> {
        let mut hidden = BTreeSet::new();
        if first > last {
            return Ok(hidden);
        }
        let span = UserKey::from(first)..=UserKey::from(last);
        each_key_of_files(&self.keyspace, span, |key| {
            if !hidden.contains(&key) && self.alone(&key)?.is_some() {
                hidden.insert(key);
            }
            Ok(())
        })?;
        Ok(hidden)
    }

    /// A key that can be read alone, though no range that ends with it can: the last one before a
    /// damaged block.
    fn alone(&self, key: &[u8]) -> Result<Option<UserKey>, StoreError> {
        match self.snapshot.get(&self.keyspace, key) {
            Ok(value) => Ok(value.map(|_| UserKey::from(key))),
            Err(error) if cause(&error).is_some() => Ok(None),
            Err(error) => Err(failed("scanning a table")(error)),
        }
    }

    /// The keys of a range; `None` if any of it is damaged. (Damage that is read ahead of a key
    /// makes the key unreadable in a range, too.)
    fn keys(&self, first: &[u8], last: &[u8]) -> Result<Option<Vec<UserKey>>, StoreError> {
        let mut keys = Vec::new();
        for item in self.snapshot.range(&self.keyspace, first..=last) {
            match item.key() {
                Ok(key) => keys.push(key),
                Err(error) if cause(&error).is_some() => return Ok(None),
                Err(error) => return Err(failed("scanning a table")(error)),
            }
        }
        Ok(Some(keys))
    }

    fn note(&self, first: &[u8], last: &[u8], cause: &str) {
        self.damages
            .note(self.table, &self.keyspace, first..=last, cause);
    }

    /// The last key from which on no entry can be found upwards.
    fn damaged_up_to(&self) -> Result<Vec<u8>, StoreError> {
        let end = last_that(self.first.len(), |key| {
            if key <= self.first.as_slice() {
                return Ok(true);
            }
            if key > self.last.as_slice() {
                return Ok(false);
            }
            let range = key..=self.last.as_slice();
            is_damaged(self.snapshot.range(&self.keyspace, range).next())
        })?;
        Ok(end.unwrap_or_else(|| self.first.clone()))
    }

    /// The last key from which on an entry can be found downwards again; `None` if there is none.
    fn damaged_down_to(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let next = last_that(self.last.len(), |key| {
            if key < self.first.as_slice() {
                return Ok(true);
            }
            if key >= self.last.as_slice() {
                return Ok(false);
            }
            let range = self.first.as_slice()..=key;
            let found = self.snapshot.range(&self.keyspace, range).next_back();
            Ok(!is_damaged(found)?)
        })?;
        Ok(next.filter(|next| *next >= self.first))
    }
}

impl Iterator for Walk {
    type Item = Result<UserKey, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over {
            if let Some(key) = self.before.pop_front() {
                return Some(Ok(key));
            }
            let item = match self.order {
                Order::Ascending => self.items.next(),
                Order::Descending => self.items.next_back(),
            };
            let error = match item.map(fjall::Guard::key) {
                None => break,
                Some(Ok(key)) => {
                    self.given = Some(key.clone());
                    return Some(Ok(key));
                }
                Some(Err(error)) => error,
            };
            let Some(cause) = cause(&error) else {
                self.is_over = true;
                return Some(Err(failed("scanning a table")(error)));
            };
            match self.pass_over(&cause) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.is_over = true;
                    return Some(Err(error));
                }
            }
        }
        self.is_over = true;
        None
    }
}

/// Whether a range returned damage.
fn is_damaged(item: Option<fjall::Guard>) -> Result<bool, StoreError> {
    match item.map(fjall::Guard::key) {
        None | Some(Ok(_)) => Ok(false),
        Some(Err(error)) if cause(&error).is_some() => Ok(true),
        Some(Err(error)) => Err(failed("scanning a table")(error)),
    }
}

/// The largest key of `len` bytes for which `holds`; `None` if it holds for none. Where it holds
/// for a key, it must hold for every smaller one.
fn last_that(
    len: usize,
    mut holds: impl FnMut(&[u8]) -> Result<bool, StoreError>,
) -> Result<Option<Vec<u8>>, StoreError> {
    let mut key = vec![0; len];
    if !holds(&key)? {
        return Ok(None);
    }
    for at in 0..len {
        for bit in (0..8).rev() {
            key[at] |= 1 << bit;
            if !holds(&key)? {
                key[at] &= !(1 << bit);
            }
        }
    }
    Ok(Some(key))
}

/// The next key of the same length; `None` after the last.
fn successor(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(next);
        }
    }
    None
}

/// The key before it of the same length; `None` before the first.
fn predecessor(key: &[u8]) -> Option<Vec<u8>> {
    let mut before = key.to_vec();
    for byte in before.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != u8::MAX {
            return Some(before);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_readable_key_is_found() {
        for end in [[0, 0], [0, 1], [0, 255], [1, 0], [127, 200], [255, 255]] {
            let found = last_that(2, |key| Ok(key <= end.as_slice())).unwrap();
            assert_eq!(found.as_deref(), Some(end.as_slice()));
        }
        assert_eq!(last_that(2, |_| Ok(false)).unwrap(), None);
    }

    #[test]
    fn neighbours_of_a_key_carry_and_end_at_the_limits() {
        assert_eq!(successor(&[1, 255]).as_deref(), Some(&[2, 0][..]));
        assert_eq!(predecessor(&[2, 0]).as_deref(), Some(&[1, 255][..]));
        assert_eq!(successor(&[255, 255]), None);
        assert_eq!(predecessor(&[0, 0]), None);
    }

    #[test]
    fn an_io_error_is_not_damage() {
        let damaged = [
            Error::Io(io::Error::from_raw_os_error(EIO)),
            Error::Io(io::ErrorKind::UnexpectedEof.into()),
            Error::Storage(LsmError::InvalidTrailer),
        ];
        assert!(damaged.iter().all(|error| cause(error).is_some()));
        // Too many open files.
        let machine = [Error::Io(io::Error::from_raw_os_error(24)), Error::Poisoned];
        assert!(machine.iter().all(|error| cause(error).is_none()));
    }
}
