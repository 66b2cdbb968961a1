//! Rows for tests.

use std::sync::Arc;

use uuid::Uuid;
use waybill_engine::{OperationId, OperationRow, ProcessState, Stamp, Timestamp};
use waybill_test_support::rows;

/// The row of an operation in `state`, none of whose steps was asked for.
pub fn row(state: ProcessState, steps: &[&str]) -> OperationRow {
    OperationRow {
        id: OperationId(Uuid::from_u128(7)),
        created: Arc::new(rows::created("order", steps)),
        state: rows::untouched(state, steps.len(), Timestamp(2)),
        stamp: Stamp(1),
    }
}
