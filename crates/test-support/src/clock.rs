//! The wall clock of a process, which a test sets: libfaketime stands between the program and the system's clock.
//! Clocks that only count go on as they are.

use std::path::{Path, PathBuf};

/// How long the library believes what it has read of a file, in seconds.
const READ_EVERY: &str = "1";

/// A clock of one process.
pub struct Clock {
    file: PathBuf,
    /// What its process is started with.
    pub env: Vec<(String, String)>,
}

impl Clock {
    /// The clock of the process of this name, which is right. It is set by a file in `dir`.
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

    /// So many seconds ahead of the system's.
    pub fn set(&self, offset: &str) {
        // Never seen half written.
        let fresh = self.file.with_extension("fresh");
        std::fs::write(&fresh, offset).expect("the directory is writable");
        std::fs::rename(&fresh, &self.file).expect("it is there");
    }
}

/// The library, where Debian has it.
pub fn library() -> Option<PathBuf> {
    let machines = std::fs::read_dir("/usr/lib").ok()?;
    let libraries = machines
        .filter_map(Result::ok)
        .map(|machine| machine.path().join("faketime/libfaketimeMT.so.1"));
    libraries.into_iter().find(|library| library.exists())
}
