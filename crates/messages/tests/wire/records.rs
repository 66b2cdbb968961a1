//! What records look like on the wire, and that any value survives the way there and back.

use std::fmt::Debug;
use std::fs;

use crate::samples::{self, OPERATION, error, golden_file, pairs, to_hex};
use uuid::Uuid;
use waybill_engine::{
    Attempt, CreateRequest, Epoch, FailedOperation, IdOrigin, Offset, OperationId, OperationStatus,
    Outcome, PartitionId, ProcessState, StatusKind, StepReply, StepRequest, StepState, Timestamp,
};
use waybill_messages::{
    DecodeError, EncodeError, RECORD_SCHEMAS, Record, VALUE_BYTES_MAX, WriterSchema,
};

fn encoded(value: &impl Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut bytes).unwrap();
    bytes
}

#[track_caller]
fn survives<R: Record + PartialEq + Debug>(value: R) {
    assert_eq!(R::decode(&encoded(&value)).as_ref(), Ok(&value));
}

#[track_caller]
fn matches_golden<R: Record + PartialEq + Debug>(value: R) {
    let file = golden_file(R::SCHEMA.name);
    let golden = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(to_hex(&encoded(&value)), golden, "{}", file.display());
}

#[test]
fn records_look_like_their_golden_bytes() {
    matches_golden(samples::create_request());
    matches_golden(samples::step_request());
    matches_golden(samples::step_reply());
    matches_golden(samples::failed_operation());
    matches_golden(samples::operation_status());
}

#[test]
fn filled_records_survive() {
    survives(samples::create_request());
    survives(samples::step_request());
    survives(samples::step_reply());
    survives(samples::failed_operation());
    survives(samples::operation_status());
}

#[test]
fn encoding_appends_the_marker_the_fingerprint_and_the_datum() {
    let mut bytes = b"before".to_vec();
    samples::step_reply().encode(&mut bytes).unwrap();
    let value = bytes.strip_prefix(b"before").unwrap();
    assert_eq!(value[..2], [0xc3, 0x01]);
    assert_eq!(value[2..10], StepReply::fingerprint().to_le_bytes());
    // The datum begins with the operation id, a string of 36 characters.
    assert_eq!(value[10], 72);
    assert_eq!(&value[11..47], OPERATION.to_string().as_bytes());
}

#[test]
fn empty_and_extreme_values_survive() {
    survives(CreateRequest {
        operation: OperationId(Uuid::nil()),
        id_origin: IdOrigin::Caller,
        workflow: String::new(),
        tenant: String::new(),
        caller_id: None,
        input: Vec::new(),
        deadline: None,
        reply_to: None,
        requested_at: Timestamp(i64::MIN),
        ..samples::create_request()
    });
    survives(CreateRequest {
        operation: OperationId(Uuid::max()),
        caller_id: Some(String::new()),
        input: (0..=255).cycle().take(100_000).collect(),
        deadline: Some(Timestamp(i64::MAX)),
        requested_at: Timestamp(-1),
        ..samples::create_request()
    });
    survives(StepRequest {
        attempt: Attempt(i32::MAX as u32),
        epoch: Epoch(i64::MAX as u64),
        results: Vec::new(),
        input: Vec::new().into(),
        step: "Schritt \u{1f681}\0\"\n".into(),
        ..samples::step_request()
    });
    survives(StepRequest {
        attempt: Attempt(0),
        epoch: Epoch(0),
        results: (0..1_000)
            .map(|i| (format!("step.{i}"), "x".repeat(i % 50)))
            .collect(),
        ..samples::step_request()
    });
    survives(FailedOperation {
        caller_id: None,
        failing_step: None,
        failing_agent: None,
        completed_steps: Vec::new(),
        failure_counts: Vec::new(),
        step_states: Vec::new(),
        input: Vec::new(),
        ..samples::failed_operation()
    });
    survives(OperationStatus {
        caller_id: None,
        error: None,
        failing_step: None,
        reply_to: None,
        kind: StatusKind::Rejected,
        request: waybill_engine::Position {
            partition: PartitionId(0),
            offset: Offset(i64::MAX),
        },
        ..samples::operation_status()
    });
}

#[test]
fn every_outcome_and_every_state_survives() {
    for outcome in [
        Outcome::Success {
            outputs: Vec::new(),
        },
        Outcome::Success {
            outputs: pairs(&[("", ""), ("a", "b")]),
        },
        Outcome::Transient { error: error() },
        Outcome::Permanent { error: error() },
        Outcome::Unknown { error: error() },
        Outcome::NotAttempted {
            error: error(),
            retry_after_ms: 0,
        },
        Outcome::NotAttempted {
            error: error(),
            retry_after_ms: u32::MAX,
        },
    ] {
        survives(StepReply {
            outcome,
            ..samples::step_reply()
        });
    }
    for state in [
        ProcessState::Pending,
        ProcessState::Processing,
        ProcessState::Processed,
        ProcessState::Error,
    ] {
        survives(OperationStatus {
            state,
            ..samples::operation_status()
        });
    }
    let states = [
        StepState::NotStarted,
        StepState::Running,
        StepState::Completed,
        StepState::Failed,
        StepState::TimedOut,
        StepState::Skipped,
    ];
    let step_states = states
        .map(|state| (state.as_str().to_owned(), state))
        .into();
    survives(FailedOperation {
        step_states,
        ..samples::failed_operation()
    });
}

#[test]
fn the_trace_context_travels_in_a_header_and_not_in_the_value() {
    let mut request = samples::create_request();
    let without = encoded(&request);
    request.traceparent =
        Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    assert_eq!(encoded(&request), without);
}

#[test]
fn what_cannot_be_encoded_leaves_the_output_as_it_was() {
    let mut bytes = b"before".to_vec();
    let large = StepRequest {
        attempt: Attempt(u32::MAX),
        ..samples::step_request()
    };
    assert_eq!(
        large.encode(&mut bytes),
        Err(EncodeError::OutOfRange {
            record: "step-request",
            field: "attempt",
            value: u64::from(u32::MAX)
        })
    );
    let large = CreateRequest {
        input: vec![0; VALUE_BYTES_MAX],
        ..samples::create_request()
    };
    assert!(matches!(
        large.encode(&mut bytes),
        Err(EncodeError::TooLarge { .. })
    ));
    assert_eq!(bytes, b"before");
}

#[test]
fn fingerprints_are_the_schemas_and_differ() {
    let fingerprints = [
        CreateRequest::fingerprint(),
        StepRequest::fingerprint(),
        StepReply::fingerprint(),
        FailedOperation::fingerprint(),
        OperationStatus::fingerprint(),
    ];
    for (fingerprint, record) in fingerprints.into_iter().zip(RECORD_SCHEMAS) {
        assert_eq!(
            fingerprint,
            WriterSchema::parse(record.json).unwrap().fingerprint()
        );
    }
    for (i, fingerprint) in fingerprints.iter().enumerate() {
        assert!(!fingerprints[..i].contains(fingerprint));
    }
}

#[test]
fn a_record_of_another_kind_is_refused_by_its_fingerprint() {
    assert_eq!(
        StepReply::decode(&encoded(&samples::step_request())),
        Err(DecodeError::UnknownFingerprint {
            record: "step-reply",
            fingerprint: StepRequest::fingerprint()
        })
    );
}
