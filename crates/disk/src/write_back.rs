//! Starts write-back of growing files early.
//!
//! Otherwise Linux keeps written pages in memory for half a minute and then writes all of them to
//! the disk in one burst (`dirty_expire_centisecs`, Documentation/admin-guide/sysctl/vm.rst), or at
//! the one sync of a large file. Syncs on that disk then wait for hundreds of milliseconds.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;

/// Write-back starts each time a file has grown by this many bytes: little for dozens of files
/// together, and enough for one disk write.
pub const WRITE_BACK_BYTES: u64 = 256 << 10;

/// The kernel writes whole pages back.
const PAGE_BYTES: u64 = 4 << 10;

/// How far write-back of one growing file has been started, or requested.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteBackProgress {
    /// Bytes from the file's beginning.
    bytes: u64,
}

impl WriteBackProgress {
    /// For a file that had this many bytes when it was opened. Those bytes are left to the system.
    pub fn at(bytes: u64) -> Self {
        Self { bytes }
    }

    /// Returns the bytes for which write-back is due now that the file has `bytes`, and counts them
    /// as started. `None` while they are fewer than [`WRITE_BACK_BYTES`]. A partial last page is
    /// left for later.
    pub fn take_due(&mut self, bytes: u64) -> Option<Range<u64>> {
        let full = bytes - bytes % PAGE_BYTES;
        let due = self.bytes..full;
        if full.saturating_sub(self.bytes) < WRITE_BACK_BYTES {
            return None;
        }
        self.bytes = full;
        Some(due)
    }
}

/// Starts write-back of these bytes of a file. It waits only while the disk's queue is full. This
/// does not make the bytes durable. The kernel reports a failed write at the next sync of the file.
/// Does nothing on systems other than Linux.
pub fn begin(file: &File, bytes: &Range<u64>) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let (from, length) = (
            signed(bytes.start),
            signed(bytes.end.saturating_sub(bytes.start)),
        );
        // SAFETY: the file is open during the call, and the other arguments are numbers.
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
    fn write_back_is_due_once_for_each_256_kib_of_whole_pages() {
        let mut progress = WriteBackProgress::at(1_000);
        assert_eq!(progress.take_due(1_000), None);
        assert_eq!(progress.take_due(WRITE_BACK_BYTES), None);
        let end = WRITE_BACK_BYTES + PAGE_BYTES;
        assert_eq!(progress.take_due(end + 1), Some(1_000..end));
        assert_eq!(progress.take_due(end + 2), None);
        let next = end + 2 * WRITE_BACK_BYTES;
        assert_eq!(progress.take_due(next), Some(end..next));
    }

    #[test]
    fn a_file_that_became_shorter_is_not_due() {
        let mut progress = WriteBackProgress::at(WRITE_BACK_BYTES * 2);
        assert_eq!(progress.take_due(0), None);
    }
}
