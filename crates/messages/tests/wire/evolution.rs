//! Schemas may change, and records of older and newer versions must still be readable.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::rewritten::{PLACE, Registry, answering, read_newer, read_with, registry, written_with};
use crate::samples::{self, pairs};
use apache_avro::Schema;
use apache_avro::schema_compatibility::SchemaCompatibility;
use apache_avro::types::Value;
use waybill_engine::{
    FailedOperation, OperationRequest, OperationStatus, Outcome, OwnerNotice, StepReply,
    StepRequest,
};
use waybill_messages::{
    DecodeError, EncodeError, FieldError, Frame, Framing, Lookup, RECORD_SCHEMAS, Record,
    RecordKind, SchemaId, SchemaIds, WriterSchema,
};

fn schemas_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas")
}

#[test]
fn a_nonce_of_another_length_is_poison() {
    for length in [0, 1, 15, 17, 4_000] {
        let nonce = Value::Union(1, Box::new(Value::Bytes(vec![7; length])));
        let read = read_with(&samples::step_reply(), "nonce", nonce.clone());
        let error = read.unwrap_err().to_string();
        let cause = format!("invalid length {length}, expected a nonce of 16 bytes");
        assert!(error.ends_with(&cause), "{error}");
        let read = read_with(&samples::step_request(), "nonce", nonce);
        assert!(matches!(read, Err(DecodeError::Malformed { .. })));
    }
}

#[test]
fn too_many_or_too_long_contacts_are_poison() {
    let with = |contacts: Vec<String>| {
        let contacts: Vec<Value> = contacts.into_iter().map(Value::String).collect();
        let schema = OwnerNotice::SCHEMA.json;
        let bytes = written_with(schema, &samples::owner_notice(), |fields| {
            let field = fields.iter_mut().find(|(name, _)| name == "contacts");
            field.unwrap().1 = Value::Array(contacts.clone());
        });
        OwnerNotice::decode_with(&bytes, &registry(schema))
    };
    assert_eq!(
        with(vec!["tel:+1".to_owned(); 5]),
        Err(FieldError::TooMany {
            record: "owner-notice",
            field: "contacts",
            values: 5,
            values_max: 4
        }
        .into())
    );
    assert_eq!(
        with(vec!["x".repeat(321)]),
        Err(FieldError::TooLong {
            record: "owner-notice",
            field: "contacts",
            bytes: 321,
            bytes_max: 320
        }
        .into())
    );
}

/// Asserts that a record of a newer version is readable: one more field, and so another
/// fingerprint.
#[track_caller]
fn is_read_of_a_newer_version<R: Record + PartialEq + Debug>(value: &R) {
    let newer = with_a_field(R::SCHEMA.json);
    let bytes = written_with(&newer, value, |fields| {
        fields.push(("extra".to_owned(), Value::Long(1)));
    });
    assert_eq!(
        R::decode_with(&bytes, &registry(&newer)).as_ref(),
        Ok(value)
    );
}

