//! A store that takes no more writes because of a damaged block, and a new one made of what can be read.
//!
//! The key-value store ends its work for good when a compaction meets a damaged block: every write fails from
//! then on, and would fail again after each start. So the writer leaves a mark in the directory when that
//! happens, and whoever opens the store next copies what can be read to a new one. The damaged one is kept.
//!
//! What must hold:
//!
//! * **No row comes back as it was before.** A row whose newest state lay in the damaged block is unreadable
//!   in the new store, as it was in the old one, also where an older state of it can be read.
//! * **Whole or not at all.** The new store takes the place of the old one by renaming, when it is complete.
//! * **Leases are not guessed.** Where one is damaged, the store does not open.
//!
//! Lost are the entries of the deadline index and of the attention table that lay in a damaged block.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::{AbstractTree as _, Keyspace, Readable, Snapshot};
use waybill_clock::wall_clock;
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
    let io = |error| StoreError::unavailable("making a new store", error);
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
        "rebuilt the damaged state store from its readable data; the damaged one is kept beside it"
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

/// Copies what can be read. Returns how many parts of rows are marked as unreadable.
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
            // One that is damaged is among what is said to be lost.
            if let Some(value) = read(&snapshot, table, &key)?.flatten() {
                new.put(name, &key, &value)?;
            }
        }
    }
    // Every table that names operations says of which a part may be lost, or was passed over.
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
                    // It may lie between the keys of a damaged block, in another file.
                    Some(Some(value)) => new.put(part, &row, &value)?,
                    Some(None) => {}
                }
            }
        }
    }
    Ok(lost)
}

/// A value, or that there is none; `None` if that lies in a damaged block.
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

/// How long the keys of a table are; `None` where they differ.
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

/// Puts a complete new store in the place of the old one, which is kept.
fn take_place(store: &Path, made: &Path) -> io::Result<()> {
    if store.exists() {
        let kept = format!("damaged-{}", wall_clock().as_millis());
        fs::rename(store, beside(store, &kept))?;
    }
    fs::rename(made, store)?;
    sync_dir(store.parent().unwrap_or(Path::new(".")))
}

/// A path beside the store's.
fn beside(store: &Path, what: &str) -> PathBuf {
    let mut name = store.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(what);
    store.with_file_name(name)
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
