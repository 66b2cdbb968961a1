"""Follows the operations that failed for good, as a consumer group of its own.

    pip install confluent-kafka fastavro
    python examples/failed-operations/follow.py 127.0.0.1:9092

Members of one group share a topic: each record goes to one of them. So every program that is to see all
of them has a group of its own, as this one and the follower in Rust have.

A record is an Avro single object: two marker bytes, the schema's fingerprint in eight, the datum.
"""

import io
import json
import pathlib
import sys

import fastavro
from confluent_kafka import Consumer

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = fastavro.parse_schema(json.loads((ROOT / "schemas/failed-operation.avsc").read_text()))
MARKER = b"\xc3\x01"

if len(sys.argv) != 2:
    sys.exit("which brokers? HOST:PORT")
consumer = Consumer(
    {
        "bootstrap.servers": sys.argv[1],
        "group.id": "failed-operations-python",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe(["waybill.failed-operations.v1"])
try:
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            # The client continues on its own once it can.
            print(f"nothing can be read for now: {message.error()}", file=sys.stderr)
            continue
        value = message.value()
        if not value.startswith(MARKER):
            print(f"not an Avro single object: offset {message.offset()}", file=sys.stderr)
        else:
            failed = fastavro.schemaless_reader(io.BytesIO(value[10:]), SCHEMA)
            error = failed["error"]
            # The event id is the same however often a record is sent: what was seen can be skipped.
            print(
                failed["event_id"],
                failed["operation"],
                failed["failing_step"],
                f"{error['code']}: {error['message']}",
                flush=True,
            )
        consumer.commit(message)
except KeyboardInterrupt:
    pass
finally:
    consumer.close()