fn with_a_field(schema: &str) -> String {
    let end = schema.rfind(']').unwrap();
    let (head, tail) = schema.split_at(end);
    format!(r#"{head}, {{"name": "extra", "type": "long"}}{tail}"#)
}

#[test]
fn new_fields_of_newer_versions_are_ignored() {
    is_read_of_a_newer_version(&samples::request());
    is_read_of_a_newer_version(&OperationRequest::Amend(samples::cancel()));
    is_read_of_a_newer_version(&OperationRequest::Amend(samples::reschedule()));
    // Maps lose their order: these have one entry.
    is_read_of_a_newer_version(&StepRequest {
        results: pairs(&[("package.id", "p-9")]),
        ..samples::step_request()
    });
    is_read_of_a_newer_version(&StepReply {
        outcome: Outcome::Success {
            outputs: pairs(&[("droneId", "d-5")]),
        },
        ..samples::step_reply()
    });
    is_read_of_a_newer_version(&FailedOperation {
        failure_counts: vec![("drone".to_owned(), 5)],
        ..samples::failed_operation()
    });
    is_read_of_a_newer_version(&samples::operation_status());
    is_read_of_a_newer_version(&samples::recovery());
    is_read_of_a_newer_version(&samples::operator_alert());
    is_read_of_a_newer_version(&samples::owner_notice());
}

#[test]
fn current_schemas_can_read_every_released_version() {
    for record in RECORD_SCHEMAS {
        let current = Schema::parse_str(record.json).unwrap();
        for released in record.released {
            let released = Schema::parse_str(released).unwrap();
            if let Err(error) = SchemaCompatibility::can_read(&released, &current) {
                panic!("{} cannot read a released version: {error}", record.name);
            }
        }
    }
}

#[test]
fn every_schema_file_is_used_and_every_released_one_is_known() {
    let stems = |dir: PathBuf| -> BTreeSet<String> {
        fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "avsc")
            })
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect()
    };
    let used: BTreeSet<String> = RECORD_SCHEMAS.map(|record| record.name.to_owned()).into();
    assert_eq!(stems(schemas_dir()), used);
    for record in RECORD_SCHEMAS {
        let dir = schemas_dir().join("released").join(record.name);
        let versions = (1..=record.released.len())
            .map(|version| format!("v{version}"))
            .collect();
        assert_eq!(stems(dir.clone()), versions, "{}", record.name);
        assert_eq!(record.released.last(), Some(&record.json));
        for (i, released) in record.released.iter().enumerate() {
            let file = dir.join(format!("v{}.avsc", i + 1));
            assert_eq!(*released, fs::read_to_string(file).unwrap());
        }
        let file = schemas_dir().join(format!("{}.avsc", record.name));
        assert_eq!(record.json, fs::read_to_string(file).unwrap());
    }
    let dirs = fs::read_dir(schemas_dir().join("released")).unwrap();
    let dirs: BTreeSet<String> = dirs
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(dirs, used);
}

/// Asserts that a schema and everything nested in it has docs and defaults.
fn documented(schema: &Schema, at: &str) {
    let is_documented = |doc: &Option<String>| doc.as_ref().is_some_and(|doc| doc.len() > 5);
    match schema {
        Schema::Record(record) => {
            assert!(is_documented(&record.doc), "{at} has no doc");
            assert_eq!(record.name.namespace(), Some("waybill.v1"), "{at}");
            for field in &record.fields {
                let at = format!("{at}.{}", field.name);
                assert!(is_documented(&field.doc), "{at} has no doc");
                if let Schema::Union(_) = field.schema {
                    let null = field
                        .default
                        .as_ref()
                        .is_some_and(|default| default.is_null());
                    assert!(null, "{at} has no null default");
                }
                documented(&field.schema, &at);
            }
        }
        Schema::Enum(one) => {
            assert!(is_documented(&one.doc), "{at} has no doc");
            assert!(one.default.is_some(), "{at} has no default symbol");
        }
        Schema::Fixed(fixed) => assert!(is_documented(&fixed.doc), "{at} has no doc"),
        Schema::Union(union) => {
            assert_eq!(union.variants()[0], Schema::Null, "{at}");
            assert_eq!(union.variants().len(), 2, "{at}");
            documented(&union.variants()[1], at);
        }
        Schema::Array(array) => documented(&array.items, at),
        Schema::Map(map) => documented(&map.types, at),
        _ => {}
    }
}

#[test]
fn every_field_is_documented_and_every_enum_can_grow() {
    for record in RECORD_SCHEMAS {
        documented(&Schema::parse_str(record.json).unwrap(), record.name);
    }
}

/// The error of this version for a symbol that a newer one added after `last`.
#[track_caller]
fn unknown_symbol<R: Record + Debug>(value: &R, last: &str, index: u32, field: &str) -> String {
    let last = format!("\"{last}\"\n");
    let newer = format!("{},\"Novel\"\n", last.trim_end());
    let symbol = Value::Enum(index, "Novel".to_owned());
    let error = read_newer(value, (&last, &newer), field, symbol).unwrap_err();
    assert!(
        matches!(error, DecodeError::UnknownSymbol { .. }),
        "{error:?}"
    );
    error.to_string()
}

