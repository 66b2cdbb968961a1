//! Warns about files that other users of this machine may read or write, but should not.
//!
//! What must hold: such a file is never refused. In a container the process's user is the only one,
//! and the volume determines the mode; elsewhere the warning helps the operator.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Warns if every user may read a file that holds `what`.
pub fn warn_if_world_readable(path: &Path, what: &str) {
    const READ: u32 = 0o004;
    if may(path, READ) {
        let path = path.display();
        tracing::warn!(%path, "every user of this machine can read the file with {what}: run chmod 600");
    }
}

/// Warns if every user may change a file that holds `what`.
pub fn warn_if_world_writable(path: &Path, what: &str) {
    const WRITE: u32 = 0o002;
    if may(path, WRITE) {
        let path = path.display();
        tracing::warn!(%path, "every user of this machine can write to the file with {what}: run chmod 600");
    }
}

/// Whether users other than the owner and its group have this permission. Follows links.
fn may(path: &Path, bit: u32) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_a_links_target_counts() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| directory.path().join(name));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for (mode, expected) in [
            (0o600, [false, false]),
            (0o640, [false, false]),
            (0o644, [true, false]),
            (0o666, [true, true]),
        ] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let found = [0o004, 0o002].map(|bit| may(&link, bit));
            assert_eq!(found, expected, "{mode:o}");
        }
        assert!(!may(&directory.path().join("nothing"), 0o004));
    }
}
