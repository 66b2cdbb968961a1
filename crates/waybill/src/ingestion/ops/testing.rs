//! Rows for tests.

use std::sync::Arc;

use uuid::Uuid;
use waybill_engine::{
    Created, Epoch, Offset, OperationId, OperationRow, OperationState, PartitionId, Position,
    ProcessState, RequestHash, Stamp, StepProgress, Timestamp,
};

/// The row of an operation in `state`, none of whose steps was asked for.
pub fn row(state: ProcessState, steps: &[&str]) -> OperationRow {
    let created = Created {
        workflow: "order".into(),
        workflow_version: 1,
        step_names: steps.iter().map(|name| Arc::from(*name)).collect(),
        tenant: "".into(),
        caller_id: None,
        input: Arc::from(*b"{}"),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash::default(),
        request: Position {
            partition: PartitionId(0),
            offset: Offset(0),
        },
        requested_at: Timestamp(0),
        created_at: Timestamp(1),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    };
    OperationRow {
        id: OperationId(Uuid::from_u128(7)),
        created: Arc::new(created),
        state: OperationState {
            state,
            locked_by: None,
            epoch: Epoch(1),
            next_due: None,
            handed_off: false,
            failure_count: 0,
            sequence: 0,
            updated_at: Timestamp(2),
            error: None,
            failed_count: 0,
            undo_error: None,
            cancelled: false,
            abandoned: false,
            tombstone: false,
            amended: None,
            history: Vec::new(),
            steps: vec![StepProgress::default(); steps.len()],
        },
        stamp: Stamp(1),
    }
}
