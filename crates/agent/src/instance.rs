//! A process name that is stable over restarts and unique.
//!
//! A member of a consumer group that was killed keeps its partitions until its session ends, unless
//! it returns under the same name ([`AgentsSettings::instance_id`]). Two processes with one name
//! would be worse than none: the group ends one of them. So a name belongs to a place in a
//! directory, and a place to the one process that has locked it. The operating system releases the
//! lock when that process ends, however it ends.
//!
//! [`AgentsSettings::instance_id`]: crate::AgentsSettings::instance_id

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// A place in a directory, held until it is dropped.
#[derive(Debug)]
pub struct InstancePlace {
    id: String,
    /// Holds the lock.
    _file: File,
}

/// Why no place could be taken.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// The directory or a file in it cannot be used.
    #[error("{} cannot be used", .path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Every place is taken.
    #[error("{} is already shared by {} processes", .path.display(), InstancePlace::PLACES)]
    Full {
        /// The directory.
        path: PathBuf,
    },
}

impl InstancePlace {
    /// How many processes may share a directory.
    pub const PLACES: u32 = 64;

    /// Takes the first free place of a directory, and creates the directory if it is missing.
    /// Restarted processes find the same set of places, though not necessarily each its own.
    ///
    /// # Errors
    ///
    /// If the directory cannot be written to, its file system has no locks, or it has no free
    /// place.
    pub fn take(dir: &Path) -> Result<Self, InstanceError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| InstanceError::Io { path, source }
        };
        fs::create_dir_all(dir).map_err(failed(dir))?;
        for place in 0..Self::PLACES {
            let path = dir.join(format!("instance-{place}"));
            let mut file = File::options()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(&path)
                .map_err(failed(&path))?;
            match file.try_lock() {
                Ok(()) => {
                    let name = name_in(&mut file).map_err(failed(&path))?;
                    let id = format!("waybill-{}{}", host_prefix(), name.simple());
                    return Ok(Self { id, _file: file });
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(failed(&path)(source)),
            }
        }
        Err(InstanceError::Full {
            path: dir.to_owned(),
        })
    }

    /// The name: letters, digits, dots and hyphens, as consumer groups require.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// The name in a file, or a new one, which is written to it.
fn name_in(file: &mut File) -> io::Result<Uuid> {
    let mut text = Vec::new();
    file.take(128).read_to_end(&mut text)?;
    if let Ok(name) = Uuid::try_parse_ascii(text.trim_ascii()) {
        return Ok(name);
    }
    // Empty, or a torn first write.
    let name = Uuid::new_v4();
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("{name}\n").as_bytes())?;
    file.sync_all()?;
    Ok(name)
}

/// The host name and a hyphen, if the system provides it. Without it, copies of a directory, as in
/// container or machine images, would use the same names.
fn host_prefix() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut prefix: String = host
        .trim()
        .chars()
        .filter(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '.'))
        .take(64)
        .collect();
    if !prefix.is_empty() {
        prefix.push('-');
    }
    prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_name_is_kept_and_held_by_one_process() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made/on/demand");
        let first = InstancePlace::take(&dir).unwrap();
        let second = InstancePlace::take(&dir).unwrap();
        assert_ne!(first.id(), second.id());

        let name = first.id().to_owned();
        drop(first);
        let again = InstancePlace::take(&dir).unwrap();
        assert_eq!(again.id(), name);
        assert!(name.len() <= 249, "{name}");
        let is_legal = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '.');
        assert!(name.chars().all(is_legal), "{name}");
    }

    #[test]
    fn a_torn_file_gets_a_new_name_that_lasts() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("instance-0"), "0190-torn").unwrap();
        let name = InstancePlace::take(dir.path()).unwrap().id().to_owned();
        assert_eq!(InstancePlace::take(dir.path()).unwrap().id(), name);
    }

    #[test]
    fn a_full_directory_and_a_file_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let places: Vec<_> = (0..InstancePlace::PLACES)
            .map(|_| InstancePlace::take(dir.path()).unwrap())
            .collect();
        let refused = InstancePlace::take(dir.path()).unwrap_err();
        assert!(matches!(refused, InstanceError::Full { .. }), "{refused}");
        drop(places);

        let file = dir.path().join("instance-0");
        let refused = InstancePlace::take(&file).unwrap_err();
        assert!(
            matches!(&refused, InstanceError::Io { path, .. } if *path == file),
            "{refused}"
        );
    }
}
