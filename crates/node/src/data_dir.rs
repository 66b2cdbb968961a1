//! The layout of a data directory.

use std::path::{Path, PathBuf};

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
