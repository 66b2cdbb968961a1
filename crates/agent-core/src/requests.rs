//! Requests and times for tests.

use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    Action, Attempt, BootTime, Epoch, LayoutShard, Now, OperationId, PartitionId, StepRequest,
    Timestamp,
};

pub(crate) const SHARD: LayoutShard = LayoutShard {
    layout: 1,
    number: 3,
};

/// The time this many milliseconds after the begin of a test.
pub(crate) fn at(millis: u64) -> Now {
    let since = Duration::from_millis(millis);
    Now {
        wall: Timestamp::from_millis(1_700_000_000_000) + since,
        boot: BootTime::from_micros(3_600_000_000) + since,
    }
}

/// A request of the owner of [`SHARD`] with this epoch, to be completed until `complete_by`.
pub(crate) fn request(epoch: u64, complete_by: Now) -> StepRequest {
    StepRequest {
        operation: OperationId(Uuid::from_u128(7)),
        workflow: "test".into(),
        step: "step".into(),
        agent: "agent".into(),
        attempt: Attempt(1),
        epoch: Epoch(epoch),
        action: Action::Run,
        complete_by: complete_by.wall,
        tenant: "".into(),
        input: (&b"{}"[..]).into(),
        results: Vec::new(),
        reply_partition: PartitionId(0),
        shard: Some(SHARD),
        nonce: None,
        traceparent: None,
    }
}
