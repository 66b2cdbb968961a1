//! Files that are reloaded when they change.
//!
//! What must hold: [`Reread::get`] never waits for a file; [`Reread::fresh`] may. A broken or
//! missing file changes nothing: the previous content stays in effect, and the log reports each
//! fault once.
//!
//! A change is detected by content: mounted secrets are links that are moved, and modification
//! times are not reliable.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;
use waybill_config::ConfigError;

/// How often files are checked for changes.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a caller waits for files that are slow to read. It then uses the previous contents.
const RELOAD_WAIT_MAX: Duration = Duration::from_secs(1);
/// The largest file that is read.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Why a file was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct FileRefused {
    /// The configuration key that names the file.
    pub key: Cow<'static, str>,
    /// What is wrong with the file, with its path.
    pub problem: String,
}

impl From<FileRefused> for ConfigError {
    fn from(refused: FileRefused) -> Self {
        Self::invalid(format!("{}:", refused.key), refused.problem)
    }
}

/// Parses the contents of the files together, or says what is wrong with them.
type Read<T> = dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync;

/// The parsed content of files that belong together.
pub struct Reread<T> {
    key: Cow<'static, str>,
    paths: Vec<PathBuf>,
    read: Box<Read<T>>,
    now: ArcSwap<T>,
    /// The digest of the contents that were read last, valid or not.
    seen: Mutex<[u8; 32]>,
    /// When the files were read last.
    looked: Mutex<Instant>,
    is_reading: AtomicBool,
}

impl<T> Reread<T> {
    /// Reads the files that `key` names. The errors of `read` must name the path.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or `read` refuses the contents.
    pub fn open(
        key: impl Into<Cow<'static, str>>,
        paths: Vec<PathBuf>,
        read: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, FileRefused> {
        let key = key.into();
        let texts = texts_of(&paths);
        let seen = digest(&texts);
        let first = texts
            .and_then(|texts| read(&texts))
            .map_err(|problem| FileRefused {
                key: key.clone(),
                problem,
            })?;
        Ok(Self {
            key,
            paths,
            read: Box::new(read),
            now: ArcSwap::from_pointee(first),
            seen: Mutex::new(seen),
            looked: Mutex::new(Instant::now()),
            is_reading: AtomicBool::new(false),
        })
    }

    /// The current content.
    pub fn get(&self) -> Guard<Arc<T>> {
        self.now.load()
    }

    /// Reloads the files if they have changed. Blocks.
    pub fn reload(&self) {
        let texts = texts_of(&self.paths);
        let digest = digest(&texts);
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if *seen == digest {
                return;
            }
            *seen = digest;
        }
        match texts.and_then(|texts| (self.read)(&texts)) {
            Ok(now) => {
                self.now.store(Arc::new(now));
                tracing::info!(key = %self.key, paths = ?self.paths, "reloaded changed files");
            }
            Err(problem) => tracing::warn!(
                key = %self.key,
                problem,
                "the changed files cannot be used; the previous contents stay in effect"
            ),
        }
    }
}

impl<T: Send + Sync + 'static> Reread<T> {
    /// The content, compared with the files at most `age_max` ago, unless they take longer than a
    /// second to read. For files that no task [follows](follow).
    pub async fn fresh(self: &Arc<Self>, age_max: Duration) -> Arc<T> {
        let is_due = {
            let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = looked.elapsed() >= age_max;
            if is_due {
                *looked = Instant::now();
            }
            is_due
        };
        // One read at a time: those of a file system that hangs would take up all threads.
        if is_due && !self.is_reading.swap(true, Ordering::Relaxed) {
            let reading = Reading(Arc::clone(self));
            let read = tokio::task::spawn_blocking(move || reading.0.reload());
            if let Ok(Err(_)) = timeout(RELOAD_WAIT_MAX, read).await {
                tracing::error!(
                    key = %self.key,
                    "reloading files panicked; the previous contents stay in effect"
                );
            }
        }
        self.now.load_full()
    }
}

/// A read in progress; dropping it allows another.
struct Reading<T>(Arc<Reread<T>>);

impl<T> Drop for Reading<T> {
    fn drop(&mut self) {
        self.0.is_reading.store(false, Ordering::Relaxed);
    }
}

impl<T> fmt::Debug for Reread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reread")
            .field("key", &self.key)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

/// Calls `reload` periodically, until `stop`.
///
/// # Errors
///
/// If `reload` panicked.
pub async fn follow(
    reload: impl Fn() + Send + Sync + 'static,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let reload = Arc::new(reload);
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let reload = Arc::clone(&reload);
        if tokio::task::spawn_blocking(move || reload()).await.is_err() {
            tracing::error!("reloading files panicked; the previous contents stay in effect");
        }
    }
}

fn texts_of(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    paths.iter().map(|path| text_of(path)).collect()
}

fn text_of(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |cause: String| format!("{} cannot be read: {cause}", path.display());
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut text)
        .map_err(|error| unreadable(error.to_string()))?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(unreadable(format!(
            "it is longer than {FILE_BYTES_MAX} bytes"
        ))),
        false => Ok(text),
    }
}

fn digest(texts: &Result<Vec<Vec<u8>>, String>) -> [u8; 32] {
    let mut sha = Sha256::new();
    match texts {
        Ok(texts) => texts.iter().for_each(|text| {
            sha.update((text.len() as u64).to_be_bytes());
            sha.update(text);
        }),
        Err(problem) => sha.update(problem),
    }
    sha.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_previous_contents_of_a_broken_file_stay_in_effect() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("number");
        let number = |texts: &[Vec<u8>]| -> Result<u32, String> {
            let text = String::from_utf8(texts[0].clone()).map_err(|error| error.to_string())?;
            text.trim().parse().map_err(|_| "is no number".to_owned())
        };
        let open = || Reread::open("a.key", vec![path.clone()], number);
        assert!(open().unwrap_err().to_string().starts_with("a.key: "));
        std::fs::write(&path, "x").unwrap();
        assert_eq!(open().unwrap_err().to_string(), "a.key: is no number");

        std::fs::write(&path, "1").unwrap();
        let file = open().unwrap();
        let reload = || {
            file.reload();
            **file.get()
        };
        assert_eq!(reload(), 1);
        std::fs::write(&path, "2").unwrap();
        assert_eq!(reload(), 2);
        std::fs::write(&path, "two").unwrap();
        assert_eq!(reload(), 2, "it is broken");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(reload(), 2, "it was removed");
        std::fs::write(&path, vec![b'0'; 2 * 1024 * 1024]).unwrap();
        assert_eq!(reload(), 2, "it is too long");
        std::fs::write(&path, "3").unwrap();
        assert_eq!(reload(), 3);
    }
}
