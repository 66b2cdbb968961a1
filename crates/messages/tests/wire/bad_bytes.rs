//! Any bytes give a clear error, no panic, and no disproportionate allocation.

use std::fmt::Debug;

use crate::rewritten::{fields_of, read_with, set};
use crate::samples;
use apache_avro::types::Value;
use waybill_engine::{
    AmendRequest, Amendment, FailedOperation, OperationRequest, OperationStatus, OperatorAlert,
    Outcome, OwnerNotice, Recovery, RecoveryVerb, StepReply, StepRequest,
};
use waybill_messages::{
    ASKED_BY_BYTES_MAX, DecodeError, FieldError, REASON_BYTES_MAX, Record, SchemaId,
    VALUE_BYTES_MAX, WriterSchema,
};

fn encoded(value: &impl Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut bytes).unwrap();
    bytes
}

/// SplitMix64: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn framed<R: Record>(datum: &[u8]) -> Vec<u8> {
    [&[0xc3, 0x01], &R::fingerprint().to_le_bytes()[..], datum].concat()
}

fn truncations_are_errors<R: Record + Debug>(value: &R) {
    let bytes = encoded(value);
    for length in 0..bytes.len() {
        let error = R::decode(&bytes[..length]).unwrap_err();
        if length < 10 {
            assert_eq!(error, DecodeError::NotFramed { bytes: length });
        } else {
            assert!(
                matches!(error, DecodeError::Malformed { .. }),
                "{length}: {error:?}"
            );
        }
    }
}

#[test]
fn a_record_cut_off_anywhere_is_an_error() {
    truncations_are_errors(&samples::request());
    truncations_are_errors(&OperationRequest::Amend(samples::cancel()));
    truncations_are_errors(&OperationRequest::Amend(samples::reschedule()));
    truncations_are_errors(&samples::step_request());
    truncations_are_errors(&samples::step_reply());
    truncations_are_errors(&samples::failed_operation());
    truncations_are_errors(&samples::operation_status());
    truncations_are_errors(&samples::recovery());
    truncations_are_errors(&samples::operator_alert());
    truncations_are_errors(&samples::owner_notice());
}

#[test]
fn bytes_after_a_record_are_an_error() {
    let mut bytes = encoded(&samples::step_reply());
    bytes.extend_from_slice(b"xyz");
    assert_eq!(
        StepReply::decode(&bytes),
        Err(DecodeError::TrailingBytes {
            record: "step-reply",
            bytes: 3
        })
    );
}

fn random_bytes_return<R: Record>(random: &mut Random, rounds: usize) {
    for _ in 0..rounds {
        let datum: Vec<u8> = (0..random.below(200))
            .map(|_| random.next() as u8)
            .collect();
        drop(R::decode(&datum));
        drop(R::decode(&framed::<R>(&datum)));
    }
}

fn changed_records_return<R: Record>(random: &mut Random, value: &R, rounds: usize) {
    let bytes = encoded(value);
    for _ in 0..rounds {
        let mut changed = bytes.clone();
        for _ in 0..=random.below(4) {
            let at = 10 + random.below(changed.len() - 10);
            match random.below(3) {
                0 => changed[at] = random.next() as u8,
                1 => changed.insert(at, random.next() as u8),
                _ => drop(changed.remove(at)),
            }
        }
        drop(R::decode(&changed));
    }
}

#[test]
fn random_bytes_and_changed_records_never_panic() {
    let random = &mut Random(3);
    random_bytes_return::<OperationRequest>(random, 5_000);
    random_bytes_return::<StepRequest>(random, 5_000);
    random_bytes_return::<StepReply>(random, 5_000);
    random_bytes_return::<FailedOperation>(random, 5_000);
    random_bytes_return::<OperationStatus>(random, 5_000);
    random_bytes_return::<Recovery>(random, 5_000);
    random_bytes_return::<OperatorAlert>(random, 5_000);
    random_bytes_return::<OwnerNotice>(random, 5_000);
    let amended = OperationRequest::Amend;
    changed_records_return(random, &samples::request(), 10_000);
    changed_records_return(random, &amended(samples::cancel()), 10_000);
    changed_records_return(random, &amended(samples::reschedule()), 10_000);
    changed_records_return(random, &samples::step_request(), 10_000);
    changed_records_return(random, &samples::step_reply(), 10_000);
    changed_records_return(random, &samples::failed_operation(), 10_000);
    changed_records_return(random, &samples::operation_status(), 10_000);
    changed_records_return(random, &samples::recovery(), 10_000);
    changed_records_return(random, &samples::operator_alert(), 10_000);
    changed_records_return(random, &samples::owner_notice(), 10_000);
}

