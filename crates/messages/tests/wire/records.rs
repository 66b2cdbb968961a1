//! The wire form of records, and round trips of any value.

use std::fmt::Debug;
use std::fs;
use std::time::Duration;

use crate::rewritten::fields_of;
use crate::samples::{self, OPERATION, error, golden_file, pairs, to_hex};
use apache_avro::types::Value;
use uuid::Uuid;
use waybill_engine::{
    Action, AlertKind, AmendRequest, Amendment, Attempt, AttemptSeen, Contact, CreateRequest,
    Epoch, FailedOperation, IdOrigin, Offset, OperationId, OperationRequest, OperationStatus,
    OperatorAlert, Outcome, OwnerNotice, PartitionId, Priority, ProcessState, Recovery,
    RecoveryVerb, StatusKind, StepReply, StepRequest, StepState, Timestamp,
};
use waybill_messages::{
    ASKED_BY_BYTES_MAX, DecodeError, EncodeError, FieldError, REASON_BYTES_MAX, RECORD_SCHEMAS,
    Record, VALUE_BYTES_MAX, WriterSchema,
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
fn matches_golden<R: Record + PartialEq + Debug>(name: &str, value: R) {
    let file = golden_file(name);
    let golden = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(to_hex(&encoded(&value)), golden, "{}", file.display());
    survives(value);
}

const STEP_STATES: [StepState; 8] = [
    StepState::NotStarted,
    StepState::Running,
    StepState::Completed,
    StepState::Failed,
    StepState::TimedOut,
    StepState::Skipped,
    StepState::Compensating,
    StepState::Compensated,
];

const STATUS_KINDS: [StatusKind; 7] = [
    StatusKind::Final,
    StatusKind::Rejected,
    StatusKind::Received,
    StatusKind::Step,
    StatusKind::CancelRefused,
    StatusKind::Rescheduled,
    StatusKind::RescheduleRefused,
];

const ALERT_KINDS: [AlertKind; 5] = [
    AlertKind::OperationParked,
    AlertKind::CompensationFailed,
    AlertKind::ManualUndo,
    AlertKind::Waiting,
    AlertKind::RowUnreadable,
];

fn verbs() -> Vec<RecoveryVerb> {
    let seen = |action| AttemptSeen {
        step: "drone".to_owned(),
        action,
        attempt: Attempt(0),
    };
    let budget = Duration::from_millis(1);
    vec![
        RecoveryVerb::Wake,
        RecoveryVerb::Retry {
            seen: seen(Action::Run),
            budget,
        },
        RecoveryVerb::Compensate { seen: None },
        RecoveryVerb::Compensate {
            seen: Some(seen(Action::Run)),
        },
        RecoveryVerb::Park {
            seen: seen(Action::Compensate),
        },
        RecoveryVerb::Resubmit,
        RecoveryVerb::Abandon,
        RecoveryVerb::RetryCompensation,
        RecoveryVerb::Undone {
            step: "package".to_owned(),
        },
        RecoveryVerb::Resubmitted {
            as_operation: samples::OTHER,
        },
    ]
}

#[test]
fn records_match_their_golden_bytes() {
    let amended = OperationRequest::Amend;
    matches_golden("operation-request.v1", samples::request());
    matches_golden("operation-request-cancel.v1", amended(samples::cancel()));
    matches_golden(
        "operation-request-reschedule.v1",
        amended(samples::reschedule()),
    );
    matches_golden("step-request.v1", samples::step_request());
    matches_golden("step-reply.v1", samples::step_reply());
    matches_golden("failed-operation.v1", samples::failed_operation());
    matches_golden("operation-status.v1", samples::operation_status());
    matches_golden("recovery.v1", samples::recovery());
    let step = "package".to_owned();
    matches_golden(
        "recovery-undone.v1",
        samples::repair(RecoveryVerb::Undone { step }),
    );
    let as_operation = samples::OTHER;
    matches_golden(
        "recovery-resubmitted.v1",
        samples::repair(RecoveryVerb::Resubmitted { as_operation }),
    );
    matches_golden("operator-alert.v1", samples::operator_alert());
    matches_golden("owner-notice.v1", samples::owner_notice());
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
    survives(OperationRequest::Create(CreateRequest {
        operation: OperationId(Uuid::nil()),
        id_origin: IdOrigin::Caller,
        workflow: String::new(),
        tenant: String::new(),
        caller_id: None,
        input: Vec::new(),
        deadline: None,
        reply_to: None,
        requested_at: Timestamp(i64::MIN),
        resubmission_of: None,
        notify: Vec::new(),
        ..samples::create_request()
    }));
    survives(OperationRequest::Create(CreateRequest {
        operation: OperationId(Uuid::max()),
        caller_id: Some(String::new()),
        input: (0..=255).cycle().take(100_000).collect(),
        deadline: Some(Timestamp(i64::MAX)),
        requested_at: Timestamp(-1),
        notify: vec![Contact::new("x".repeat(Contact::BYTES_MAX)); Contact::COUNT_MAX],
        ..samples::create_request()
    }));
    survives(OperationRequest::Amend(AmendRequest {
        tenant: String::new(),
        caller_id: None,
        amendment: Amendment::Cancel {
            workflow: String::new(),
        },
        reason: String::new(),
        ..samples::cancel()
    }));
    survives(OperationRequest::Amend(AmendRequest {
        id: Uuid::max(),
        amendment: Amendment::Reschedule {
            fields: Vec::new(),
            deadline: None,
        },
        reason: "x".repeat(REASON_BYTES_MAX),
        ..samples::reschedule()
    }));
    survives(StepRequest {
        attempt: Attempt(i32::MAX as u32),
        epoch: Epoch(i64::MAX as u64),
        results: Vec::new(),
        input: Vec::new().into(),
        step: "Schritt \u{1f681}\0\"\n".into(),
        ..samples::step_request()
    });
    survives(StepRequest {
        nonce: None,
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
        failing_attempt: Attempt(0),
        awaits_decision: false,
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
        step: None,
        reply_to: None,
        sequence: 0,
        request: waybill_engine::Position {
            priority: Priority::Normal,
            partition: PartitionId(0),
            offset: Offset(i64::MAX),
        },
        ..samples::operation_status()
    });
    survives(Recovery {
        asked_by: "x".repeat(ASKED_BY_BYTES_MAX),
        reason: String::new(),
        due: None,
        verb: RecoveryVerb::Retry {
            seen: AttemptSeen {
                step: String::new(),
                action: Action::Probe,
                attempt: Attempt(i32::MAX as u32),
            },
            budget: Duration::from_millis(i64::MAX as u64),
        },
        ..samples::recovery()
    });
    survives(OperatorAlert {
        caller_id: None,
        tenant: String::new(),
        step: None,
        error: None,
        advice: String::new(),
        at: Timestamp(i64::MIN),
        ..samples::operator_alert()
    });
    survives(OwnerNotice {
        caller_id: None,
        tenant: String::new(),
        contacts: Vec::new(),
        at: Timestamp(i64::MAX),
        ..samples::owner_notice()
    });
}

#[test]
fn a_budget_is_rounded_up_to_whole_milliseconds() {
    for (budget, on_the_wire) in [
        (Duration::ZERO, Duration::ZERO),
        (Duration::from_nanos(1), Duration::from_millis(1)),
        (Duration::from_micros(2_001), Duration::from_millis(3)),
    ] {
        let retry = |budget| {
            let mut recovery = samples::recovery();
            let RecoveryVerb::Retry { budget: sent, .. } = &mut recovery.verb else {
                panic!()
            };
            *sent = budget;
            recovery
        };
        assert_eq!(
            Recovery::decode(&encoded(&retry(budget))),
            Ok(retry(on_the_wire))
        );
    }
}

#[test]
fn every_variant_survives() {
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
        Outcome::NotPerformed,
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
    for action in [Action::Run, Action::Compensate, Action::Probe] {
        survives(StepReply {
            action,
            nonce: None,
            ..samples::step_reply()
        });
        survives(StepRequest {
            action,
            ..samples::step_request()
        });
        survives(FailedOperation {
            failing_action: action,
            ..samples::failed_operation()
        });
    }
    for state in ProcessState::ALL {
        survives(OperationStatus {
            state,
            ..samples::operation_status()
        });
        survives(OwnerNotice {
            state,
            ..samples::owner_notice()
        });
    }
    let step_states = STEP_STATES
        .map(|state| (state.as_str().to_owned(), state))
        .into();
    survives(FailedOperation {
        step_states,
        ..samples::failed_operation()
    });
    for kind in STATUS_KINDS {
        survives(OperationStatus {
            kind,
            ..samples::operation_status()
        });
    }
    for kind in ALERT_KINDS {
        survives(OperatorAlert {
            kind,
            ..samples::operator_alert()
        });
    }
    for verb in verbs() {
        survives(samples::repair(verb));
    }
}

/// The symbols of a value's enums on the wire, in the schema's order.
fn symbols(value: &impl Record) -> Vec<String> {
    fn walk(value: Value, found: &mut Vec<String>) {
        match value {
            Value::Enum(_, symbol) => found.push(symbol),
            Value::Record(fields) => fields.into_iter().for_each(|(_, field)| walk(field, found)),
            Value::Union(_, inner) => walk(*inner, found),
            Value::Array(items) => items.into_iter().for_each(|item| walk(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(Value::Record(fields_of(value)), &mut found);
    found
}

#[test]
fn symbols_are_the_names_of_their_values() {
    for action in [Action::Run, Action::Compensate, Action::Probe] {
        let request = StepRequest {
            action,
            ..samples::step_request()
        };
        assert_eq!(symbols(&request), [action.as_str()]);
    }
    for (kind, state) in STATUS_KINDS.into_iter().cycle().zip(ProcessState::ALL) {
        let status = OperationStatus {
            kind,
            state,
            step: None,
            ..samples::operation_status()
        };
        assert_eq!(
            symbols(&status),
            [&format!("{kind:?}"), state.as_str(), "High"]
        );
    }
    for state in STEP_STATES {
        let failed = FailedOperation {
            step_states: vec![("drone".to_owned(), state)],
            ..samples::failed_operation()
        };
        assert_eq!(symbols(&failed), ["Probe", state.as_str()]);
    }
    for kind in ALERT_KINDS {
        let alert = OperatorAlert {
            kind,
            ..samples::operator_alert()
        };
        assert_eq!(symbols(&alert), [format!("{kind:?}")]);
    }
    for verb in verbs() {
        let name = verb.as_str().replace('-', "");
        let symbol = symbols(&samples::repair(verb)).remove(0);
        assert_eq!(symbol.to_lowercase(), name);
    }
}

#[test]
fn the_trace_context_travels_in_a_header_and_not_in_the_value() {
    let request = OperationRequest::Create(CreateRequest {
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        ..samples::create_request()
    });
    assert_eq!(encoded(&request), encoded(&samples::request()));
}

#[test]
fn a_failed_encoding_leaves_the_output_unchanged() {
    let mut bytes = b"before".to_vec();
    let large = StepRequest {
        attempt: Attempt(u32::MAX),
        ..samples::step_request()
    };
    assert_eq!(
        large.encode(&mut bytes),
        Err(FieldError::OutOfRange {
            record: "step-request",
            field: "attempt",
            value: u32::MAX.into()
        }
        .into())
    );
    let large = OperationRequest::Create(CreateRequest {
        input: vec![0; VALUE_BYTES_MAX],
        ..samples::create_request()
    });
    assert!(matches!(
        large.encode(&mut bytes),
        Err(EncodeError::TooLarge { .. })
    ));
    let mut long = samples::recovery();
    if let RecoveryVerb::Retry { budget, .. } = &mut long.verb {
        *budget = Duration::MAX;
    }
    assert_eq!(
        long.encode(&mut bytes),
        Err(FieldError::OutOfRange {
            record: "recovery",
            field: "budget_ms",
            value: u64::MAX.into()
        }
        .into())
    );
    let wordy = OperationRequest::Amend(AmendRequest {
        reason: "x".repeat(REASON_BYTES_MAX + 1),
        ..samples::cancel()
    });
    let error = wordy.encode(&mut bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        "amendment.reason of the operation-request has 1025 bytes, more than 1024"
    );
    let nameless = Recovery {
        asked_by: "x".repeat(ASKED_BY_BYTES_MAX + 1),
        ..samples::recovery()
    };
    assert_eq!(
        nameless.encode(&mut bytes),
        Err(FieldError::TooLong {
            record: "recovery",
            field: "asked_by",
            bytes: ASKED_BY_BYTES_MAX + 1,
            bytes_max: ASKED_BY_BYTES_MAX
        }
        .into())
    );
    let too_many = OwnerNotice {
        contacts: vec![Contact::new("tel:+1"); Contact::COUNT_MAX + 1],
        ..samples::owner_notice()
    };
    let error = too_many.encode(&mut bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        "contacts of the owner-notice has 5 values, more than 4"
    );
    let verbose = OperationRequest::Create(CreateRequest {
        notify: vec![Contact::new("x".repeat(Contact::BYTES_MAX + 1))],
        ..samples::create_request()
    });
    assert_eq!(
        verbose.encode(&mut bytes),
        Err(FieldError::TooLong {
            record: "operation-request",
            field: "notify",
            bytes: Contact::BYTES_MAX + 1,
            bytes_max: Contact::BYTES_MAX
        }
        .into())
    );
    assert_eq!(bytes, b"before");
}

#[test]
fn fingerprints_are_the_schemas_and_differ() {
    let fingerprints = [
        OperationRequest::fingerprint(),
        StepRequest::fingerprint(),
        StepReply::fingerprint(),
        FailedOperation::fingerprint(),
        OperationStatus::fingerprint(),
        Recovery::fingerprint(),
        OperatorAlert::fingerprint(),
        OwnerNotice::fingerprint(),
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

#[test]
fn the_documentation_for_agent_authors_has_the_fingerprints() {
    let page = std::fs::read_to_string("../../docs/agents.md").unwrap();
    for (schema, fingerprint) in [
        ("step-request.avsc", StepRequest::fingerprint()),
        ("step-reply.avsc", StepReply::fingerprint()),
    ] {
        let bytes = fingerprint.to_le_bytes().map(|byte| format!("{byte:02X}"));
        let row = format!("| `schemas/{schema}` | `C3 01 {}` |", bytes.join(" "));
        assert!(page.contains(&row), "docs/agents.md has no row {row}");
    }
}
