//! Backups of a running process with an embedded store and broker, and their restoration.
//!
//! What must hold:
//!
//! * **Store and logs are of one instant.** Commits of the store pause while snapshots of both are
//!   taken. No message is sent before its row is written, so every message in the logs has its row
//!   in the store. A checkpoint follows acknowledgements, so no checkpoint is beyond its log.
//! * **It contains everything accepted before.** A request gets 202 once it is in its log, and the
//!   snapshot of the log is taken after the backup was requested.
//! * **It delays no work for long.** Only the snapshots pause commits; reading does not. A client
//!   that requests a backup and does not read it loses it.
//! * **A backup is complete or invalid.** It ends with a manifest of its content (`file`), and
//!   restored data gets its final name once all of it is on disk (`restore`).
//!
//! Deliberately absent: the ledger of the simulated services. They represent external services,
//! which have backups of their own.

mod file;
mod restore;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use waybill_broker::{CopyError, Logs, LogsSnapshot, Segment};
use waybill_engine::Timestamp;
use waybill_store::{EmbeddedSnapshot, EmbeddedStore, OpenStore, StoreError};

use file::Database;
pub use file::{Contents, FileError, check};
pub use restore::{RestoreError, Restored, lost_operations, restore};

use waybill_clock::wall_clock;
use waybill_telemetry::chain;

/// How much is read, and sent, at a time.
const PIECE_BYTES: usize = 256 << 10;
/// How many pieces wait for the reader of the backup.
const PIECES_WAITING: usize = 4;
/// How long the reader may take for a piece.
const STALL_MAX: Duration = Duration::from_secs(60);

/// Why a backup did not start.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Another backup is in progress.
    #[error("another backup is in progress")]
    UnderWay,
    /// The snapshot of the store failed.
    #[error("cannot take a snapshot of the store")]
    Store(#[from] StoreError),
    /// The snapshot of the logs failed.
    #[error("cannot take a snapshot of the logs")]
    Logs(#[from] CopyError),
    /// The process is shutting down.
    #[error("the process is shutting down")]
    ShuttingDown,
}

/// Makes backups, one at a time. Keeps neither the store nor the broker open.
#[derive(Clone, Debug)]
pub struct Backups {
    store: Weak<EmbeddedStore>,
    logs: Logs,
    places: Arc<Semaphore>,
}

/// A backup in progress: its bytes, in pieces. An error instead of a piece ends it.
pub type Pieces = mpsc::Receiver<io::Result<Bytes>>;

/// Snapshots of store and logs at one instant.
struct Noted {
    store: EmbeddedSnapshot,
    logs: LogsSnapshot,
    at: Timestamp,
}

impl Backups {
    /// Creates the backups of this store and these logs; `None` if the store is not the embedded
    /// one.
    #[must_use]
    pub fn of(store: &OpenStore, logs: Logs) -> Option<Self> {
        Some(Self {
            store: Arc::downgrade(store.embedded()?),
            logs,
            places: Arc::new(Semaphore::new(1)),
        })
    }

    /// Begins a backup of this instant.
    ///
    /// # Errors
    ///
    /// See [`BackupError`].
    pub async fn begin(&self) -> Result<Pieces, BackupError> {
        let place = self.places.clone().try_acquire_owned();
        let place = place.map_err(|_| BackupError::UnderWay)?;
        let store = self.store.upgrade().ok_or(BackupError::ShuttingDown)?;
        let logs = self.logs.clone();
        // The place stays taken while a snapshot exists, even if the caller no longer waits.
        let noted = tokio::task::spawn_blocking(move || (note(&store, &logs), place));
        let (noted, place) = noted.await.map_err(|_| BackupError::ShuttingDown)?;
        let noted = noted?;
        let (sender, pieces) = mpsc::channel(PIECES_WAITING);
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || send(noted, sender, runtime, place));
        Ok(pieces)
    }
}

