//! Begins to write to the disk what no sync waits for.
//!
//! Left alone, Linux keeps what was written in memory for half a minute and then writes all of it at once
//! (`dirty_expire_centisecs`, Documentation/admin-guide/sysctl/vm.rst). Every sync on that disk waits meanwhile, for
//! hundreds of milliseconds.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;

/// After how many bytes of a segment they are written: few enough for all partitions together, and enough for one write of
/// a disk.
pub(super) const WRITE_BACK_BYTES: u64 = 256 << 10;

/// Begins to write these bytes of a file, and does not wait. What fails is reported by the next sync of the file.
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
