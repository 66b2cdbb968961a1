//! Records how far the journals are synced and which tables there are, to detect a journal that
//! lost its end and a table that is missing or older.
//!
//! A journal that was deleted, truncated between two batches, or replaced by an older copy is
//! valid. The key-value store opens it silently, without the entries that it lost. So the file
//! `synced` records the last synced batch of each journal, and a start compares the journals with
//! it.
//!
//! What must hold:
//!
//! * **The record may lag, but it never leads.** It is written after the sync that it describes,
//!   and no other batch is committed in between. The record itself is not synced: it survives `kill
//!   -9`, and a power loss leaves an older one.
//! * **No table is lost silently.** The key-value store opens without a table whose directory is
//!   missing, and drops its entries in the journals. So the record names all tables.
//! * **No intact store is refused.** The key-value store deletes a journal other than the last one
//!   as soon as all of its entries are in tables. Each table that had entries in memory then has a
//!   newer manifest.
//!
//! A missing or unreadable record does not prevent a start, because nothing else is lost with it. A
//! warning reports it, and the record is created again.
//!
//! Deliberately absent: a sync of the record, which would double the syncs of a commit.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fjall::{AbstractTree as _, AnyTree, Database, Keyspace, OwnedWriteBatch, PersistMode};

use crate::journal::{self, Journal};
use crate::record::{self, KnownJournal, KnownTable, Record, Stored};
use crate::{CheckError, DamagedFile, GiveUp, keyspaces, sync_dir};

/// The journals found before a store was opened, all of them synced by now, and their record.
#[derive(Debug)]
pub struct Prepared {
    store: PathBuf,
    journals: Vec<Journal>,
    record: Stored,
}

impl Prepared {
    /// The lowest number that the current manifest of a table can have.
    pub(crate) fn manifest_min(&self, table: u64) -> u64 {
        let mut tables = self.record.tables().iter();
        let known = tables.find(|known| known.table == table);
        known.map_or(0, |known| known.manifest)
    }
}

/// Refuses a store if a journal ends before the point up to which it was synced, or a table is
/// missing.
///
/// # Errors
///
/// [`CheckError::Damaged`] names the journal or the table's directory.
pub(crate) fn check(
    store: &Path,
    journals: Vec<Journal>,
    record: Stored,
) -> Result<Prepared, CheckError> {
    let file = record::path(store);
    for known in record.tables() {
        keyspaces::check_exists(store, known.table)?;
    }
    match &record {
        Stored::Found(record) => {
            for known in &record.journals {
                check_journal(store, known, &journals)?;
            }
        }
        Stored::Missing | Stored::Unreadable => {
            if journals.iter().any(|journal| journal.last.is_some()) {
                tracing::warn!(
                    file = %file.display(),
                    is_missing = record == Stored::Missing,
                    "cannot read the record of synced journals and tables; a shortened journal or a missing table is not detected at this start"
                );
            }
        }
    }
    Ok(Prepared {
        store: store.to_owned(),
        journals,
        record,
    })
}

fn check_journal(
    store: &Path,
    known: &KnownJournal,
    journals: &[Journal],
) -> Result<(), CheckError> {
    let Some(last) = known.last else {
        return Ok(());
    };
    let problem = match journals.iter().find(|found| found.number == known.number) {
        Some(found) if found.last >= Some(last) => return Ok(()),
        Some(Journal {
            last: Some(found),
            bytes,
            ..
        }) => format!(
            "its last batch has the number {found} and ends at offset {bytes}, but batches up to number {last} were synced"
        ),
        Some(_) => format!("it has no batch, but batches up to number {last} were synced"),
        None => {
            let is_written_out = |unflushed: &KnownTable| {
                // A damaged manifest is reported elsewhere.
                keyspaces::manifest_number(store, unflushed.table)
                    .is_none_or(|number| number > unflushed.manifest)
            };
            let is_last = journals.iter().all(|found| found.number < known.number);
            if !is_last && known.unflushed.iter().all(is_written_out) {
                return Ok(());
            }
            format!(
                "it is missing, but batches up to number {last} in it were synced and not all of them are in tables"
            )
        }
    };
    Err(CheckError::Damaged(DamagedFile {
        file: journal::path(store, known.number),
        problem,
        give_up: Some(GiveUp::Lost {
            record: record::path(store),
        }),
    }))
}

