//! Where in a data directory this process keeps what.

use std::path::{Path, PathBuf};

/// Where the embedded broker keeps its files.
#[must_use]
pub fn of_broker(data_dir: &Path) -> PathBuf {
    data_dir.join("broker")
}

/// Where the embedded store keeps its files.
#[must_use]
pub fn of_store(data_dir: &Path) -> PathBuf {
    data_dir.join("store")
}
