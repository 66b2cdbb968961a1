//! Rebuilds a store that refuses writes because of a damaged block from the data that can be read.
//!
//! The key-value store stops for good when a compaction meets a damaged block: every write fails
//! from then on, and again after each start. So the writer leaves a mark in the directory, and the
//! next open copies the readable data to a new store. The damaged one is kept.
//!
//! What must hold:
//!
//! * **No row reverts to an older state.** A row whose newest state was in the damaged block is
//!   unreadable in the new store, as it was in the old one, even if an older state of it can be
//!   read.
//! * **All or nothing.** Once the new store is complete, a rename puts it in the place of the old
//!   one.
//! * **No readable entry is lost.** Each file of a damaged table is read alone: in a walk over all
//!   files at once a damaged block hides what others have between its keys.
//! * **Nothing is lost silently.** The new store has a list of the operations that are known to
//!   have lost parts ([`LOST_OPERATIONS`]), and so has one that is restored from its backup. Each
//!   opening reports it until it is removed.
//! * **A repaired store is not replaced.** If the damaged file was repaired in the meantime, the
//!   new store is discarded.
//! * **Leases are not guessed.** If one is damaged, the store does not open.
//!
//! Entries of the deadline index and of the attention table in a damaged block are lost. So is an
//! operation that only damaged blocks name.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use fjall::{AbstractTree as _, Keyspace, Readable, Snapshot, UserKey};
use waybill_clock::wall_clock;
use waybill_disk::sync_dir;
use waybill_engine::OperationId;

use super::damage::{self, Damages};
use super::tables::{Tables, failed};
use super::{EmbeddedConfig, EmbeddedRestore};
use crate::{StoreError, codec, keys};

/// The file that asks for a new store.
const MARK: &str = "rebuild";
/// The file in a store that lists the operations that have lost parts, an id per line.
pub const LOST_OPERATIONS: &str = "lost-operations";

/// Requests that the next opening of the store rebuilds it from the readable data.
pub(super) fn ask(store: &Path) -> io::Result<()> {
    File::create(store.join(MARK))?.sync_all()?;
    sync_dir(store)
}

/// Rebuilds the store from its readable data, if that was requested.
///
/// # Errors
///
/// [`StoreError::Corrupt`] if a lease is damaged, [`StoreError::Unavailable`] if the disk fails.
pub(super) fn if_asked(config: &EmbeddedConfig) -> Result<(), StoreError> {
    let io = |error| StoreError::unavailable("creating a new store", error);
    let (store, making, made) = (
        &config.path,
        beside(&config.path, "rebuilding"),
        beside(&config.path, "rebuilt"),
    );
    if made.exists() {
        let has_tables = store.join("keyspaces").exists();
        if !has_tables || !is_intact(config, &made)? {
            take_place(store, &made).map_err(io)?;
            log_rebuilt(store);
            return Ok(());
        }
        fs::remove_dir_all(&made).map_err(io)?;
    }
    if !store.join(MARK).exists() {
        return Ok(());
    }
    if making.exists() {
        fs::remove_dir_all(&making).map_err(io)?;
    }
    let old = Tables::open_idle(config)?;
    let damaged = damaged_tables(&old)?;
    if damaged.is_empty() {
        return fs::remove_file(store.join(MARK)).map_err(io);
    }
    tracing::info!(
        store = %store.display(),
        "rebuilding the damaged state store from its readable data"
    );
    write_new(&old, &damaged, &making).inspect_err(|_| {
        // What is half done takes space that the disk may need.
        let _ = fs::remove_dir_all(&making);
        tracing::error!(
            store = %store.display(),
            "could not rebuild the damaged state store; the rebuild needs as much free space as the store takes"
        );
    })?;
    drop(old);
    fs::rename(&making, &made).map_err(io)?;
    take_place(store, &made).map_err(io)?;
    log_rebuilt(store);
    Ok(())
}

fn log_rebuilt(store: &Path) {
    tracing::error!(
        store = %store.display(),
        "rebuilt the damaged state store from its readable data; the damaged store is kept next to it"
    );
}

/// Writes the list of operations that have lost parts. Durable when it returns.
pub(super) fn list_lost(store: &Path, lost: &BTreeSet<OperationId>) -> io::Result<()> {
    let ids: String = lost.iter().map(|id| format!("{id}\n")).collect();
    let mut list = File::create(store.join(LOST_OPERATIONS))?;
    list.write_all(ids.as_bytes())?;
    list.sync_all()?;
    sync_dir(store)
}

/// Reports the operations that have lost parts. A list that cannot be read is reported as well: it
/// must not keep the store from opening.
pub(super) fn report(store: &Path, damages: &Damages) {
    let list = store.join(LOST_OPERATIONS);
    let count = match fs::read(&list) {
        Ok(ids) => {
            let lines = ids.iter().filter(|byte| **byte == b'\n');
            lines.count().to_string()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => error.to_string(),
    };
    damages.note_lost(&list, &count);
}

/// Whether nothing of the old store is damaged. It could be opened when the new one was made: if it
/// cannot be now, a person decides.
fn is_intact(config: &EmbeddedConfig, made: &Path) -> Result<bool, StoreError> {
    let old = Tables::open_idle(config).inspect_err(|_| {
        tracing::error!(
            store = %config.path.display(),
            rebuilt = %made.display(),
            "cannot open the damaged state store again; move it away to continue with the rebuilt one"
        );
    })?;
    Ok(damaged_tables(&old)?.is_empty())
}

/// The names of the tables with a block that cannot be read. Reads all files.
fn damaged_tables(tables: &Tables) -> Result<Vec<&'static str>, StoreError> {
    let mut damaged = Vec::new();
    for (name, table) in tables.all() {
        if has_damage(table)? {
            damaged.push(name);
        }
    }
    Ok(damaged)
}

