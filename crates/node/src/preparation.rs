//! Prepares the data directory of this process.
//!
//! A full disk ends no process. Existing files are opened on it, but new ones cannot be created: so
//! a first start waits until there is room for them.
//!
//! What must hold: only the process's user reads it, because it holds all data of clients. An
//! existing directory keeps its mode, and the log warns if other users may read it, except for the
//! group through which containers get access. A refusal names the user of the process and the owner
//! of the directory: in containers, nothing else shows them.

use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::process::{getgid, getuid};
use waybill_disk::{is_full, sync_dir};
use waybill_telemetry::health::Readiness;

use crate::data_dir::create;
use crate::disk::Space;

/// The permissions of users who neither own the directory nor are in its group.
const OTHERS: u32 = 0o007;
/// The permissions of users in the directory's group.
const GROUP: u32 = 0o070;
/// The group of the superuser, and of the arbitrary users that OpenShift runs containers as.
const ROOT_GROUP: u32 = 0;
/// What must be free before new files are created: the files of an empty broker and store take far
/// less.
const NEW_BYTES: u64 = 16 << 20;
/// How many inodes must be free. An empty store takes about 30 files; topics wait for room on their
/// own.
const NEW_FILES: u64 = 1_000;
/// The pause before the free space is read again.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The path is not a directory.
    #[error("{} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// The directory does not exist and cannot be created.
    #[error("cannot create the directory {}{rights}", .path.display())]
    Make {
        /// The directory.
        path: PathBuf,
        /// The rights in its closest parent that exists.
        rights: Rights,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// This user has no permission to read the directory, or create files in it.
    #[error("cannot read and write the directory {}{rights}", .path.display())]
    Access {
        /// The directory.
        path: PathBuf,
        /// The rights in it, or in its closest parent that can be examined.
        rights: Rights,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The user of this process, and the owner and mode of a directory.
#[derive(Debug)]
pub struct Rights {
    user: u32,
    group: u32,
    directory: Option<Directory>,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    owner: u32,
    group: u32,
    mode: u32,
}

impl Rights {
    /// The rights of this process in a directory, or in its closest parent that can be examined.
    fn to(path: &Path) -> Self {
        let mut candidates = path.ancestors();
        let directory = candidates.find_map(|path| {
            // The last ancestor of a relative path.
            let path = if path.as_os_str().is_empty() {
                Path::new(".")
            } else {
                path
            };
            let found = fs::metadata(path).ok()?;
            Some(Directory::new(path, &found))
        });
        Self {
            user: getuid().as_raw(),
            group: getgid().as_raw(),
            directory,
        }
    }
}

/// Who may access a data directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Readers {
    /// The user of the process, and in containers the group that it has for this purpose.
    Intended,
    /// The other users of the directory's group as well.
    Group,
    /// Every user.
    All,
}

impl Directory {
    fn new(path: &Path, found: &Metadata) -> Self {
        Self {
            path: path.to_owned(),
            owner: found.uid(),
            group: found.gid(),
            mode: found.mode() & 0o7777,
        }
    }

    /// Who may access it besides the user of the process. A process that does not own its directory
    /// has access through the group: in a container as OpenShift's arbitrary user of group 0, or
    /// through the `fsGroup` of a Kubernetes volume. The image's own directory belongs to group 0.
    fn readers(&self, user: u32) -> Readers {
        match self.mode {
            mode if mode & OTHERS != 0 => Readers::All,
            mode if mode & GROUP != 0 && self.owner == user && self.group != ROOT_GROUP => {
                Readers::Group
            }
            _ => Readers::Intended,
        }
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " as user {} of group {}", self.user, self.group)?;
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let Directory {
            path,
            owner,
            group,
            mode,
        } = directory;
        let path = path.display();
        write!(
            f,
            " ({path} belongs to user {owner} and group {group}, mode {mode:03o})"
        )
    }
}

/// Creates the directory and its parents for this user only. Warns if it exists and other users may
/// access it. On a full disk it may not exist afterwards: [`wait_for_room`] creates it.
///
/// # Errors
///
/// If the directory cannot be created, or exists and cannot be used.
pub fn prepare(path: &Path) -> Result<(), DataDirError> {
    if let Some(found) = make_usable(path)? {
        warn_if_shared(&Directory::new(path, &found), getuid().as_raw());
    }
    Ok(())
}

/// The same without the warning. Returns what an existing directory is.
///
/// # Errors
///
/// As [`prepare`].
pub fn make_usable(path: &Path) -> Result<Option<Metadata>, DataDirError> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match make(path) {
                Err(DataDirError::Make { source, .. }) if is_full(&source) => Ok(None),
                made => made.map(|()| None),
            };
        }
        Err(source) => {
            return Err(no_access(path, source));
        }
    };
    if !found.is_dir() {
        return Err(DataDirError::NotADirectory(path.to_owned()));
    }
    let needed = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    access(path, needed).map_err(|error| no_access(path, error.into()))?;
    Ok(Some(found))
}

fn warn_if_shared(directory: &Directory, user: u32) {
    let path = directory.path.display();
    let mode = format!("{:o}", directory.mode & 0o777);
    match directory.readers(user) {
        Readers::Intended => {}
        Readers::Group => tracing::warn!(
            %path,
            mode,
            group = directory.group,
            "all users of its group can read the data directory: run chmod 700"
        ),
        Readers::All => tracing::warn!(
            %path,
            mode,
            "every user of this machine can read the data directory: run chmod 700"
        ),
    }
}

fn make(path: &Path) -> Result<(), DataDirError> {
    create(path).map_err(|source| DataDirError::Make {
        path: path.to_owned(),
        rights: Rights::to(path),
        source,
    })?;
    // A parent that this user cannot read is not new either.
    if let Some(parent) = path.parent()
        && let Err(error) = sync_dir(parent)
        && error.kind() != io::ErrorKind::PermissionDenied
    {
        tracing::warn!(path = %parent.display(), %error, "cannot sync the parent of the data directory");
    }
    Ok(())
}

