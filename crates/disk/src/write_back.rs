//! Starts write-back of what no sync waits for.
//!
//! Otherwise Linux keeps written pages in memory for half a minute and then writes all of them to the disk at once
//! (`dirty_expire_centisecs`, Documentation/admin-guide/sysctl/vm.rst), or at the one sync of a large file. Syncs on that disk
//! then wait for hundreds of milliseconds.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;

/// Write-back starts each time that a file has grown by this many bytes: little for dozens of files together, and enough for
/// one write to a disk.
pub const WRITE_BACK_BYTES: u64 = 256 << 10;

/// How far write-back of one growing file has been started, or asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Started {
    /// Bytes from the file's beginning.
    bytes: u64,
}

impl Started {
    /// Of a file that had this many bytes when it was opened: what was there before is left to the system.
    pub fn at(bytes: u64) -> Self {
        Self { bytes }
    }

    /// The bytes for which write-back is due, now that the file has `bytes`, and counts them as started. `None`
    /// while they are fewer than [`WRITE_BACK_BYTES`].
    pub fn due(&mut self, bytes: u64) -> Option<Range<u64>> {
        let due = self.bytes..bytes;
        if bytes.saturating_sub(self.bytes) < WRITE_BACK_BYTES {
            return None;
        }
        self.bytes = bytes;
        Some(due)
    }
}

/// Starts write-back of these bytes of a file, normally without waiting: it waits while the disk's queue is
/// full. The bytes are not durable by that. The kernel reports a write that fails at the next sync of the file. Elsewhere
/// than on Linux, does nothing.
pub fn begin(file: &File, bytes: &Range<u64>) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let (from, length) = (
            signed(bytes.start),
            signed(bytes.end.saturating_sub(bytes.start)),
        );
        // SAFETY: the file is open for the call, which takes numbers alone.
        unsafe {
            libc::sync_file_range(file.as_raw_fd(), from, length, libc::SYNC_FILE_RANGE_WRITE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_back_is_due_once_for_each_256_kib() {
        let mut started = Started::at(1_000);
        assert_eq!(started.due(1_000), None);
        assert_eq!(started.due(1_000 + WRITE_BACK_BYTES - 1), None);
        let end = 1_000 + WRITE_BACK_BYTES;
        assert_eq!(started.due(end), Some(1_000..end));
        assert_eq!(started.due(end + 1), None);
        assert_eq!(started.due(end + 1_000_000), Some(end..end + 1_000_000));
    }

    #[test]
    fn a_file_that_became_shorter_is_not_due() {
        let mut started = Started::at(WRITE_BACK_BYTES * 2);
        assert_eq!(started.due(0), None);
    }
}
