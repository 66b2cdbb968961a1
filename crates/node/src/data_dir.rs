//! The directory that this process keeps its data in.
//!
//! What must hold: nobody but its user reads what is in it, for it holds all that clients sent. A directory that is there
//! keeps its mode, and the log warns of it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Its user alone may look into the directory.
const MODE: u32 = 0o700;
/// What users have who are neither the directory's user nor in its group.
const OTHERS: u32 = 0o007;

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

/// Makes the directory, and those above it, for this user alone; warns where it is there and every user may look into it.
///
/// A failure is logged only: opening the first file in the directory fails with its own error.
pub fn prepare(path: &Path) {
    let shown = path.display();
    match fs::metadata(path) {
        Ok(found) if found.permissions().mode() & OTHERS != 0 => tracing::warn!(
            path = %shown,
            mode = format_args!("{:o}", found.permissions().mode() & 0o777),
            "every user of this machine may look into the data directory: chmod 700"
        ),
        Ok(_) => {}
        Err(_) => {
            if let Err(error) = make(path) {
                tracing::warn!(path = %shown, %error, "the data directory cannot be made");
            }
        }
    }
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(path)
}

#[cfg(test)]
mod tests {
    use waybill_test_support::log::Lines;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_directory_is_its_users_alone_and_one_that_is_there_keeps_its_mode() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("var/data");
        prepare(&path);
        assert_eq!(mode(&path), MODE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        prepare(&path);
        assert_eq!(mode(&path), 0o755);
    }

    /// What is logged about a directory of this mode.
    fn logged(mode: u32) -> String {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(mode)).unwrap();
        let (lines, log) = (Lines::default(), tracing_subscriber::fmt());
        let log = log.with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(log, || prepare(root.path()));
        lines.text()
    }

    #[test]
    fn a_directory_that_every_user_may_look_into_is_warned_of() {
        for open in [0o755, 0o701, 0o704] {
            assert!(
                logged(open).contains("every user of this machine"),
                "{open:o}"
            );
        }
        for closed in [0o700, 0o750] {
            assert_eq!(logged(closed), "", "{closed:o}");
        }
    }
}