/// Records how far the journals of an open store are synced. All its batches are committed through
/// this.
pub struct Synced {
    store: PathBuf,
    tables: Vec<(u64, AnyTree)>,
    /// Locked while a batch is committed, so that memory then holds exactly what the journal holds.
    state: Mutex<State>,
}

/// The tables as they are in memory.
struct InMemory {
    /// The number of the newest batch in memory.
    newest: Option<u64>,
    tables: Vec<KnownTable>,
    /// The tables that have entries in memory.
    unflushed: Vec<KnownTable>,
}

struct State {
    record: Record,
    /// `None` until it can be created.
    file: Option<File>,
    /// Whether the last write of the record failed.
    is_failing: bool,
}

impl Synced {
    /// Starts from the state found before the store was opened. `tables` are all that are written
    /// to. Makes their directories durable, and that of the store.
    pub fn begin<'a>(
        prepared: Prepared,
        tables: impl IntoIterator<Item = &'a Keyspace>,
    ) -> io::Result<Self> {
        let Prepared {
            store,
            journals: found,
            record,
        } = prepared;
        // The library syncs what it creates in the directory of a keyspace, and not its name.
        for dir in [&*keyspaces::dir_of(&store), &store]
            .into_iter()
            .chain(store.parent())
        {
            sync_dir(dir)?;
        }
        let tables = tables.into_iter();
        let tables = tables.map(|table| (table.id(), table.tree.clone()));
        let (known, file) = match record {
            Stored::Found(record) => {
                let file = File::options().write(true).open(record::path(&store))?;
                (record, Some(file))
            }
            Stored::Missing | Stored::Unreadable => (Record::default(), None),
        };
        let synced = Self {
            tables: tables.collect(),
            state: Mutex::new(State {
                record: known,
                file,
                is_failing: false,
            }),
            store,
        };
        // Read before the journals are listed: a journal deleted in between needs none of these
        // tables.
        let InMemory {
            tables, unflushed, ..
        } = synced.in_memory();
        let mut state = synced.state();
        state.record.tables = tables;
        let journals = synced.journals(&state.record.journals)?;
        state.record.journals = journals;
        state.record.boot = record::boot();
        for journal in &mut state.record.journals {
            let found = found.iter().find(|found| found.number == journal.number);
            journal.last = found.and_then(|found| found.last);
        }
        if let Some(active) = state.record.journals.last_mut() {
            active.unflushed = unflushed;
        }
        state.write(&synced.store);
        drop(state);
        Ok(synced)
    }

    /// Commits a batch that need not be synced, or writes to a table.
    ///
    /// # Errors
    ///
    /// If the disk fails, or a flush or a compaction failed before.
    pub fn commit(&self, commit: impl FnOnce() -> fjall::Result<()>) -> fjall::Result<()> {
        let _state = self.state();
        commit()
    }

    /// Commits a batch and syncs it, and all batches before it.
    ///
    /// # Errors
    ///
    /// If the disk fails, or a flush or a compaction failed before.
    pub fn commit_synced(&self, batch: OwnedWriteBatch, mode: PersistMode) -> fjall::Result<()> {
        let mut state = self.state();
        // An empty batch causes no sync.
        if batch.is_empty() {
            return Ok(());
        }
        batch.durability(Some(mode)).commit()?;
        self.note(&mut state);
        Ok(())
    }

    /// Syncs all batches.
    ///
    /// # Errors
    ///
    /// If the disk fails, or a flush or a compaction failed before.
    pub fn sync(&self, db: &Database) -> fjall::Result<()> {
        let mut state = self.state();
        db.persist(PersistMode::SyncAll)?;
        self.note(&mut state);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that all batches are synced. If the record cannot be written, it lags.
    fn note(&self, state: &mut State) {
        let InMemory {
            newest,
            tables,
            unflushed,
        } = self.in_memory();
        // Everything was written out just now.
        let Some(newest) = newest else { return };
        state.record.tables = tables;
        if let Err(error) = self.advance(&mut state.record.journals, newest, unflushed) {
            tracing::warn!(
                file = %self.store.display(),
                error = &error as &dyn std::error::Error,
                "cannot list the journals of the key-value store"
            );
            return;
        }
        state.write(&self.store);
    }

    fn in_memory(&self) -> InMemory {
        let mut newest = None;
        let mut tables = Vec::with_capacity(self.tables.len());
        let mut unflushed = Vec::with_capacity(self.tables.len());
        for (table, tree) in &self.tables {
            // First the manifest: a flush in between makes the next one newer.
            let known = KnownTable {
                table: *table,
                manifest: tree.current_version().id(),
            };
            if let Some(number) = tree.get_highest_memtable_seqno() {
                newest = newest.max(Some(number));
                unflushed.push(known);
            }
            tables.push(known);
        }
        InMemory {
            newest,
            tables,
            unflushed,
        }
    }

    /// Follows the key-value store to the journal that it appends to, and notes that it is synced
    /// up to the batch `newest`.
    fn advance(
        &self,
        journals: &mut Vec<KnownJournal>,
        newest: u64,
        unflushed: Vec<KnownTable>,
    ) -> io::Result<()> {
        let exists = |journal: &KnownJournal| journal::path(&self.store, journal.number).exists();
        if !journals.last().is_some_and(exists) {
            *journals = self.journals(journals)?;
        }
        let Some(mut active) = journals.pop() else {
            return Ok(());
        };
        journals.retain(exists);
        let mut is_noted = false;
        while let Some(first) = first_batch(&journal::path(&self.store, active.number + 1))? {
            // If the journal is empty, the last batch is in the journal before it.
            if first == FirstBatch::None {
                active.last = active.last.max(Some(newest));
                active.unflushed.clone_from(&unflushed);
                is_noted = true;
            }
            let number = active.number + 1;
            journals.push(active);
            active = KnownJournal::new(number);
        }
        if !is_noted {
            active.last = active.last.max(Some(newest));
            active.unflushed = unflushed;
        }
        journals.push(active);
        Ok(())
    }

    /// The existing journals, with what is known of each.
    fn journals(&self, known: &[KnownJournal]) -> io::Result<Vec<KnownJournal>> {
        let journals = journal::numbers(&self.store)?.into_iter();
        let journals = journals.map(|number| {
            let known = known.iter().find(|known| known.number == number);
            known.cloned().unwrap_or_else(|| KnownJournal::new(number))
        });
        Ok(journals.collect())
    }
}

impl KnownJournal {
    fn new(number: u64) -> Self {
        Self {
            number,
            last: None,
            unflushed: Vec::new(),
        }
    }
}

impl State {
    fn write(&mut self, store: &Path) {
        let written = match &self.file {
            Some(file) => self.record.write(file),
            None => record::create(store, &mut self.record).map(|file| self.file = Some(file)),
        };
        if let Err(error) = &written
            && !self.is_failing
        {
            tracing::warn!(
                file = %record::path(store).display(),
                error = error as &dyn std::error::Error,
                "cannot write the record of synced journals"
            );
        }
        self.is_failing = written.is_err();
    }
}

impl std::fmt::Debug for Synced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Synced")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

#[derive(PartialEq, Eq)]
enum FirstBatch {
    None,
    There,
}

/// Whether a journal has a batch; `None` if there is no such journal.
fn first_batch(path: &Path) -> io::Result<Option<FirstBatch>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut tag = [0];
    let read = file.read(&mut tag)?;
    // A new journal is full of zeros.
    Ok(Some(match (read, tag) {
        (0, _) | (_, [0]) => FirstBatch::None,
        _ => FirstBatch::There,
    }))
}

#[cfg(test)]
mod tests;