/// A zigzag variable-length number, as Avro writes it.
fn number(value: i64) -> Vec<u8> {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    let mut bytes = Vec::new();
    while rest > 0x7f {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

#[test]
fn wrong_lengths_are_errors() {
    for length in [
        1 << 20,
        1 << 24,
        (1 << 24) + 1,
        1 << 40,
        i64::MAX,
        i64::MIN,
        -1,
    ] {
        // The length of the operation ID, and the number of entries of the outputs.
        let as_length = framed::<StepReply>(&number(length));
        let reply = encoded(&samples::step_reply());
        let (entries_at, entry) = (
            10 + 1 + 36 + 1 + 5 + 1 + 1 + 1 + (1 + 1 + 16) + 1,
            number(2),
        );
        assert_eq!(reply[entries_at..entries_at + 1], entry);
        let as_entries = [
            &reply[..entries_at],
            &number(length)[..],
            &reply[entries_at + 1..],
        ]
        .concat();
        for bytes in [as_length, as_entries] {
            let error = StepReply::decode(&bytes).unwrap_err();
            assert!(
                matches!(error, DecodeError::Malformed { .. }),
                "{length}: {error:?}"
            );
        }
    }
}

#[test]
fn causes_are_short_enough_for_a_header() {
    let bytes = framed::<FailedOperation>(&[0xff; 100]);
    let text = FailedOperation::decode(&bytes).unwrap_err().to_string();
    assert!(text.len() < 300, "{text}");
}

#[test]
fn values_too_large_for_a_record_are_not_decoded() {
    let bytes = vec![0xc3; VALUE_BYTES_MAX + 1];
    assert_eq!(
        StepReply::decode(&bytes),
        Err(DecodeError::TooLarge {
            bytes: VALUE_BYTES_MAX + 1
        })
    );
}

#[test]
fn other_framings_are_named() {
    for bytes in [&b""[..], b"{}", b"\xc3\x02aaaaaaaaaa", b"\x00\x00\x00\x01"] {
        assert_eq!(
            StepReply::decode(bytes),
            Err(DecodeError::NotFramed { bytes: bytes.len() })
        );
    }
    assert_eq!(
        StepReply::decode(b"\x00\x00\x00\x01\x02rest"),
        Err(DecodeError::NoRegistry {
            record: "step-reply",
            id: SchemaId(0x102)
        })
    );
    let error = StepReply::decode(b"\xc3\x01\x08\x07\x06\x05\x04\x03\x02\x01rest").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the step-reply was written with an unknown schema, fingerprint 0102030405060708"
    );
}

#[test]
fn ids_that_are_no_hyphenated_uuids_are_errors() {
    let reply = encoded(&samples::step_reply());
    for id in [
        "0190b1e23c4d7e5f8a9b0c1d2e3f4a5b",
        "x190b1e2-3c4d-7e5f-8a9b-0c1d2e3f4a5b",
        "",
    ] {
        let datum = [&number(id.len() as i64)[..], id.as_bytes(), &reply[47..]].concat();
        let error = StepReply::decode(&framed::<StepReply>(&datum)).unwrap_err();
        assert!(matches!(error, DecodeError::Malformed { .. }), "{error:?}");
    }
}

#[test]
fn counters_below_zero_are_errors() {
    let mut reply = encoded(&samples::step_reply());
    let attempt_at = 10 + 1 + 36 + 1 + 5;
    assert_eq!(reply[attempt_at], 4);
    reply[attempt_at] = 3;
    assert_eq!(
        StepReply::decode(&reply),
        Err(FieldError::OutOfRange {
            record: "step-reply",
            field: "attempt",
            value: -2
        }
        .into())
    );
}

#[test]
fn a_budget_below_zero_is_an_error() {
    assert_eq!(
        read_with(
            &samples::recovery(),
            "budget_ms",
            Value::Union(1, Box::new(Value::Long(-1)))
        ),
        Err(FieldError::OutOfRange {
            record: "recovery",
            field: "budget_ms",
            value: -1
        }
        .into())
    );
}

/// Decodes a request after `name` of its amendment was replaced.
fn read_amended(
    request: &AmendRequest,
    name: &str,
    field: Value,
) -> Result<OperationRequest, DecodeError> {
    let request = OperationRequest::Amend(request.clone());
    let fields = fields_of(&request);
    let amendment = fields.into_iter().find(|(name, _)| name == "amendment");
    let Some((_, Value::Union(1, mut inner))) = amendment else {
        panic!()
    };
    let Value::Record(inner_fields) = &mut *inner else {
        panic!()
    };
    set(inner_fields, name, field);
    read_with(&request, "amendment", Value::Union(1, inner))
}

#[test]
fn texts_beyond_their_limit_are_errors() {
    let text = |bytes_max: usize| Value::String("x".repeat(bytes_max + 1));
    for (field, bytes_max) in [
        ("asked_by", ASKED_BY_BYTES_MAX),
        ("reason", REASON_BYTES_MAX),
    ] {
        assert_eq!(
            read_with(&samples::recovery(), field, text(bytes_max)),
            Err(FieldError::TooLong {
                record: "recovery",
                field,
                bytes: bytes_max + 1,
                bytes_max
            }
            .into())
        );
    }
    let error = read_amended(&samples::reschedule(), "reason", text(REASON_BYTES_MAX)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "amendment.reason of the operation-request has 1025 bytes, more than 1024"
    );
}

#[track_caller]
fn is_needed<R: Record + Debug>(value: &R, field: &'static str) {
    let error = read_with(value, field, Value::Union(0, Box::new(Value::Null))).unwrap_err();
    assert_eq!(
        error,
        DecodeError::Missing {
            record: R::SCHEMA.name,
            field
        }
    );
}

#[test]
fn the_required_fields_of_a_kind_of_record_must_be_present() {
    is_needed(&OperationRequest::Amend(samples::cancel()), "amendment");
    is_needed(&OperationRequest::Amend(samples::reschedule()), "amendment");
    is_needed(&samples::recovery(), "seen");
    is_needed(&samples::recovery(), "budget_ms");
    let RecoveryVerb::Retry { seen, .. } = samples::recovery().verb else {
        panic!()
    };
    is_needed(&samples::repair(RecoveryVerb::Park { seen }), "seen");
    let step = "package".to_owned();
    is_needed(&samples::repair(RecoveryVerb::Undone { step }), "step");
    let as_operation = samples::OTHER;
    let resubmitted = samples::repair(RecoveryVerb::Resubmitted { as_operation });
    is_needed(&resubmitted, "as_operation");
}

#[test]
fn a_reschedule_without_fields_replaces_none() {
    let nothing = Value::Union(0, Box::new(Value::Null));
    let read = read_amended(&samples::reschedule(), "fields", nothing);
    let mut expected = samples::reschedule();
    let Amendment::Reschedule { fields, .. } = &mut expected.amendment else {
        panic!()
    };
    *fields = b"{}".to_vec();
    assert_eq!(read, Ok(OperationRequest::Amend(expected)));
}

#[test]
fn a_name_that_occurs_twice_in_a_map_is_an_error() {
    for names in [2, 16, 17, 1_000] {
        let mut outputs: Vec<_> = (0..names)
            .map(|i| (format!("output-{i}"), String::new()))
            .collect();
        let reply = |outputs| StepReply {
            outcome: Outcome::Success { outputs },
            ..samples::step_reply()
        };
        let distinct = reply(outputs.clone());
        assert_eq!(StepReply::decode(&encoded(&distinct)), Ok(distinct));
        outputs[names - 1].0 = outputs[0].0.clone();
        let error = StepReply::decode(&encoded(&reply(outputs))).unwrap_err();
        assert!(
            matches!(&error, DecodeError::Malformed { cause, .. }
                if cause.ends_with("output-0 occurs twice in a map")),
            "{names}: {error:?}"
        );
    }
}

#[test]
fn a_schema_that_amplifies_memory_or_stack_is_refused() {
    let recursive = r#"{"type": "record", "name": "Node", "fields": [
        {"name": "next", "type": ["null", "Node"]}]}"#;
    let by_way_of_another = r#"{"type": "record", "name": "A", "fields": [
        {"name": "b", "type": {"type": "record", "name": "B", "fields": [
            {"name": "many", "type": {"type": "array", "items": "A"}},
            {"name": "one", "type": "int"}]}}]}"#;
    let nothing = r#"{"type": "array", "items": {"type": "array", "items": "null"}}"#;
    let of_nothing = r#"{"type": "record", "name": "A", "fields": [
        {"name": "one", "type": {"type": "record", "name": "Empty", "fields": []}},
        {"name": "many", "type": {"type": "array", "items": "Empty"}}]}"#;
    let huge = r#"{"type": "fixed", "name": "Huge", "size": 35184372088832}"#;
    let mut doubling = r#"{"type": "record", "name": "R0", "fields": []}"#.to_owned();
    for nth in 1..40 {
        let before = nth - 1;
        doubling = format!(
            r#"{{"type": "record", "name": "R{nth}", "fields": [
                {{"name": "a", "type": {doubling}}}, {{"name": "b", "type": "R{before}"}}]}}"#
        );
    }
    for (bad, why) in [
        (huge, "larger than the largest record"),
        (doubling.as_str(), "more than 10000 values"),
        (of_nothing, "list take too few bytes"),
        (recursive, "Node contains itself"),
        (by_way_of_another, "A contains itself"),
        (nothing, "list take too few bytes"),
    ] {
        let error = WriterSchema::parse(bad).unwrap_err();
        assert!(error.cause.contains(why), "{error:?}");
    }
    let twice = r#"{"type": "record", "name": "A", "fields": [
        {"name": "one", "type": {"type": "record", "name": "B", "fields": [
            {"name": "x", "type": "int"}]}},
        {"name": "others", "type": {"type": "array", "items": "B"}}]}"#;
    assert!(WriterSchema::parse(twice).is_ok());
}