#[test]
fn requests_of_a_newer_version_are_poison_with_a_clear_cause() {
    let request = samples::request();
    assert_eq!(
        unknown_symbol(&request, "Reschedule", 4, "kind"),
        "the operation-request has a kind that this version does not support"
    );
    unknown_symbol(&samples::step_request(), "Probe", 4, "action");
    unknown_symbol(&samples::step_reply(), "Probe", 4, "action");
    unknown_symbol(&samples::failed_operation(), "Probe", 4, "failing_action");
    unknown_symbol(&samples::operation_status(), "RescheduleRefused", 8, "kind");
    unknown_symbol(
        &samples::operation_status(),
        "CompensationFailed",
        9,
        "state",
    );
    unknown_symbol(&samples::owner_notice(), "CompensationFailed", 9, "state");
    unknown_symbol(&samples::recovery(), "Resubmitted", 10, "verb");
    unknown_symbol(&samples::operator_alert(), "RowUnreadable", 6, "kind");
}

#[test]
fn an_outcome_that_is_not_known_counts_as_unknown() {
    let read = read_newer(
        &samples::step_reply(),
        ("\"NotPerformed\"", "\"NotPerformed\", \"Deferred\""),
        "outcome",
        Value::Enum(6, "Deferred".to_owned()),
    );
    let outcome = read.unwrap().outcome;
    assert!(matches!(outcome, Outcome::Unknown { error } if error.code == "unspecified"));
}

#[test]
fn fields_that_an_older_writer_did_not_have_get_their_defaults() {
    let mut reply = samples::step_reply();
    reply.outcome = Outcome::NotAttempted {
        error: samples::error(),
        retry_after_ms: 5_000,
    };
    let schema = StepReply::SCHEMA.json;
    let start = schema
        .rfind(",\n    {\n      \"name\": \"retry_after_ms\"")
        .unwrap();
    let end = schema.rfind("\n  ]").unwrap();
    let older = format!("{}{}", &schema[..start], &schema[end..]);
    let bytes = written_with(&older, &reply, |fields| {
        fields.retain(|(name, _)| name != "retry_after_ms");
    });
    let read = StepReply::decode_with(&bytes, &registry(&older)).unwrap();
    reply.outcome = Outcome::NotAttempted {
        error: samples::error(),
        retry_after_ms: 1_000,
    };
    assert_eq!(read, reply);
}

#[test]
fn confluent_frames_are_read_with_the_registrys_schema() {
    let request = StepRequest {
        results: pairs(&[("package.id", "p-9")]),
        ..samples::step_request()
    };
    let schema = StepRequest::SCHEMA.json;
    let bytes = written_with(schema, &request, |_| {});
    assert_eq!(
        StepRequest::decode_with(&bytes, &registry(schema)).as_ref(),
        Ok(&request)
    );
    assert_eq!(
        StepRequest::decode_with(&bytes, &Framing::reading(Arc::new(Registry::default()))),
        Err(DecodeError::UnknownSchemaId {
            record: "step-request",
            id: PLACE
        })
    );
    assert_eq!(
        StepRequest::decode(&bytes),
        Err(DecodeError::NoRegistry {
            record: "step-request",
            id: PLACE
        })
    );
    // The schema of another record.
    let other = registry(OperationStatus::SCHEMA.json);
    assert!(matches!(
        StepRequest::decode_with(&bytes, &other),
        Err(DecodeError::Malformed { .. })
    ));
}

#[test]
fn the_answer_of_the_registry_decides_about_the_record() {
    let bytes = written_with(StepReply::SCHEMA.json, &samples::step_reply(), |_| {});
    let read = |lookup| StepReply::decode_with(&bytes, &answering(lookup)).unwrap_err();
    let (record, id) = ("step-reply", PLACE);
    let not_yet = read(Lookup::NotYet);
    assert_eq!(not_yet, DecodeError::NotYet { record, id });
    assert_eq!(not_yet.waits_for(), Some(PLACE));
    let cause = "it is of type JSON";
    let unusable = read(Lookup::Unusable {
        cause: cause.into(),
    });
    let cause = cause.to_owned();
    assert_eq!(unusable, DecodeError::UnusableSchema { record, id, cause });
    for poison in [unusable, read(Lookup::Unknown)] {
        assert_eq!(poison.waits_for(), None);
    }
}

