//! A wall clock of a process that a test can set, with libfaketime. Monotonic clocks are
//! unaffected.

use std::path::{Path, PathBuf};

/// How long libfaketime caches the file, in seconds.
const READ_EVERY: &str = "1";

/// The clock of one process.
pub struct Clock {
    file: PathBuf,
    /// The environment variables for its process.
    pub env: Vec<(String, String)>,
}

impl Clock {
    /// A correct clock for the process with this name. A file in `dir` sets it.
    pub fn new(library: &Path, dir: &Path, process: &str) -> Self {
        let file = dir.join(format!("clock-of-{process}"));
        let env = [
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
            ("FAKETIME_CACHE_DURATION", READ_EVERY.to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        let clock = Self {
            file,
            env: env.map(|(name, value)| (name.to_owned(), value)).into(),
        };
        clock.set("+0");
        clock
    }

    /// Sets the offset from the system's clock, in seconds.
    pub fn set(&self, offset: &str) {
        // Renamed into place, so that no reader sees a partial file.
        let fresh = self.file.with_extension("fresh");
        std::fs::write(&fresh, offset).expect("the directory is writable");
        std::fs::rename(&fresh, &self.file).expect("it exists");
    }
}

/// The path of libfaketime on Debian, if it is installed.
pub fn library() -> Option<PathBuf> {
    let machines = std::fs::read_dir("/usr/lib").ok()?;
    let libraries = machines
        .filter_map(Result::ok)
        .map(|machine| machine.path().join("faketime/libfaketimeMT.so.1"));
    libraries.into_iter().find(|library| library.exists())
}
