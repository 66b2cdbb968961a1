"""Records as bytes: Avro single objects, written with the schemas of schemas/.

A single object is two marker bytes, the fingerprint of the schema that it was written with in eight,
and the datum. A record is read with the schema of its fingerprint, and never with another.
"""

import io
import json

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

MARKER = b"\xc3\x01"
FRAME_BYTES = 10


class Unreadable(Exception):
    """The bytes are not a record with a known schema."""


def fingerprint_of(schema):
    """The CRC-64-AVRO of a schema, as in a frame: the low byte first."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


class Reader:
    """Reads records that were written with the current schema, or with an earlier released one."""

    def __init__(self, schemas, name):
        current = json.loads((schemas / f"{name}.avsc").read_text())
        self.schema = fastavro.parse_schema(current)
        self.writers = {fingerprint_of(current): self.schema}
        for path in sorted((schemas / "released" / name).glob("*.avsc")):
            released = json.loads(path.read_text())
            self.writers.setdefault(fingerprint_of(released), fastavro.parse_schema(released))

    def read(self, value):
        if value is None or not value.startswith(MARKER):
            raise Unreadable("not an Avro single object")
        writer = self.writers.get(bytes(value[2:FRAME_BYTES]))
        if writer is None:
            raise Unreadable(f"the schema with fingerprint {value[2:FRAME_BYTES].hex()} is not known")
        datum = io.BytesIO(value[FRAME_BYTES:])
        try:
            record = fastavro.schemaless_reader(datum, writer, self.schema)
        except Exception as error:
            raise Unreadable(f"not a record of its schema: {error!r}") from error
        if datum.read(1):
            raise Unreadable("the record has more bytes than its schema")
        return record


class Writer:
    def __init__(self, schemas, name):
        current = json.loads((schemas / f"{name}.avsc").read_text())
        self.schema = fastavro.parse_schema(current)
        self.frame = MARKER + fingerprint_of(current)

    def write(self, record):
        datum = io.BytesIO()
        fastavro.schemaless_writer(datum, self.schema, record)
        return self.frame + datum.getvalue()