fn note(store: &EmbeddedStore, logs: &Logs) -> Result<Noted, BackupError> {
    let began = Instant::now();
    let (store, (logs, at)) = store.while_held(|| (logs.snapshot(), wall_clock()))?;
    let logs = logs?;
    tracing::info!(held = ?began.elapsed(), records = logs.records(), "started a backup");
    Ok(Noted { store, logs, at })
}

/// Sends the whole backup, and its error if it fails.
fn send(
    noted: Noted,
    pieces: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
    place: OwnedSemaphorePermit,
) {
    let writer = PieceWriter {
        gathered: BytesMut::with_capacity(2 * PIECE_BYTES),
        pieces: pieces.clone(),
        runtime,
    };
    // Without an error, the pieces until then would be taken for the whole backup.
    let written = catch_unwind(AssertUnwindSafe(|| write(&noted, writer)))
        .unwrap_or_else(|_| Err(io::Error::other("making the backup panicked")));
    match written {
        Ok(contents) => tracing::info!(
            operations = contents.operations,
            records = contents.records,
            "finished a backup"
        ),
        Err(error) => {
            tracing::warn!(error = %chain(&error), "a backup failed");
            // If the queue is full, the client does not read.
            let _ = pieces.try_send(Err(error));
        }
    }
    // Release the place before the client sees the end and may request the next backup.
    drop(place);
}

fn write(noted: &Noted, out: impl Write) -> io::Result<Contents> {
    let mut file = file::Writer::begin(out, noted.at)?;
    let mut contents = Contents {
        operations: 0,
        records: noted.logs.records(),
        at: noted.at,
    };
    for entry in noted.store.entries() {
        let entry = entry.map_err(io::Error::other)?;
        contents.operations += u64::from(EmbeddedSnapshot::is_operation(&entry));
        file.entry(Database::Store, entry.table, &entry.key, &entry.value)?;
    }
    for entry in noted.logs.meta() {
        let (table, key, value) = entry.map_err(io::Error::other)?;
        file.entry(Database::Broker, table, &key, &value)?;
    }
    for segment in noted.logs.segments() {
        segment.verify().map_err(io::Error::other)?;
        let name = (&*segment.topic, segment.partition, segment.base);
        let content = BufReader::with_capacity(PIECE_BYTES, SegmentReader { segment, at: 0 });
        file.segment(name, segment.bytes, content)?;
    }
    file.finish(contents)?;
    Ok(contents)
}

/// Reads a segment from its start.
struct SegmentReader<'a> {
    segment: &'a Segment,
    at: u64,
}

impl Read for SegmentReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.segment.bytes - self.at).unwrap_or(usize::MAX);
        let read = left.min(buffer.len());
        self.segment.read(self.at, &mut buffer[..read])?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The name until the content is complete: next to `path`, even if that ends in a slash or is `.`.
pub fn partial_of(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

/// Creates a file that only its owner can read. Replaces one that was left behind.
pub fn private_file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// Gives complete content its final name, durably.
pub fn put_in_place(partial: &Path, path: &Path) -> io::Result<()> {
    fs::rename(partial, path)?;
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Sends pieces to the client. Bytes that were not flushed when it is dropped are lost, because the
/// backup was then abandoned.
struct PieceWriter {
    gathered: BytesMut,
    pieces: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = self.pieces.send(Ok(self.gathered.split().freeze()));
        let sent = async { tokio::time::timeout(STALL_MAX, piece).await };
        match self.runtime.block_on(sent) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_file_is_next_to_its_final_path_in_every_spelling() {
        let here = std::env::current_dir().unwrap();
        for path in ["there", "there/", "./there//"] {
            assert_eq!(partial_of(Path::new(path)), here.join("there.partial"));
        }
        let mut expected = here.clone().into_os_string();
        expected.push(".partial");
        assert_eq!(partial_of(Path::new(".")), PathBuf::from(expected));
    }
}
