//! Writing the operations of a file to a store.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::error::Category;
use waybill_clock::wall_clock;
use waybill_engine::{
    Epoch, Offset, OperationId, OperationRow, PartitionId, Position, Priority, Timestamp,
    partition_for,
};
use waybill_node::config::Config;
use waybill_node::data_dir;
use waybill_scheduler::{begin_index, write_indexed};
use waybill_store::{AttentionEntry, DueEntry, KeptRow, RowWrite, Store, WriteBatch};
use waybill_telemetry::visible::counted;
use waybill_topology::shards;

use super::line::{FORMAT, Line, Operation};
use super::open;

/// The number of operations in one write.
const BATCH_ROWS: usize = 200;
/// The maximum number of different operations that are named.
const NAMED_MAX: usize = 20;

/// The outcome of an import.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Imported {
    /// Written operations.
    pub(super) written: u64,
    /// Written operations that are not final and continue.
    pub(super) going_on: u64,
    /// Written operations that are parked.
    pub(super) parked: u64,
    /// Equal operations that already exist.
    pub(super) there: u64,
    /// Operations past their retention.
    pub(super) expired: u64,
    /// Operations that exist with different content; they were not changed.
    pub(super) different: u64,
    /// The first of these, with their lines.
    pub(super) named: Vec<(u64, OperationId)>,
}

/// Writes the operations of the file at `path` to the configured store. Validates the whole file
/// before it writes anything. Safe to repeat.
///
/// # Errors
///
/// If the file is refused, with the line, or the store cannot be written. In the second case some
/// operations may be written.
pub(super) async fn import(config: &Config, path: &Path) -> anyhow::Result<Imported> {
    check(path)?;
    if config.store.is_exclusive() {
        let dir = &config.data_dir;
        let made = data_dir::create(dir);
        made.with_context(|| format!("cannot create the directory {}", dir.display()))?;
    }
    let opened = open(config).await?;
    let store = &*opened.store();
    let layout = shards::layout_at_start(store, config.topology().scheme).await?;
    let partitions = layout.partitions_written();
    for index_shard in (0..partitions).map(PartitionId) {
        begin_index(store, index_shard).await?;
    }
    let mut imported = Imported::default();
    let mut operations = Operations::open(path)?;
    loop {
        let mut batch = Vec::with_capacity(BATCH_ROWS);
        while batch.len() < BATCH_ROWS {
            let Some((line, operation)) = operations.next()? else {
                break;
            };
            batch.push((line, operation.row()?));
        }
        if batch.is_empty() {
            break;
        }
        put(store, partitions, batch, &mut imported).await?;
    }
    opened.close().await?;
    Ok(imported)
}

/// Validates a whole file.
fn check(path: &Path) -> anyhow::Result<()> {
    let mut operations = Operations::open(path)?;
    let mut ids = HashSet::new();
    while let Some((line, operation)) = operations.next()? {
        check_operation(&operation, &mut ids)
            .with_context(|| format!("{}:{line}", path.display()))?;
    }
    Ok(())
}

fn check_operation(operation: &Operation, ids: &mut HashSet<OperationId>) -> anyhow::Result<()> {
    let row = operation.row()?.row;
    anyhow::ensure!(ids.insert(row.id), "duplicate operation {}", row.id);
    let ahead = Timestamp(row.stamp.0).since(wall_clock());
    anyhow::ensure!(
        ahead.is_zero(),
        "the stamp of operation {} is {ahead:?} ahead of this machine's clock, so later writes would be older. \
         Each start of a scheduler may take stamps two leases ahead: wait that long, or correct the clock if it is wrong",
        row.id
    );
    Ok(())
}

/// The operations of a file, with their lines. The end is reached only if the file is complete.
struct Operations<'a> {
    path: &'a Path,
    lines: Lines<BufReader<File>>,
    /// The number of the last line read, from 1.
    line: u64,
    count: u64,
    has_ended: bool,
}

impl<'a> Operations<'a> {
    fn open(path: &'a Path) -> anyhow::Result<Self> {
        let file = File::open(path);
        let file = file.with_context(|| format!("{} cannot be read", path.display()))?;
        let mut operations = Self {
            path,
            lines: BufReader::new(file).lines(),
            line: 0,
            count: 0,
            has_ended: false,
        };
        match operations.read()? {
            Some(Line::Export(header)) if header.format == FORMAT => Ok(operations),
            Some(Line::Export(header)) => Err(operations.refused(format!(
                "unsupported format {}: this program reads format {FORMAT}",
                header.format
            ))),
            _ => Err(operations.refused("expected a file of `waybill export`".to_owned())),
        }
    }

