//! The schemas of all records.

use crate::kind::{RECORD_KINDS, RecordSchema};
use crate::{
    failed_operation, operation_request, operation_status, operator_alert, owner_notice, recovery,
    step_reply, step_request,
};

/// Every record's schema.
pub const RECORD_SCHEMAS: [RecordSchema; RECORD_KINDS] = [
    operation_request::SCHEMA,
    step_request::SCHEMA,
    step_reply::SCHEMA,
    failed_operation::SCHEMA,
    operation_status::SCHEMA,
    recovery::SCHEMA,
    operator_alert::SCHEMA,
    owner_notice::SCHEMA,
];
