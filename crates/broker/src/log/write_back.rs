//! Starts write-back of what no sync waits for.
//!
//! Otherwise Linux keeps written pages in memory for half a minute and then writes all of them to the disk at once
//! (`dirty_expire_centisecs`, Documentation/admin-guide/sysctl/vm.rst). Syncs on that disk then wait for hundreds
//! of milliseconds.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;

/// Write-back starts each time that a segment has grown by this many bytes: little for all partitions together, and enough
/// for one write to a disk.
pub(super) const WRITE_BACK_BYTES: u64 = 256 << 10;

/// Starts write-back of these bytes of a file, normally without waiting: it waits while the disk's queue is
/// full. The bytes are not durable by that. The kernel reports a
/// write that fails at the next sync of the file.
pub(super) fn begin(file: &File, bytes: &Range<u64>) {
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
