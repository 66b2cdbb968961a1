//! Reads the ledger while it is written: existing lines never change.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The number of bytes in one read.
const READ_BYTES: usize = 64 * 1024;

/// The ends of all lines of tombstones and of refusals.
const NO_EFFECT_ENDS: [&[u8]; 2] = [b",\"tombstone\":true}\n", b",\"refused\":true}\n"];

/// Reads whole lines, some dozen kilobytes at a time. It blocks.
pub(in super::super) struct Reader {
    file: Arc<File>,
    /// The remaining ranges, in order. Each begins and ends with a line.
    ranges: std::vec::IntoIter<Range<u64>>,
    current: Range<u64>,
    /// The beginning of a line that is incomplete so far.
    rest: Vec<u8>,
}

impl Reader {
    pub(super) fn new(file: Arc<File>, ranges: Vec<Range<u64>>) -> Self {
        Self {
            file,
            ranges: ranges.into_iter(),
            current: 0..0,
            rest: Vec::new(),
        }
    }

    /// The next whole lines; `None` at the end.
    pub(in super::super) fn next_lines(&mut self) -> io::Result<Option<Vec<u8>>> {
        while self.current.is_empty() {
            match self.ranges.next() {
                Some(range) => self.current = range,
                None => return Ok(None),
            }
        }
        let left = self.current.end - self.current.start;
        let wanted = usize::try_from(left).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        let mut lines = std::mem::take(&mut self.rest);
        let from = lines.len();
        lines.resize(from + wanted, 0);
        self.file
            .read_exact_at(&mut lines[from..], self.current.start)?;
        self.current.start += wanted as u64;
        let end = lines
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |newline| newline + 1);
        self.rest = lines.split_off(end);
        Ok(Some(lines))
    }
}

/// Whether this line, including its end, records an effect or a repeat, and not a tombstone or a
/// refusal.
pub(in super::super) fn is_of_effect(line: &[u8]) -> bool {
    !NO_EFFECT_ENDS.iter().any(|end| line.ends_with(end))
}

/// The start of every line of `operation`.
pub(in super::super) fn line_start(operation: &str) -> String {
    format!("{{\"operation\":\"{operation}\",")
}
