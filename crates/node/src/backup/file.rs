//! The file of a backup: a tar archive that is compressed with zstd. `tar --zstd -tf FILE` lists
//! its members, in this order:
//!
//! ```text
//! waybill-backup.json              version of this format, and instant
//! store/TABLE/NUMBER               entries of a table of the store
//! broker/TABLE/NUMBER              entries of a table of the broker's metadata
//! logs/TOPIC/PARTITION/OFFSET.log  a segment of a log: record batches as Kafka stores them
//! manifest.json                    operations and records; name, size and SHA-256 of each member
//! ```
//!
//! An entry is the lengths of its key and its value (u32, little-endian), its key and its value.
//! Store and broker define their meaning. Tar needs the size of a member first, and that of a table
//! is unknown until all of it is read: so a table is in numbered members of some MiB.
//!
//! What must hold:
//!
//! * **A truncated or altered file is refused**, with the name of the member: by the manifest,
//!   which comes last. It does not prove who made the file.
//! * **Memory is bounded whatever a file holds.** There are limits on the window of the
//!   compression, the number of members, and the sizes of the manifest, names and entries.
//! * **No name leads to a path.** Nothing is unpacked: store and broker choose their own files.

mod reader;
mod writer;

use std::io;

use serde::{Deserialize, Serialize};
use waybill_engine::Timestamp;

pub(super) use reader::Reader;
pub use reader::check;
pub(super) use writer::Writer;

/// Version 1 was no archive.
const VERSION: u32 = 2;
/// How zstd's frames begin.
const MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

const HEAD: &str = "waybill-backup.json";
const MANIFEST: &str = "manifest.json";

/// The number of members.
const MEMBERS_MAX: usize = 250_000;
/// The size of the manifest, with long names of topics.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// The contents of a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contents {
    /// Operations of the store.
    pub operations: u64,
    /// Records of the logs.
    pub records: u64,
    /// The instant of the backup.
    pub at: Timestamp,
}

/// Why a file is no usable backup.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read the backup")]
    Io(#[from] io::Error),
    /// It is not a backup.
    #[error("not a Waybill backup")]
    NoBackup,
    /// Its version is not supported.
    #[error("unsupported backup version {0}: this program reads version {VERSION}")]
    Version(u32),
    /// A member cannot be read, or is not as the manifest says.
    #[error("the backup is truncated or altered {place}")]
    Altered {
        /// Where: in or after a member.
        place: String,
        /// The cause, if there is an error.
        #[source]
        source: Option<io::Error>,
    },
    /// A member is as the manifest says, but invalid.
    #[error("member {name} of the backup {problem}")]
    Member {
        /// The name.
        name: String,
        /// What is wrong.
        problem: &'static str,
    },
}

/// The database of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Database {
    Store,
    Broker,
}

impl Database {
    /// The directory of its members.
    fn directory(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Broker => "broker",
        }
    }
}

/// A piece of a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Piece<'a> {
    /// An entry of a table.
    Entry {
        database: Database,
        table: &'a str,
        key: &'a [u8],
        value: &'a [u8],
    },
    /// The start of a segment.
    Segment {
        topic: &'a str,
        partition: i32,
        base: i64,
    },
    /// More bytes of the current segment.
    LogBytes(&'a [u8]),
}

/// The first member.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    version: u32,
    at_micros: i64,
}

/// The last member.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    operations: u64,
    records: u64,
    members: Vec<Listed>,
}

/// A member as the manifest lists it.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Listed {
    name: String,
    bytes: u64,
    sha256: String,
}

#[cfg(test)]
mod tests;
