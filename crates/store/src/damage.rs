//! The unreadable parts of a store, for readiness, `doctor` and the log.

use std::fmt;

/// A part of the store that could not be read when it was last looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamagedPart {
    /// The table that it belongs to; `None` if a rebuild of the store left the entries out.
    pub table: Option<&'static str>,
    /// Which entries: `operation <id>`, or `the entries of index shard 3 from <time> to <time>`.
    pub entries: String,
    /// The files that hold it, if known.
    pub files: Vec<String>,
    /// The error of the disk or the checksum.
    pub cause: String,
}

impl fmt::Display for DamagedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            table,
            entries,
            files,
            cause,
        } = self;
        write!(f, "{entries}")?;
        if let Some(table) = table {
            write!(f, " in table {table}")?;
        }
        write!(f, " cannot be read: {cause}")?;
        if !files.is_empty() {
            write!(f, " (in {})", files.join(", "))?;
        }
        Ok(())
    }
}

/// Everything in a store that was found to be damaged since the store was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DamageReport {
    /// Why the store no longer accepts writes; `None` if it does.
    pub refused: Option<String>,
    /// The parts, oldest first, up to [`DamageReport::PARTS_MAX`] of them.
    pub parts: Vec<DamagedPart>,
    /// How many more there are.
    pub more: u64,
}

impl DamageReport {
    /// How many parts are named. Of more, only the number is known.
    pub const PARTS_MAX: usize = 100;

    /// Whether no damage is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
