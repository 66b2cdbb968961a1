//! The layout of a data directory.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// The mode of a new data directory: only its user may access it, because it holds all data of
/// clients.
pub const MODE: u32 = 0o700;

/// Creates a directory and its missing parents for this user only. An existing one keeps its mode.
///
/// # Errors
///
/// The error of the operating system.
pub fn create(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(dir)
}

/// The directory of the embedded broker.
#[must_use]
pub fn of_broker(data_dir: &Path) -> PathBuf {
    data_dir.join("broker")
}

/// The directory of the embedded store.
#[must_use]
pub fn of_store(data_dir: &Path) -> PathBuf {
    data_dir.join("store")
}
