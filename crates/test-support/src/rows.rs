//! Parts of rows, for unit tests and integration tests.

use std::sync::Arc;

use uuid::Uuid;
use waybill_engine::{
    Created, Epoch, Offset, OperationId, OperationRow, OperationState, PartitionId, Position,
    Priority, ProcessState, RequestHash, Stamp, StepProgress, Timestamp,
};

/// The created part of a plain request at the first record of partition 0.
pub fn created(workflow: &str, steps: &[&str]) -> Created {
    Created {
        workflow: workflow.into(),
        workflow_version: 1,
        step_names: steps.iter().map(|name| Arc::from(*name)).collect(),
        tenant: "".into(),
        caller_id: None,
        input: Arc::from(*b"{}"),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash::default(),
        request: Position {
            priority: Priority::Normal,
            partition: PartitionId(0),
            offset: Offset(0),
        },
        requested_at: Timestamp(0),
        created_at: Timestamp(1),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    }
}

/// The state of an operation before any step was requested.
pub fn untouched(state: ProcessState, steps: usize, updated_at: Timestamp) -> OperationState {
    OperationState {
        state,
        locked_by: None,
        epoch: Epoch(1),
        next_due: None,
        handed_off: false,
        failure_count: 0,
        sequence: 0,
        updated_at,
        error: None,
        failed_count: 0,
        undo_error: None,
        cancelled: false,
        abandoned: false,
        tombstone: false,
        amended: None,
        last_reply: None,
        last_asked: Vec::new(),
        history: Vec::new(),
        steps: vec![StepProgress::default(); steps],
    }
}

/// The row of an operation in `state`, before any step was requested.
pub fn row(state: ProcessState, steps: &[&str]) -> OperationRow {
    OperationRow {
        id: OperationId(Uuid::from_u128(7)),
        created: Arc::new(created("order", steps)),
        state: untouched(state, steps.len(), Timestamp(2)),
        stamp: Stamp(1),
    }
}
