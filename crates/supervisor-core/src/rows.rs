//! Rows for tests: of this crate's units, and of its simulation.

use std::sync::Arc;

use waybill_engine::{
    Created, Epoch, Offset, OperationId, OperationRow, OperationState, PartitionId, Position,
    Priority, ProcessState, RequestHash, Stamp, StepProgress, Timestamp,
};

/// The row of an operation that was handed off until `due`.
pub fn handed_off(id: OperationId, state: ProcessState, due: Option<Timestamp>) -> OperationRow {
    let created = Created {
        workflow: "order".into(),
        workflow_version: 1,
        step_names: vec!["pay".into()],
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
    };
    let state = OperationState {
        state,
        locked_by: None,
        epoch: Epoch(1),
        next_due: due,
        handed_off: true,
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
        last_reply: None,
        last_asked: Vec::new(),
        history: Vec::new(),
        steps: vec![StepProgress::default()],
    };
    OperationRow {
        id,
        created: Arc::new(created),
        state,
        stamp: Stamp(1),
    }
}
