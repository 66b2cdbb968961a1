//! The data directory of this process.
//!
//! What must hold: only the process's user reads it, because it holds all data of clients. An
//! existing directory keeps its mode, and the log warns if other users may read it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Only the user may access the directory.
const MODE: u32 = 0o700;
/// The permissions of users who neither own the directory nor are in its group.
const OTHERS: u32 = 0o007;

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DataDirError {
    /// The path is not a directory.
    #[error("{} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// The directory does not exist and cannot be created.
    #[error("cannot create the directory {}", .path.display())]
    Make {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// This user may not read the directory, or create files in it.
    #[error("cannot read and write the directory {}", .path.display())]
    Access {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Creates the directory and its parents for this user only. Warns if it exists and every user may
/// access it.
///
/// # Errors
///
/// If the directory cannot be created, or exists and cannot be used.
pub(super) fn prepare(path: &Path) -> Result<(), DataDirError> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return make(path),
        Err(source) => {
            let path = path.to_owned();
            return Err(DataDirError::Access { path, source });
        }
    };
    if !found.is_dir() {
        return Err(DataDirError::NotADirectory(path.to_owned()));
    }
    let needed = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    access(path, needed).map_err(|error| DataDirError::Access {
        path: path.to_owned(),
        source: error.into(),
    })?;
    let mode = found.permissions().mode();
    if mode & OTHERS != 0 {
        tracing::warn!(
            path = %path.display(),
            mode = format_args!("{:o}", mode & 0o777),
            "every user of this machine can read the data directory: run chmod 700"
        );
    }
    Ok(())
}

fn make(path: &Path) -> Result<(), DataDirError> {
    let mut directories = DirBuilder::new();
    let made = directories.recursive(true).mode(MODE).create(path);
    made.map_err(|source| DataDirError::Make {
        path: path.to_owned(),
        source,
    })
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
        prepare(&path).unwrap();
        assert_eq!(mode(&path), MODE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        prepare(&path).unwrap();
        assert_eq!(mode(&path), 0o755);
    }

    #[test]
    fn a_file_and_a_directory_below_a_file_are_refused_by_their_names() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let refused = prepare(&file).unwrap_err().to_string();
        assert_eq!(refused, format!("{} is not a directory", file.display()));
        let below = file.join("data");
        let refused = prepare(&below).unwrap_err().to_string();
        assert!(refused.contains(below.to_str().unwrap()), "{refused}");
    }

    /// The log lines about a directory of this mode.
    fn logged(mode: u32) -> String {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(mode)).unwrap();
        let (lines, log) = (Lines::default(), tracing_subscriber::fmt());
        let log = log.with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(log, || prepare(root.path()).unwrap());
        lines.text()
    }

    #[test]
    fn a_data_directory_that_every_user_may_read_is_warned_of() {
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