/// A part of the data directory.
#[derive(Debug)]
pub struct Part {
    /// Its directory.
    pub dir: PathBuf,
    /// Whether an earlier start has created its files.
    pub is_created: bool,
}

/// Waits for room, if a part of the data directory has yet to be created, or the directory itself.
/// Readiness says so meanwhile. Then creates the data directory if it does not exist.
///
/// # Errors
///
/// If the data directory cannot be created.
pub async fn wait_for_room(
    path: &Path,
    parts: &[Part],
    readiness: &Readiness,
) -> Result<(), DataDirError> {
    if path.exists() && parts.iter().all(|part| part.is_created) {
        return Ok(());
    }
    let room = readiness.expect("disk space for new data");
    let mut is_logged = false;
    while let Some(missing) = missing_room(path, parts)? {
        let dir = path.display();
        let note = format!("{missing}; free up space there, and the start continues");
        room.note(Some(&note));
        if !std::mem::replace(&mut is_logged, true) {
            tracing::warn!(%dir, missing, "the disk has no space for new data; waiting until space is freed");
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
    room.withdraw();
    Ok(())
}

/// What a first start lacks, if it does. Creates the directories: without room for these, there is
/// none for their files, be it for want of bytes, of inodes or by a quota.
fn missing_room(path: &Path, parts: &[Part]) -> Result<Option<String>, DataDirError> {
    // A file system that cannot be measured is tried.
    if let Ok(space) = Space::of(path) {
        let dir = path.display();
        if space.free < NEW_BYTES {
            let free = space.free;
            return Ok(Some(format!(
                "{free} bytes are free in {dir}, and a first start needs {NEW_BYTES}"
            )));
        }
        if let Some(free) = space.free_files.filter(|free| *free < NEW_FILES) {
            return Ok(Some(format!(
                "{free} inodes are free in {dir}, and a first start needs {NEW_FILES}"
            )));
        }
    }
    let parts = parts.iter().filter(|part| !part.is_created);
    for dir in std::iter::once(path).chain(parts.map(|part| &*part.dir)) {
        match make(dir) {
            Err(DataDirError::Make { source, .. }) if is_full(&source) => {
                return Ok(Some(format!("cannot create {}: {source}", dir.display())));
            }
            made => made?,
        }
    }
    Ok(None)
}

fn no_access(path: &Path, source: io::Error) -> DataDirError {
    DataDirError::Access {
        path: path.to_owned(),
        rights: Rights::to(path),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use waybill_test_support::log::Lines;

    use super::*;
    use crate::data_dir::MODE;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_directory_is_private_and_an_existing_one_keeps_its_mode() {
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

    #[test]
    fn a_refusal_names_user_owner_and_mode() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o750)).unwrap();
        let owner = fs::metadata(root.path()).unwrap();
        let rights = format!(
            "as user {} of group {} ({} belongs to user {} and group {}, mode 750)",
            getuid().as_raw(),
            getgid().as_raw(),
            root.path().display(),
            owner.uid(),
            owner.gid()
        );
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let refused = no_access(root.path(), denied()).to_string();
        let path = root.path().display();
        assert_eq!(
            refused,
            format!("cannot read and write the directory {path} {rights}")
        );
        let below = root.path().join("missing/data");
        let refused = DataDirError::Make {
            path: below.clone(),
            rights: Rights::to(&below),
            source: denied(),
        };
        let path = below.display();
        assert_eq!(
            refused.to_string(),
            format!("cannot create the directory {path} {rights}")
        );
    }

    #[test]
    fn a_directory_of_mode_0_is_refused_unless_the_user_is_privileged() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o0)).unwrap();
        match prepare(root.path()) {
            Err(error) => assert!(error.to_string().ends_with("mode 000)"), "{error}"),
            Ok(()) => assert_eq!(getuid().as_raw(), 0),
        }
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
        assert_eq!(logged(0o700), "");
    }

    #[test]
    fn only_the_start_warns_and_not_each_use() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (lines, log) = (Lines::default(), tracing_subscriber::fmt());
        let log = log.with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(log, || make_usable(root.path()).unwrap());
        assert_eq!(lines.text(), "");
    }

    #[test]
    fn group_access_is_warned_of_unless_a_container_needs_it() {
        const USER: u32 = 10_001;
        let directory = |owner, group, mode| Directory {
            path: PathBuf::from("/var/lib/waybill"),
            owner,
            group,
            mode,
        };
        for (owner, group, mode, expected) in [
            (USER, USER, 0o700, Readers::Intended),
            (USER, USER, 0o750, Readers::Group),
            (USER, USER, 0o2770, Readers::Group),
            (USER, USER, 0o755, Readers::All),
            // The image's directory, for its own user and for an arbitrary one of group 0.
            (USER, ROOT_GROUP, 0o770, Readers::Intended),
            (USER + 1, ROOT_GROUP, 0o770, Readers::Intended),
            (USER, ROOT_GROUP, 0o775, Readers::All),
            // A volume with an fsGroup.
            (0, USER, 0o2770, Readers::Intended),
        ] {
            let readers = directory(owner, group, mode).readers(USER);
            assert_eq!(readers, expected, "{owner}:{group} {mode:o}");
        }
        let (lines, log) = (Lines::default(), tracing_subscriber::fmt());
        let log = log.with_writer(lines.clone()).finish();
        let shared = directory(USER, USER, 0o750);
        tracing::subscriber::with_default(log, || warn_if_shared(&shared, USER));
        assert!(lines.text().contains("all users of its group"));
    }
}