#[test]
fn an_impossible_schema_id_is_poison_without_a_request() {
    let framing = |id| Framing::reading(Arc::new(Registry([(id, Lookup::NotYet)].into())));
    let read = |id: u32| {
        let bytes = [&[0], &id.to_be_bytes()[..], b"datum"].concat();
        framing(SchemaId(id))
            .decode::<StepReply>(&bytes)
            .unwrap_err()
    };
    let largest = i32::MAX.unsigned_abs();
    assert_eq!(read(largest).waits_for(), Some(SchemaId(largest)));
    for id in [largest + 1, u32::MAX] {
        let error = read(id);
        assert_eq!(error, DecodeError::NotFramed { bytes: 10 }, "{id}");
        assert_eq!(error.waits_for(), None);
    }
}

#[test]
fn a_writer_reads_its_own_schema_ids_without_a_request() {
    let (reply, request) = (samples::step_reply(), samples::step_request());
    let mut ids = SchemaIds::default();
    ids.set(RecordKind::StepReply, SchemaId(0x0102_0304));
    // The registry is unavailable.
    let framing = Framing::confluent(
        ids,
        Arc::new(Registry([(SchemaId(0x0102_0304), Lookup::NotYet)].into())),
    );
    let mut bytes = b"before".to_vec();
    framing.encode(&reply, &mut bytes).unwrap();
    let mut single_object = Vec::new();
    reply.encode(&mut single_object).unwrap();
    let confluent = [b"before\x00\x01\x02\x03\x04", &single_object[10..]].concat();
    assert_eq!(bytes, confluent);
    assert_eq!(framing.decode(&bytes[6..]).as_ref(), Ok(&reply));
    assert_eq!(framing.decode(&single_object).as_ref(), Ok(&reply));
    // The ID of another record.
    assert_eq!(
        framing
            .decode::<StepRequest>(&bytes[6..])
            .unwrap_err()
            .waits_for(),
        Some(SchemaId(0x0102_0304))
    );

    let length = bytes.len();
    assert_eq!(
        framing.encode(&request, &mut bytes),
        Err(EncodeError::NoSchemaId {
            record: "step-request"
        })
    );
    assert_eq!(bytes.len(), length);
}

#[test]
fn a_reader_of_registry_frames_writes_single_objects() {
    let (mut read_only, mut plain) = (Vec::new(), Vec::new());
    // Maps lose their order: this one has one entry.
    let reply = StepReply {
        outcome: Outcome::Success {
            outputs: pairs(&[("eta", "12")]),
        },
        ..samples::step_reply()
    };
    let framing = registry(StepReply::SCHEMA.json);
    framing.encode(&reply, &mut read_only).unwrap();
    reply.encode_as(Frame::SingleObject, &mut plain).unwrap();
    assert_eq!(read_only, plain);
    let bytes = written_with(StepReply::SCHEMA.json, &reply, |_| {});
    assert_eq!(framing.decode(&bytes).as_ref(), Ok(&reply));
}

#[test]
fn truncated_and_random_data_of_another_version_never_panics() {
    let value = samples::failed_operation();
    let older = with_a_field(FailedOperation::SCHEMA.json);
    let bytes = written_with(&older, &value, |fields| {
        fields.push(("extra".to_owned(), Value::Long(1)));
    });
    let registry = registry(&older);
    for length in 0..bytes.len() {
        assert!(FailedOperation::decode_with(&bytes[..length], &registry).is_err());
    }
    for at in 5..bytes.len() {
        for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            drop(FailedOperation::decode_with(&changed, &registry));
        }
    }
}

#[test]
fn a_text_that_is_not_a_schema_is_refused() {
    assert!(WriterSchema::parse("{").is_err());
    assert!(WriterSchema::parse(r#"{"type": "record"}"#).is_err());
}
