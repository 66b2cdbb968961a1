//! Values of each record with every field set, and the location of the golden bytes.

use std::path::PathBuf;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    Action, AlertKind, AmendRequest, Amendment, Attempt, AttemptSeen, Contact, CreateRequest,
    Epoch, FailedOperation, IdOrigin, LayoutShard, Nonce, Offset, OperationId, OperationRequest,
    OperationStatus, OperatorAlert, Outcome, OwnerNotice, PartitionId, Position, Priority,
    ProcessState, Recovery, RecoveryVerb, RequestHash, StatusKind, StepError, StepReply,
    StepRequest, StepState, Timestamp,
};

pub const OPERATION: OperationId =
    OperationId(Uuid::from_u128(0x0190_b1e2_3c4d_7e5f_8a9b_0c1d_2e3f_4a5b));
pub const OTHER: OperationId =
    OperationId(Uuid::from_u128(0x0190_b1e2_0000_7000_8000_0000_0000_00ff));
pub const EVENT: Uuid = Uuid::from_u128(0x1234_5678_9abc_5def_8123_4567_89ab_cdef);
pub const NONCE: Nonce = Nonce(*b"a nonce, 16 long");
pub const AT: Timestamp = Timestamp(1_760_000_000_123_456);

pub fn error() -> StepError {
    StepError {
        code: "owner-suspended".to_owned(),
        message: "owner 7 is suspended".to_owned(),
    }
}

pub fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

pub fn contacts() -> Vec<Contact> {
    ["mailto:anna@example.org", "tel:+491701234567"]
        .map(Contact::new)
        .into()
}

pub fn request() -> OperationRequest {
    OperationRequest::Create(create_request())
}

pub fn create_request() -> CreateRequest {
    CreateRequest {
        operation: OPERATION,
        id_origin: IdOrigin::Server,
        workflow: "drone-delivery".to_owned(),
        tenant: "acme".to_owned(),
        caller_id: Some("delivery-17".to_owned()),
        input: r#"{"ownerId":"o-1","pickupLocation":"Zürich"}"#.as_bytes().to_vec(),
        deadline: Some(Timestamp(1_760_000_600_000_000)),
        reply_to: Some("acme.deliveries".to_owned()),
        request_hash: RequestHash(*b"0123456789abcdef"),
        verify_hash: true,
        requested_at: AT,
        traceparent: None,
        resubmission_of: Some(OTHER),
        notify: contacts(),
    }
}

pub fn cancel() -> AmendRequest {
    AmendRequest {
        id: EVENT,
        operation: OPERATION,
        tenant: "acme".to_owned(),
        caller_id: Some("delivery-17".to_owned()),
        amendment: Amendment::Cancel {
            workflow: "drone-delivery".to_owned(),
        },
        reason: "wrong address".to_owned(),
        asked_by: "kim".to_owned(),
        requested_at: AT,
    }
}

pub fn reschedule() -> AmendRequest {
    AmendRequest {
        amendment: Amendment::Reschedule {
            fields: br#"{"pickupTime":"12:30"}"#.to_vec(),
            deadline: Some(Timestamp(1_760_000_700_000_000)),
        },
        reason: "nobody home".to_owned(),
        asked_by: String::new(),
        ..cancel()
    }
}

pub fn step_request() -> StepRequest {
    StepRequest {
        operation: OPERATION,
        workflow: "drone-delivery".into(),
        step: "drone".into(),
        agent: "drone-scheduler".into(),
        attempt: Attempt(2),
        epoch: Epoch(41),
        action: Action::Compensate,
        complete_by: Timestamp(1_760_000_005_000_000),
        tenant: "acme".into(),
        input: br#"{"ownerId":"o-1","pickupLocation":"Z\u00fcrich"}"#
            .as_slice()
            .into(),
        results: pairs(&[("package.id", "p-9"), ("account.suspended", "false")]),
        reply_partition: PartitionId(3),
        shard: Some(LayoutShard {
            layout: 3,
            number: 7,
        }),
        nonce: Some(NONCE),
        traceparent: None,
    }
}

