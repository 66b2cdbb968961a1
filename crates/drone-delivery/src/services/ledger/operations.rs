//! Lists the existing effects of each operation, page by page, for tests with many operations.
//!
//! The index has the states of an operation but not its name, which would take more memory than all
//! the rest. The name is read from the operation's first line, outside the ledger's lock.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::states::{SlotSet, States};

/// The number of operations that are turned into lines at a time.
const OPERATIONS_AT_ONCE: usize = 256;

/// The maximum length of a line. The services write at most 256 bytes of key, twice, and about 200
/// more.
const LINE_BYTES_MAX: usize = 2_048;

/// An operation from the index.
pub(super) struct Listed {
    /// The offset of its first line.
    pub(super) first_line: u64,
    pub(super) states: States,
    pub(super) double: SlotSet,
}

/// A page of operations, ordered by first occurrence. Reading it blocks.
pub(in super::super) struct Operations {
    file: Arc<File>,
    /// The end of the ledger at the time of the request.
    end: u64,
    /// The step of each slot.
    steps: Vec<Box<str>>,
    listed: std::vec::IntoIter<Listed>,
}

/// One line of the answer.
#[derive(Serialize)]
struct Line<'a> {
    operation: &'a str,
    /// Steps with existing effects.
    standing: Vec<&'a str>,
    /// Steps with undone effects.
    undone: Vec<&'a str>,
    /// Steps whose undo arrived before their forward action.
    barred: Vec<&'a str>,
    /// Steps with an effect that was made again under the same key while it existed.
    double: Vec<&'a str>,
}

impl Operations {
    pub(super) fn new(
        file: Arc<File>,
        end: u64,
        steps: Vec<Box<str>>,
        listed: Vec<Listed>,
    ) -> Self {
        Self {
            file,
            end,
            steps,
            listed: listed.into_iter(),
        }
    }

    /// The next operations, each as a line of JSON; `None` at the end.
    pub(in super::super) fn next_lines(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut lines = Vec::new();
        for _ in 0..OPERATIONS_AT_ONCE {
            let Some(listed) = self.listed.next() else {
                break;
            };
            let operation = self.operation_of(&listed)?;
            let line = Line {
                operation: &operation,
                standing: self.steps_in(listed.states.made()),
                undone: self.steps_in(listed.states.undone()),
                barred: self.steps_in(listed.states.barred()),
                double: self.steps_in(listed.double),
            };
            serde_json::to_writer(&mut lines, &line)?;
            lines.push(b'\n');
        }
        Ok((!lines.is_empty()).then_some(lines))
    }

    /// The operation's ID, from its first line.
    fn operation_of(&self, listed: &Listed) -> io::Result<String> {
        #[derive(Deserialize)]
        struct Name {
            operation: String,
        }

        let left = self.end.saturating_sub(listed.first_line);
        let length = usize::try_from(left).map_or(LINE_BYTES_MAX, |left| left.min(LINE_BYTES_MAX));
        let mut bytes = [0; LINE_BYTES_MAX];
        let bytes = &mut bytes[..length];
        self.file.read_exact_at(bytes, listed.first_line)?;
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or(bytes);
        let name: Name = serde_json::from_slice(line)?;
        Ok(name.operation)
    }

    /// The distinct steps of these slots: several services may take part in one step.
    fn steps_in(&self, slots: SlotSet) -> Vec<&str> {
        let mut names = Vec::new();
        for (slot, step) in self.steps.iter().enumerate() {
            if slots.contains(slot) && !names.contains(&&**step) {
                names.push(&**step);
            }
        }
        names
    }
}