/// Whether a file of a table has a block that cannot be read.
fn has_damage(table: &Keyspace) -> Result<bool, StoreError> {
    for file in table.tree.current_version().iter_tables() {
        for item in file.iter() {
            match item.map_err(fjall::Error::from) {
                Ok(_) => {}
                Err(error) if damage::cause(&error).is_some() => return Ok(true),
                Err(error) => return Err(failed("looking for damage")(error)),
            }
        }
    }
    Ok(false)
}

/// Copies the readable data to a new store.
fn write_new(old: &Tables, damaged: &[&str], making: &Path) -> Result<(), StoreError> {
    let mut new = EmbeddedRestore::begin(making)?;
    copy(old, damaged, &mut new)?;
    new.finish().map(|_| ())
}

/// Copies the readable data, and marks lost parts as unreadable.
fn copy(old: &Tables, damaged: &[&str], new: &mut EmbeddedRestore) -> Result<(), StoreError> {
    // Rows in memory can only be read beside those in files. Until the new store is complete, the
    // journal keeps them as well.
    let tables = old
        .all()
        .map(|(name, table)| (name, table, damaged.contains(&name)));
    for (name, table, is_damaged) in tables {
        if name != "leases" && is_damaged {
            let flushed = table.tree.flush_active_memtable(0);
            flushed.map_err(|error| failed("writing out a table")(error.into()))?;
        }
    }
    let snapshot = old.db.snapshot();
    for (name, table, is_damaged) in tables {
        if name == "leases" {
            for entry in snapshot.iter(table) {
                let (key, value) = entry.into_inner().map_err(|error| StoreError::Corrupt {
                    what: "lease",
                    key: format!("table {name}"),
                    cause: damage::cause(&error).unwrap_or_else(|| error.to_string()),
                })?;
                new.put(name, &key, &value)?;
            }
            continue;
        }
        each_key(&snapshot, table, is_damaged, |key| {
            // A damaged value is marked below.
            match read(&snapshot, table, key)?.flatten() {
                Some(value) => new.put(name, key, &value),
                None => Ok(()),
            }
        })?;
    }
    // Every table that names operations shows which rows have parts that are lost.
    for (name, table, is_damaged) in tables {
        each_key(&snapshot, table, is_damaged, |key| {
            let operation: Option<OperationId> = match name {
                "state" | "created" => keys::read_row(key),
                "expiry" => keys::read_expiry(key).map(|(_, operation)| operation),
                "due" | "attention" => keys::read_index(key).map(|(_, operation)| operation),
                _ => None,
            };
            let Some(operation) = operation else {
                return Ok(());
            };
            let row = keys::row(operation);
            for (part, of) in [("state", &old.state), ("created", &old.created)] {
                if read(&snapshot, of, &row)?.is_none() {
                    new.put(part, &row, &codec::LOST)?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Visits every key of a table whose entry can be read, deleted ones included. A key may come
/// several times.
fn each_key(
    snapshot: &Snapshot,
    table: &Keyspace,
    is_damaged: bool,
    mut visit: impl FnMut(&UserKey) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let unreadable = failed("reading a damaged store");
    if !is_damaged {
        for entry in snapshot.iter(table) {
            visit(&entry.key().map_err(&unreadable)?)?;
        }
        return Ok(());
    }
    damage::each_key_of_files(table, .., |key| visit(&key))
}

/// A value, or its absence; `None` if it may be in a damaged block.
fn read(
    snapshot: &Snapshot,
    table: &Keyspace,
    key: &[u8],
) -> Result<Option<Option<fjall::UserValue>>, StoreError> {
    match snapshot.get(table, key) {
        Ok(value) => Ok(Some(value)),
        Err(error) if damage::cause(&error).is_some() => read_in_files(table, key),
        Err(error) => Err(failed("reading a damaged store")(error)),
    }
}

/// As [`read`], of a key that is not in memory, without the files' filters.
fn read_in_files(
    table: &Keyspace,
    key: &[u8],
) -> Result<Option<Option<fjall::UserValue>>, StoreError> {
    let mut newest: Option<(u64, Option<fjall::UserValue>)> = None;
    for file in table.tree.current_version().iter_tables() {
        let range = &file.metadata.key_range;
        if key < &**range.min() || key > &**range.max() {
            continue;
        }
        let mut versions = file.range(UserKey::from(key)..=UserKey::from(key));
        let Some(found) = versions.next() else {
            continue;
        };
        match found.map_err(fjall::Error::from) {
            Ok(entry) => {
                let is_newer = newest.as_ref().is_none_or(|(at, _)| *at < entry.key.seqno);
                if is_newer {
                    let is_deleted = entry.is_tombstone();
                    newest = Some((entry.key.seqno, (!is_deleted).then_some(entry.value)));
                }
            }
            Err(error) if damage::cause(&error).is_some() => return Ok(None),
            Err(error) => return Err(failed("reading a damaged store")(error)),
        }
    }
    Ok(Some(newest.and_then(|(_, value)| value)))
}

/// Replaces the old store with the complete new one. The old one is kept.
fn take_place(store: &Path, made: &Path) -> io::Result<()> {
    // An interrupted start may have left an empty directory.
    if store.exists() && fs::remove_dir(store).is_err() {
        let kept = format!("damaged-{}", wall_clock().as_millis());
        fs::rename(store, beside(store, &kept))?;
    }
    fs::rename(made, store)?;
    sync_dir(store.parent().unwrap_or(Path::new(".")))
}

/// A path next to the store's.
fn beside(store: &Path, what: &str) -> PathBuf {
    let mut name = store.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(what);
    store.with_file_name(name)
}