    fn next(&mut self) -> anyhow::Result<Option<(u64, Operation)>> {
        let why = match self.read()? {
            Some(_) if self.has_ended => "unexpected line after the end of the export".to_owned(),
            Some(Line::Operation(operation)) => {
                self.count += 1;
                return Ok(Some((self.line, *operation)));
            }
            Some(Line::End(end)) if end.operations == self.count => {
                self.has_ended = true;
                return self.next();
            }
            Some(Line::End(end)) => format!(
                "operations are missing: the export had {}, and the file has {}",
                counted(end.operations, "operation"),
                self.count
            ),
            Some(Line::Export(_)) => "unexpected second header".to_owned(),
            None if self.has_ended => return Ok(None),
            None => "the file is truncated after this line".to_owned(),
        };
        Err(self.refused(why))
    }

    fn read(&mut self) -> anyhow::Result<Option<Line>> {
        let Some(text) = self.lines.next() else {
            return Ok(None);
        };
        self.line += 1;
        let place = || format!("{}:{}", self.path.display(), self.line);
        let text = text.with_context(place)?;
        match serde_json::from_str(&text) {
            Ok(line) => Ok(Some(line)),
            Err(error) => {
                let column = error.column();
                let why = match error.classify() {
                    Category::Eof => format!("expected JSON, and it ends at column {column}"),
                    Category::Syntax | Category::Io => {
                        format!("expected JSON, found something else at column {column}")
                    }
                    // The number of the line is that in the file.
                    Category::Data => error
                        .to_string()
                        .replace(" at line 1 column ", " at column "),
                };
                Err(self.refused(format!("not a line of an export: {why}")))
            }
        }
    }

    fn refused(&self, why: String) -> anyhow::Error {
        anyhow::anyhow!("{}:{}: {why}", self.path.display(), self.line)
    }
}

/// Writes the operations of a batch that do not exist yet.
async fn put(
    store: &dyn Store,
    partitions: u32,
    batch: Vec<(u64, KeptRow)>,
    imported: &mut Imported,
) -> anyhow::Result<()> {
    let now = wall_clock();
    let ids = batch.iter().map(|(_, kept)| kept.row.id).collect();
    let found = store.get_many(ids).await?;
    let mut write = WriteBatch::default();
    for ((line, kept), found) in batch.into_iter().zip(found) {
        let KeptRow { row, expires_at } = kept;
        let index_shard = partition_for(row.id, partitions);
        let row = handed_off(row, index_shard, now);
        match found {
            Ok(Some(found)) if is_same(&found, &row) => imported.there += 1,
            Ok(Some(_)) | Err(_) => {
                imported.different += 1;
                if imported.named.len() < NAMED_MAX {
                    imported.named.push((line, row.id));
                }
            }
            Ok(None) if expires_at.is_some_and(|at| at <= now) => imported.expired += 1,
            Ok(None) => {
                imported.written += 1;
                add(&mut write, row, index_shard, expires_at, now, imported);
            }
        }
    }
    if !write.is_empty() {
        write_indexed(store, write, now).await?;
    }
    Ok(())
}

fn add(
    write: &mut WriteBatch,
    row: OperationRow,
    index_shard: PartitionId,
    expires_at: Option<Timestamp>,
    now: Timestamp,
    imported: &mut Imported,
) {
    let (id, state) = (row.id, &row.state);
    if !state.state.is_final() {
        imported.going_on += 1;
        let entry = DueEntry {
            due: now,
            operation: id,
        };
        write.due.push((index_shard, entry));
    }
    if !state.state.is_final() || state.state.is_parked() {
        imported.parked += u64::from(state.state.is_parked());
        let entry = AttentionEntry {
            at: state.updated_at,
            operation: id,
        };
        write.attention.push((index_shard, entry));
    }
    write.rows.push(RowWrite {
        id,
        created: Some(row.created),
        stamp: row.stamp,
        keep_for: expires_at.map(|at| at.since(now)),
        state: row.state,
    });
}

/// A row as its last owner would have left it at a hand-off. Its request gets a position before all
/// records of this installation's log.
fn handed_off(mut row: OperationRow, index_shard: PartitionId, now: Timestamp) -> OperationRow {
    Arc::make_mut(&mut row.created).request = Position {
        priority: Priority::Normal,
        partition: index_shard,
        offset: Offset(-1),
    };
    row.state.locked_by = None;
    // These are positions in the logs of the other installation.
    row.state.last_reply = None;
    row.state.last_asked.clear();
    row.state.epoch = Epoch(0);
    if !row.state.state.is_final() {
        row.state.handed_off = true;
        row.state.next_due = Some(now);
    }
    row
}

/// Whether a row equals the result of an earlier import of the same line. The due time may
/// differ.
fn is_same(found: &OperationRow, row: &OperationRow) -> bool {
    let mut found = found.clone();
    found.state.next_due = row.state.next_due;
    found == *row
}
