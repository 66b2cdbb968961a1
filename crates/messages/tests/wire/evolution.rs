//! Schemas may change, and what was written before, or by a newer version, must still be read.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::samples::{self, from_hex, golden_file, pairs};
use apache_avro::schema_compatibility::SchemaCompatibility;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use apache_avro::{Schema, reader::datum::GenericDatumReader};
use waybill_engine::{
    CreateRequest, FailedOperation, OperationStatus, Outcome, StepReply, StepRequest,
};
use waybill_messages::{DecodeError, RECORD_SCHEMAS, Record, Schemas, WriterSchema};

fn schemas_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas")
}

/// A registry that holds what a test put into it.
#[derive(Default)]
struct Registry(HashMap<u32, Arc<WriterSchema>>);

impl Schemas for Registry {
    fn writer_schema(&self, id: u32) -> Option<Arc<WriterSchema>> {
        self.0.get(&id).cloned()
    }
}

fn registry(schema: &str) -> Registry {
    Registry([(7, Arc::new(WriterSchema::parse(schema).unwrap()))].into())
}

/// The value's datum with another schema, framed for that schema's place in the registry: fields
/// that the other schema has beside are set by `set`.
fn written_with(
    schema: &str,
    value: &impl Record,
    set: impl Fn(&mut Vec<(String, Value)>),
) -> Vec<u8> {
    let mut framed = Vec::new();
    value.encode(&mut framed).unwrap();
    let current = Schema::parse_str(schema_json(value)).unwrap();
    let mut datum = &framed[10..];
    let reader = GenericDatumReader::builder(&current).build().unwrap();
    let Value::Record(mut fields) = reader.read_value(&mut datum).unwrap() else {
        panic!()
    };
    set(&mut fields);
    let other = Schema::parse_str(schema).unwrap();
    let writer = GenericDatumWriter::builder(&other).build().unwrap();
    let datum = writer.write_value_to_vec(Value::Record(fields)).unwrap();
    [&[0, 0, 0, 0, 7], &datum[..]].concat()
}

fn schema_json<R: Record>(_value: &R) -> &'static str {
    R::SCHEMA.json
}

fn set(fields: &mut [(String, Value)], name: &str, value: Value) {
    fields
        .iter_mut()
        .find(|(field, _)| field == name)
        .unwrap()
        .1 = value;
}

#[track_caller]
fn golden_is_read<R: Record + PartialEq + Debug>(value: &R, resolved: &R) {
    let golden = from_hex(&fs::read_to_string(golden_file(R::SCHEMA.name)).unwrap());
    assert_eq!(R::decode(&golden).as_ref(), Ok(value));
    // The same version through the resolution of schemas, as if it were an old one: a field more
    // gives it another fingerprint.
    let older = with_a_field(R::SCHEMA.released[0]);
    let bytes = written_with(&older, resolved, |fields| {
        fields.push(("extra".to_owned(), Value::Long(1)));
    });
    assert_eq!(
        R::decode_with(&bytes, Some(&registry(&older))).as_ref(),
        Ok(resolved)
    );
}

fn with_a_field(schema: &str) -> String {
    let end = schema.rfind(']').unwrap();
    let (head, tail) = schema.split_at(end);
    format!(r#"{head}, {{"name": "extra", "type": "long"}}{tail}"#)
}

#[test]
fn released_versions_are_read() {
    // The Avro library's generic values do not keep the order of maps: these have one entry.
    let step_request = StepRequest {
        results: pairs(&[("package.id", "p-9")]),
        ..samples::step_request()
    };
    let step_reply = StepReply {
        outcome: Outcome::Success {
            outputs: pairs(&[("droneId", "d-5")]),
        },
        ..samples::step_reply()
    };
    let failed_operation = FailedOperation {
        failure_counts: vec![("drone".to_owned(), 5)],
        ..samples::failed_operation()
    };
    let create_request = samples::create_request();
    let operation_status = samples::operation_status();
    golden_is_read(&create_request, &create_request);
    golden_is_read(&samples::step_request(), &step_request);
    golden_is_read(&samples::step_reply(), &step_reply);
    golden_is_read(&samples::failed_operation(), &failed_operation);
    golden_is_read(&operation_status, &operation_status);
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

/// Asserts docs and defaults of a schema and of everything nested in it.
fn documented(schema: &Schema, at: &str) {
    let said = |doc: &Option<String>| doc.as_ref().is_some_and(|doc| doc.len() > 5);
    match schema {
        Schema::Record(record) => {
            assert!(said(&record.doc), "{at} has no doc");
            assert_eq!(record.name.namespace(), Some("waybill.v1"), "{at}");
            for field in &record.fields {
                let at = format!("{at}.{}", field.name);
                assert!(said(&field.doc), "{at} has no doc");
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
            assert!(said(&one.doc), "{at} has no doc");
            assert!(one.default.is_some(), "{at} has no default symbol");
        }
        Schema::Fixed(fixed) => assert!(said(&fixed.doc), "{at} has no doc"),
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

#[test]
fn an_unknown_kind_of_request_is_poison_with_a_clear_cause() {
    let request = samples::create_request();
    let newer = CreateRequest::SCHEMA
        .json
        .replace("\"Create\"", "\"Create\", \"Cancel\"");
    let bytes = written_with(&newer, &request, |fields| {
        set(fields, "kind", Value::Enum(2, "Cancel".to_owned()));
    });
    let error = CreateRequest::decode_with(&bytes, Some(&registry(&newer))).unwrap_err();
    assert_eq!(
        error,
        DecodeError::UnknownSymbol {
            record: "operation-request",
            field: "kind"
        }
    );
    assert_eq!(
        error.to_string(),
        "the operation-request has a kind that this version does not know"
    );
}

#[test]
fn an_outcome_that_is_not_known_counts_as_unknown() {
    let reply = samples::step_reply();
    let newer = StepReply::SCHEMA
        .json
        .replace("\"NotAttempted\"", "\"NotAttempted\", \"Deferred\"");
    let bytes = written_with(&newer, &reply, |fields| {
        set(fields, "outcome", Value::Enum(5, "Deferred".to_owned()));
    });
    let read = StepReply::decode_with(&bytes, Some(&registry(&newer))).unwrap();
    assert!(matches!(read.outcome, Outcome::Unknown { error } if error.code == "unspecified"));
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
    let read = StepReply::decode_with(&bytes, Some(&registry(&older))).unwrap();
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
        StepRequest::decode_with(&bytes, Some(&registry(schema))).as_ref(),
        Ok(&request)
    );
    assert_eq!(
        StepRequest::decode_with(&bytes, Some(&Registry::default())),
        Err(DecodeError::UnknownSchemaId {
            record: "step-request",
            id: 7
        })
    );
    assert_eq!(
        StepRequest::decode(&bytes),
        Err(DecodeError::NoRegistry {
            record: "step-request",
            id: 7
        })
    );
    // A schema of something else.
    let other = registry(OperationStatus::SCHEMA.json);
    assert!(matches!(
        StepRequest::decode_with(&bytes, Some(&other)),
        Err(DecodeError::Malformed { .. })
    ));
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
        assert!(FailedOperation::decode_with(&bytes[..length], Some(&registry)).is_err());
    }
    for at in 5..bytes.len() {
        for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            drop(FailedOperation::decode_with(&changed, Some(&registry)));
        }
    }
}

#[test]
fn a_text_that_is_no_schema_is_refused() {
    assert!(WriterSchema::parse("{").is_err());
    assert!(WriterSchema::parse(r#"{"type": "record"}"#).is_err());
}
