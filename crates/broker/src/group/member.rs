//! The state of a group's member.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use tokio::sync::oneshot;

use super::messages::{JoinAnswer, SyncAnswer, protocols_bytes};

pub(super) struct Member {
    pub(super) id: StrBytes,
    pub(super) instance_id: Option<StrBytes>,
    pub(super) client_id: StrBytes,
    pub(super) client_host: StrBytes,
    pub(super) session_timeout: Duration,
    pub(super) rebalance_timeout: Duration,
    pub(super) protocols: Vec<(StrBytes, Bytes)>,
    pub(super) assignment: Bytes,
    pub(super) session_deadline: Instant,
    pub(super) joining: Option<oneshot::Sender<JoinAnswer>>,
    pub(super) syncing: Option<oneshot::Sender<SyncAnswer>>,
    pub(super) synced: bool,
}

impl Member {
    /// The heap memory of its fields, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let ids = [&self.id, &self.client_id, &self.client_host];
        ids.map(|id| id.len()).iter().sum::<usize>()
            + self.instance_id.as_ref().map_or(0, |id| id.len())
            + protocols_bytes(&self.protocols)
            + self.assignment.len()
    }
}
