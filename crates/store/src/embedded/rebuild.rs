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
//! * **Leases are not guessed.** If one is damaged, the store does not open.
//!
//! Entries of the deadline index and of the attention table in a damaged block are lost.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::{AbstractTree as _, Keyspace, Readable, Snapshot};
use waybill_clock::wall_clock;
use waybill_disk::sync_dir;
use waybill_engine::OperationId;

use super::damage::{self, Damages, Order, Walk};
use super::tables::{Tables, failed};
use super::{EmbeddedConfig, EmbeddedRestore};
use crate::{StoreError, codec, keys};

/// The file that asks for a new store.
const MARK: &str = "rebuild";

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
        return take_place(store, &made).map_err(io);
    }
    if !store.join(MARK).exists() {
        return Ok(());
    }
    let old = Tables::open_idle(config)?;
    if !old.all().into_iter().any(|(_, table)| has_damage(table)) {
        return fs::remove_file(store.join(MARK)).map_err(io);
    }
    if making.exists() {
        fs::remove_dir_all(&making).map_err(io)?;
    }
    let mut new = EmbeddedRestore::begin(&making)?;
    let lost = copy(&old, &mut new)?;
    new.finish()?;
    drop(old);
    fs::rename(&making, &made).map_err(io)?;
    take_place(store, &made).map_err(io)?;
    tracing::error!(
        store = %store.display(),
        unreadable_rows = lost,
        "rebuilt the damaged state store from its readable data; the damaged store is kept next to it"
    );
    Ok(())
}

/// Whether a file of a table has a block that cannot be read.
fn has_damage(table: &Keyspace) -> bool {
    let version = table.tree.current_version();
    version
        .iter_tables()
        .any(|file| file.iter().any(|item| item.is_err()))
}

/// Copies the readable data. Returns how many parts of rows are marked as unreadable.
fn copy(old: &Tables, new: &mut EmbeddedRestore) -> Result<u64, StoreError> {
    let snapshot = old.db.snapshot();
    let mut lost = 0;
    for (name, table) in old.all() {
        let Some(key_bytes) = key_bytes(name) else {
            for entry in snapshot.iter(table) {
                let (key, value) = entry.into_inner().map_err(|error| StoreError::Corrupt {
                    what: "lease",
                    key: format!("table {name}"),
                    cause: damage::cause(&error).unwrap_or_else(|| error.to_string()),
                })?;
                new.put(name, &key, &value)?;
            }
            continue;
        };
        for key in keys_of(&old.lasting.damages, &snapshot, (name, table), key_bytes) {
            let key = key?;
            // A damaged one is reported among the lost parts.
            if let Some(value) = read(&snapshot, table, &key)?.flatten() {
                new.put(name, &key, &value)?;
            }
        }
    }
    // Every table that names operations shows which rows have parts that are lost or were skipped.
    for (name, table) in old.all() {
        let Some(key_bytes) = key_bytes(name) else {
            continue;
        };
        for key in keys_of(&old.lasting.damages, &snapshot, (name, table), key_bytes) {
            let key = key?;
            let operation: Option<OperationId> = match name {
                "state" | "created" => keys::read_row(&key),
                "due" | "attention" => keys::read_index(&key).map(|(_, operation)| operation),
                _ => None,
            };
            let Some(operation) = operation else { continue };
            let row = keys::row(operation);
            for (part, of) in [("state", &old.state), ("created", &old.created)] {
                match read(&snapshot, of, &row)? {
                    None => {
                        new.put(part, &row, &codec::LOST)?;
                        lost += 1;
                    }
                    // It may be between the keys of a damaged block, but in another file.
                    Some(Some(value)) => new.put(part, &row, &value)?,
                    Some(None) => {}
                }
            }
        }
    }
    Ok(lost)
}

/// A value, or its absence; `None` if it is in a damaged block.
fn read(
    snapshot: &Snapshot,
    table: &Keyspace,
    key: &[u8],
) -> Result<Option<Option<fjall::UserValue>>, StoreError> {
    match snapshot.get(table, key) {
        Ok(value) => Ok(Some(value)),
        Err(error) if damage::cause(&error).is_some() => Ok(None),
        Err(error) => Err(failed("reading a damaged store")(error)),
    }
}

fn keys_of(
    damages: &Arc<Damages>,
    snapshot: &Snapshot,
    table: (&'static str, &Keyspace),
    key_bytes: usize,
) -> Walk {
    let (first, last) = (vec![0; key_bytes], vec![u8::MAX; key_bytes]);
    let all = first.as_slice()..=last.as_slice();
    Walk::new(damages, snapshot, table, all, Order::Ascending)
}

/// How long the keys of a table are; `None` if they differ.
fn key_bytes(table: &str) -> Option<usize> {
    Some(match table {
        "state" | "created" => 16,
        "expiry" => keys::EXPIRY_KEY_LEN,
        "due" | "attention" => keys::INDEX_KEY_LEN,
        "cursors" => 4,
        "corrupt" => keys::ASIDE_KEY_LEN,
        _ => return None,
    })
}

/// Replaces the old store with the complete new one. The old one is kept.
fn take_place(store: &Path, made: &Path) -> io::Result<()> {
    if store.exists() {
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
