//! Values as other writers would encode them: with another schema, or with other fields.

use std::collections::HashMap;
use std::sync::Arc;

use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use apache_avro::{Schema, reader::datum::GenericDatumReader};
use waybill_messages::{DecodeError, Framing, Lookup, Record, SchemaId, Schemas, WriterSchema};

/// A registry with the contents of a test.
#[derive(Default)]
pub struct Registry(pub HashMap<SchemaId, Lookup>);

impl Schemas for Registry {
    fn writer_schema(&self, id: SchemaId) -> Lookup {
        self.0.get(&id).cloned().unwrap_or(Lookup::Unknown)
    }
}

/// The registry ID that [`written_with`] uses.
pub const PLACE: SchemaId = SchemaId(7);

/// The framing of a reader whose registry returns this for that ID.
pub fn answering(lookup: Lookup) -> Framing {
    Framing::reading(Arc::new(Registry([(PLACE, lookup)].into())))
}

/// The framing of a reader whose registry has one schema, under that ID.
pub fn registry(schema: &str) -> Framing {
    answering(Lookup::Found(Arc::new(
        WriterSchema::parse(schema).unwrap(),
    )))
}

/// The fields of a value, in its schema's order.
pub fn fields_of<R: Record>(value: &R) -> Vec<(String, Value)> {
    let mut framed = Vec::new();
    value.encode(&mut framed).unwrap();
    let current = Schema::parse_str(R::SCHEMA.json).unwrap();
    let mut datum = &framed[10..];
    let reader = GenericDatumReader::builder(&current).build().unwrap();
    let Value::Record(fields) = reader.read_value(&mut datum).unwrap() else {
        panic!()
    };
    fields
}

/// The value's datum with another schema, framed with that schema's registry ID. `set` sets the
/// additional fields of the other schema.
pub fn written_with(
    schema: &str,
    value: &impl Record,
    set: impl Fn(&mut Vec<(String, Value)>),
) -> Vec<u8> {
    let mut fields = fields_of(value);
    set(&mut fields);
    let other = Schema::parse_str(schema).unwrap();
    let writer = GenericDatumWriter::builder(&other).build().unwrap();
    let datum = writer.write_value_to_vec(Value::Record(fields)).unwrap();
    [&[0, 0, 0, 0, 7], &datum[..]].concat()
}

/// Replaces a field's value.
pub fn set(fields: &mut [(String, Value)], name: &str, value: Value) {
    let mut fields = fields.iter_mut();
    fields.find(|(field, _)| field == name).unwrap().1 = value;
}

/// Decodes the value after one of its fields was replaced.
pub fn read_with<R: Record>(value: &R, name: &str, field: Value) -> Result<R, DecodeError> {
    let schema = R::SCHEMA.json;
    let bytes = written_with(schema, value, |fields| set(fields, name, field.clone()));
    R::decode_with(&bytes, &registry(schema))
}

/// Decodes the value as a newer version wrote it, whose schema has `newer` instead of `current`,
/// after one of its fields was replaced.
pub fn read_newer<R: Record>(
    value: &R,
    (current, newer): (&str, &str),
    name: &str,
    field: Value,
) -> Result<R, DecodeError> {
    let schema = R::SCHEMA.json.replace(current, newer);
    assert_ne!(schema, R::SCHEMA.json);
    let bytes = written_with(&schema, value, |fields| set(fields, name, field.clone()));
    R::decode_with(&bytes, &registry(&schema))
}