pub fn step_reply() -> StepReply {
    StepReply {
        operation: OPERATION,
        step: "drone".to_owned(),
        attempt: Attempt(2),
        epoch: Epoch(41),
        action: Action::Probe,
        nonce: Some(NONCE),
        outcome: Outcome::Success {
            outputs: pairs(&[("droneId", "d-5"), ("eta", "12")]),
        },
    }
}

pub fn failed_operation() -> FailedOperation {
    FailedOperation {
        event_id: EVENT,
        operation: OPERATION,
        caller_id: Some("delivery-17".to_owned()),
        workflow: "drone-delivery".to_owned(),
        workflow_version: 4,
        tenant: "acme".to_owned(),
        failing_step: Some("drone".to_owned()),
        failing_agent: Some("drone-scheduler".to_owned()),
        failing_attempt: Attempt(6),
        failing_action: Action::Probe,
        awaits_decision: true,
        error: error(),
        completed_steps: vec!["account".to_owned(), "package".to_owned()],
        failure_counts: vec![("drone".to_owned(), 5), ("package".to_owned(), 1)],
        step_states: [
            ("account", StepState::Completed),
            ("package", StepState::Completed),
            ("third-party", StepState::Skipped),
            ("drone", StepState::Failed),
            ("delivery", StepState::NotStarted),
        ]
        .map(|(step, state)| (step.to_owned(), state))
        .into(),
        input: b"{}".to_vec(),
        requested_at: AT,
        failed_at: Timestamp(AT.0 + 1),
    }
}

pub fn operation_status() -> OperationStatus {
    OperationStatus {
        event_id: EVENT,
        operation: OPERATION,
        caller_id: Some("delivery-17".to_owned()),
        workflow: "drone-delivery".to_owned(),
        tenant: "acme".to_owned(),
        kind: StatusKind::Step,
        state: ProcessState::Compensating,
        sequence: 5,
        error: Some(error()),
        failing_step: Some("account".to_owned()),
        step: Some(("package".to_owned(), StepState::Compensated)),
        request: Position {
            priority: Priority::High,
            partition: PartitionId(3),
            offset: Offset(123_456_789_012),
        },
        requested_at: AT,
        at: Timestamp(AT.0 + 2),
        reply_to: Some("acme.deliveries".to_owned()),
    }
}

pub fn recovery() -> Recovery {
    Recovery {
        id: EVENT,
        operation: OPERATION,
        asked_by: "supervisor-2".to_owned(),
        reason: "complete-by has passed".to_owned(),
        asked_at: AT,
        due: Some(Timestamp(AT.0 - 1)),
        verb: RecoveryVerb::Retry {
            seen: AttemptSeen {
                step: "drone".to_owned(),
                action: Action::Compensate,
                attempt: Attempt(3),
            },
            budget: Duration::from_secs(10),
        },
    }
}

/// An operator's request.
pub fn repair(verb: RecoveryVerb) -> Recovery {
    Recovery {
        asked_by: "kim".to_owned(),
        reason: "sent back".to_owned(),
        due: None,
        verb,
        ..recovery()
    }
}

pub fn operator_alert() -> OperatorAlert {
    OperatorAlert {
        event_id: EVENT,
        kind: AlertKind::ManualUndo,
        operation: OPERATION,
        caller_id: Some("delivery-17".to_owned()),
        workflow: "drone-delivery".to_owned(),
        tenant: "acme".to_owned(),
        step: Some("package".to_owned()),
        error: Some(error()),
        advice: "undo it, then say so".to_owned(),
        at: AT,
    }
}

pub fn owner_notice() -> OwnerNotice {
    OwnerNotice {
        event_id: EVENT,
        operation: OPERATION,
        caller_id: Some("delivery-17".to_owned()),
        workflow: "drone-delivery".to_owned(),
        tenant: "acme".to_owned(),
        state: ProcessState::Compensated,
        contacts: contacts(),
        at: AT,
    }
}

/// The file of golden bytes, by record and version. They are the samples as encoded, fingerprint
/// included, by an encoder that shares no code with the Avro library.
pub fn golden_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.hex"))
}

/// Bytes as hexadecimal digits, 32 bytes per line.
pub fn to_hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| {
        line.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    bytes.chunks(32).map(|bytes| line(bytes) + "\n").collect()
}
