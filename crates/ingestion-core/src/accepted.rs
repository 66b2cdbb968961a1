//! The outcomes of requests.

use std::sync::Arc;

use waybill_engine::{Offset, PartitionId, Priority, RequestHash, Timestamp};

/// A request that the broker has acknowledged.
#[derive(Clone, PartialEq, Debug)]
pub struct Accepted {
    /// The priority of the request.
    pub priority: Priority,
    /// The partition of its record.
    pub partition: PartitionId,
    /// The record's offset; `None` in the rare case that the broker acknowledged it without an
    /// offset.
    pub offset: Option<Offset>,
    /// Distinguishes a repeat from a conflict.
    pub hash: RequestHash,
    /// The requested workflow.
    pub workflow: Arc<str>,
    /// The tenant of the request, if any.
    pub tenant: Option<Arc<str>>,
    /// The caller's own id, if it differs.
    pub caller_id: Option<Arc<str>>,
    /// When it was accepted.
    pub requested_at: Timestamp,
}

impl Accepted {
    /// The tenant of the request; empty if it has none.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.tenant.as_deref().unwrap_or_default()
    }
}

/// The outcome of a request that was produced.
pub type Settled = Result<Accepted, Failed>;

/// Why a record was not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// It is certainly not in the log.
    Refused(Refusal),
    /// It may be in the log, now or later.
    Unknown,
}

/// Why a record is not in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The queue to the broker has no room.
    QueueFull,
    /// The topic or the disk has reached its limit.
    DiskLimit,
    /// The record is larger than the topic permits.
    TooLarge,
    /// The broker did not take it, or could not be reached.
    Broker,
}

impl Failed {
    /// Whether the broker failed, and not this process's queue or the record.
    pub(crate) fn is_of_the_broker(self) -> bool {
        match self {
            Self::Unknown => true,
            Self::Refused(refusal) => matches!(refusal, Refusal::DiskLimit | Refusal::Broker),
        }
    }
}
