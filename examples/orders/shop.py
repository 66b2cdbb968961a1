#!/usr/bin/env python3
"""A web shop whose orders Waybill processes, without a call to Waybill.

    init      makes the shop's tables and the topic on which it is told of its orders
    order     places an order: the order and the request to carry it out, in one transaction
    relay     sends requests that were committed, in their order, and marks those that arrived
    listen    takes what it is told of orders into the database
    services  stock, payment and shipping, which the workflow's agents call
    status    shows the orders, or the course of one

Each of them may be killed at any time, and is simply started again.

    SHOP_DATABASE  the PostgreSQL database (dbname=shop), as libpq understands it
    SHOP_BROKERS   the Kafka brokers (127.0.0.1:9092)
    SHOP_SERVICES  where `services` listens (127.0.0.1:8092)
"""

import argparse
import hashlib
import io
import json
import os
import pathlib
import sys
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fastavro
import psycopg
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from fastavro.schema import fingerprint, to_parsing_canonical_form

DATABASE = os.environ.get("SHOP_DATABASE", "dbname=shop")
BROKERS = os.environ.get("SHOP_BROKERS", "127.0.0.1:9092")
SERVICES = os.environ.get("SHOP_SERVICES", "127.0.0.1:8092")

REQUESTS = "waybill.operation-requests.v1"
STATUSES = "waybill.operation-status.v1"
OURS = "shop.order-status.v1"  # must begin with one of Waybill's http.replyToPrefixes


def log(text):
    print(text, flush=True)


# -- Records ---------------------------------------------------------------------------------------


class Schema:
    """A record's schema, and Avro's single-object encoding: marker, fingerprint, datum."""

    def __init__(self, name):
        path = pathlib.Path(__file__).resolve().parents[2] / "schemas" / f"{name}.avsc"
        schema = json.loads(path.read_text())
        self.schema = fastavro.parse_schema(schema)
        crc = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
        self.head = b"\xc3\x01" + bytes.fromhex(crc)

    def encode(self, record):
        out = io.BytesIO(self.head)
        out.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(out, self.schema, record)
        return out.getvalue()

    def decode(self, value):
        if not value or not value.startswith(self.head):
            raise ValueError("not a record of this schema's version")
        return fastavro.schemaless_reader(io.BytesIO(value[len(self.head) :]), self.schema)


REQUEST = Schema("operation-request")
STATUS = Schema("operation-status")

# The namespace of all operations whose ids callers choose; it never changes (docs/submission.md).
OF_CALLERS = uuid.UUID("9d5f57c3-0c0e-4c1b-8a53-6e1f2f5ab7d4")


def operation_of(caller_id, tenant=""):
    """The id of the operation that processes an order: always the same one for the same order, so
    that a request which is sent twice is one request."""
    tenant = tenant.encode()
    name = len(tenant).to_bytes(8, "big") + tenant + caller_id.encode()
    return uuid.UUID(bytes=hashlib.sha1(OF_CALLERS.bytes + name).digest()[:16], version=5)


def request_of(order):
    """The record that requests the processing of an order."""
    return REQUEST.encode(
        {
            "kind": "Create",
            "operation": operation_of(order["order"]),
            "id_origin": "Caller",
            "workflow": "shop-order",
            "caller_id": order["order"],
            "input": json.dumps(order).encode(),
            "reply_to": OURS,
            "request_hash": bytes(16),  # the scheduler computes it
            "requested_at": time.time_ns() // 1000,
        }
    )


# -- init ------------------------------------------------------------------------------------------

TABLES = """
CREATE TABLE IF NOT EXISTS orders (
    id        text PRIMARY KEY,
    article   text NOT NULL,
    quantity  integer NOT NULL CHECK (quantity > 0),
    cents     bigint NOT NULL,
    token     text NOT NULL,              -- what the card stands for at the bank
    city      text NOT NULL,
    operation uuid NOT NULL UNIQUE,
    status    text NOT NULL DEFAULT 'placed',
    reason    text,
    news      integer NOT NULL DEFAULT 0  -- the sequence number of what the status comes from
);

CREATE TABLE IF NOT EXISTS outbox (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key      text NOT NULL,
    record   bytea NOT NULL,
    sent_at  timestamptz
);
CREATE INDEX IF NOT EXISTS outbox_unsent ON outbox (position) WHERE sent_at IS NULL;

-- All that was told of an order.
CREATE TABLE IF NOT EXISTS news (
    operation uuid NOT NULL REFERENCES orders (operation),
    sequence  integer NOT NULL,
    state     text NOT NULL,
    step      text,
    topic     text NOT NULL,
    PRIMARY KEY (operation, sequence)
);

-- What belongs to the services, and is none of the shop's business.
CREATE SCHEMA IF NOT EXISTS services;
CREATE TABLE IF NOT EXISTS services.shelf (article text PRIMARY KEY, on_hand integer NOT NULL CHECK (on_hand >= 0));
INSERT INTO services.shelf VALUES ('lamp', 1000), ('chair', 3) ON CONFLICT DO NOTHING;
-- What is known under an idempotency key.
CREATE TABLE IF NOT EXISTS services.calls (
    key    text PRIMARY KEY,
    state  text NOT NULL DEFAULT 'new',   -- then done or refused; undone at last
    asked  jsonb,
    status integer,
    answer jsonb
);
-- Every effect that there ever was, and every undoing.
CREATE TABLE IF NOT EXISTS services.ledger (
    entry   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service text NOT NULL,
    "order" text NOT NULL,
    change  text NOT NULL                 -- done or undone
);
"""


def init(_):
    with psycopg.connect(DATABASE) as db:
        db.execute(TABLES)
    admin = AdminClient({"bootstrap.servers": BROKERS})
    made = admin.create_topics([NewTopic(OURS, 4)])[OURS]
    try:
        made.result(timeout=30)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
    log(f"the tables and the topic {OURS} are there")


# -- order -----------------------------------------------------------------------------------------


def order(arguments):
    order = {
        "order": arguments.id,
        "article": arguments.article,
        "quantity": arguments.quantity,
        "cents": arguments.cents,
        "token": arguments.token,
        "city": arguments.city,
    }
    operation = operation_of(arguments.id)
    with psycopg.connect(DATABASE) as db:  # one transaction: both rows, or none
        placed = db.execute(
            "INSERT INTO orders (id, article, quantity, cents, token, city, operation)"
            " VALUES (%(order)s, %(article)s, %(quantity)s, %(cents)s, %(token)s, %(city)s,"
            " %(operation)s) ON CONFLICT (id) DO NOTHING",
            {**order, "operation": operation},
        )
        if placed.rowcount:
            db.execute(
                "INSERT INTO outbox (key, record) VALUES (%s, %s)",
                (str(operation), request_of(order)),
            )
            db.execute("NOTIFY outbox")
    log(f"order {arguments.id}: {'placed' if placed.rowcount else 'was placed before'}")


# -- relay -----------------------------------------------------------------------------------------


def relay(_):
    producer = Producer(
        {
            "bootstrap.servers": BROKERS,
            "acks": "all",
            # The partitioner of Java's clients and of Waybill: librdkafka's default differs.
            "partitioner": "murmur2_random",
            "message.timeout.ms": 30_000,
        }
    )
    with psycopg.connect(DATABASE, autocommit=True) as db:
        db.execute("LISTEN outbox")
        log("relaying")
        while True:
            if not relay_some(db, producer):
                for _ in db.notifies(timeout=1, stop_after=1):
                    pass


def relay_some(db, producer):
    """Sends the next requests. Killed between the sending and the marking, it sends them again."""
    arrived = []

    def on_delivery_of(position):
        def on_delivery(error, _):
            if error:
                log(f"not sent, will be again: {error}")
            else:
                arrived.append(position)

        return on_delivery

    with db.transaction():
        # FOR UPDATE: a second relay waits here, and finds them marked.
        unsent = db.execute(
            "SELECT position, key, record FROM outbox WHERE sent_at IS NULL"
            " ORDER BY position LIMIT 100 FOR UPDATE"
        ).fetchall()
        for position, key, record in unsent:
            producer.produce(REQUESTS, record, key, on_delivery=on_delivery_of(position))
        producer.flush()
        db.execute("UPDATE outbox SET sent_at = now() WHERE position = ANY(%s)", (arrived,))
    if unsent:
        log(f"sent {len(arrived)} of {len(unsent)}")
    return unsent


# -- listen ----------------------------------------------------------------------------------------

# The customer's view of Waybill's states.
WORDS = {
    "Pending": "in progress",
    "Processing": "in progress",
    "Processed": "completed",
    "Compensating": "being cancelled",
    "Compensated": "cancelled",
    "Cancelled": "cancelled",
    "Error": "needs a person",
    "CompensationFailed": "needs a person",
}


def listen(_):
    consumer = Consumer(
        {
            "bootstrap.servers": BROKERS,
            "group.id": "shop",
            # A stable name: a restarted process continues immediately.
            "group.instance.id": "shop-listener",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    # Every step is published on our own topic. Waybill does not wait for these copies, so one can be missing
    # after a broker or scheduler dies; the end of every operation is always on the common topic.
    consumer.subscribe([OURS, STATUSES])
    with psycopg.connect(DATABASE, autocommit=True) as db:
        log("listening")
        while True:
            messages = consumer.consume(num_messages=100, timeout=1.0)
            records = [message for message in messages if is_record(message)]
            if not records:
                continue
            with db.transaction():
                for message in records:
                    take_in(db, message)
            # Only now: a process that is killed before this reads the same records again, which changes nothing.
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                log(f"not committed, it will be delivered again: {error}")


def is_record(message):
    if message.error():
        log(f"cannot read: {message.error()}")
    return not message.error()


def take_in(db, message):
    try:
        status = STATUS.decode(message.value())
    except (ValueError, EOFError) as error:
        log(f"{message.topic()}/{message.partition()}/{message.offset()}: {error}")
        return
    if status["kind"] == "Rejected":
        log(f"refused, as its id has another request: {status['caller_id']}")
        return
    step, error = status["step"], status["error"]
    news = {
        "operation": status["operation"],
        "sequence": status["sequence"],
        "state": status["state"],
        "step": step and f"{step['step']} {step['state']}",
        "topic": message.topic(),
        "status": WORDS.get(status["state"], status["state"]),
        "reason": error and f"{error['code']}: {error['message']}",
    }
    # The common topic also has operations of other callers: these have no row here.
    db.execute(
        "INSERT INTO news SELECT operation, %(sequence)s, %(state)s, %(step)s, %(topic)s"
        " FROM orders WHERE operation = %(operation)s ON CONFLICT DO NOTHING",
        news,
    )
    # A record that is not newer than the known state changes nothing.
    db.execute(
        "UPDATE orders SET status = %(status)s, reason = %(reason)s, news = %(sequence)s"
        " WHERE operation = %(operation)s AND news < %(sequence)s",
        news,
    )


# -- services --------------------------------------------------------------------------------------


class Refused(Exception):
    """A permanent refusal of a service."""


def perform(db, service, asked):
    """Makes the effect of a service. Returns the response."""
    if service == "stock":
        taken = db.execute(
            "UPDATE services.shelf SET on_hand = on_hand - %(quantity)s"
            " WHERE article = %(article)s AND on_hand >= %(quantity)s",
            asked,
        )
        if not taken.rowcount:
            raise Refused(409, "out-of-stock", f"too few of {asked['article']}")
        return {"reserved": asked["quantity"]}
    if service == "payment":
        if asked["token"] == "declined":
            raise Refused(402, "card-declined", "the bank says no")
        return {"charged": asked["cents"]}
    if asked["city"] == "Nowhere":
        raise Refused(422, "address-unknown", "there is no such place")
    return {"parcel": f"to {asked['city']}"}


def call(db, method, service, order, key, asked):
    """The result of a call, in one transaction: a status and a JSON value. A repeat of the call
    gets the same response and has no second effect; an undone effect stays undone."""
    db.execute("INSERT INTO services.calls (key) VALUES (%s) ON CONFLICT DO NOTHING", (key,))
    state, before, status, answer = db.execute(
        "SELECT state, asked, status, answer FROM services.calls WHERE key = %s FOR UPDATE", (key,)
    ).fetchone()

    def enter(change):
        db.execute(
            'INSERT INTO services.ledger (service, "order", change) VALUES (%s, %s, %s)',
            (service, order, change),
        )

    if method == "DELETE":
        # Remembered even if there was no effect: a late attempt is then refused.
        db.execute("UPDATE services.calls SET state = 'undone' WHERE key = %s", (key,))
        if state != "done":
            return 404, {"code": "nothing-to-undo"}
        if service == "stock":
            db.execute(
                "UPDATE services.shelf SET on_hand = on_hand + %(quantity)s"
                " WHERE article = %(article)s",
                before,
            )
        enter("undone")
        return 200, {"undone": True}
    if state == "undone":
        return 410, {"code": "undone-before"}
    if state == "new":
        try:
            status, answer, state = 201, perform(db, service, asked), "done"
            enter("done")
        except Refused as no:
            status, code, message = no.args
            answer, state = {"code": code, "message": message}, "refused"
        db.execute(
            "UPDATE services.calls SET state = %s, asked = %s, status = %s, answer = %s"
            " WHERE key = %s",
            (state, json.dumps(asked), status, json.dumps(answer), key),
        )
    return status, answer


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        _, service, order = self.path.split("/")
        key = self.headers["Idempotency-Key"]
        try:
            with psycopg.connect(DATABASE) as db:
                asked = json.loads(body) if body else None
                status, said = call(db, self.command, service, order, key, asked)
        except psycopg.Error as error:
            # The transaction may have been committed: a 5xx reports an unknown outcome.
            status, said = 500, {"code": "database", "message": str(error)}
        log(f"{self.command} {self.path} -> {status} {json.dumps(said)}")
        said = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


def services(_):
    host, port = SERVICES.rsplit(":", 1)
    server = ThreadingHTTPServer((host, int(port)), Service)
    log(f"serving on {SERVICES}")
    server.serve_forever()


# -- status ----------------------------------------------------------------------------------------


def status(arguments):
    with psycopg.connect(DATABASE) as db:
        if arguments.id:
            told = db.execute(
                "SELECT sequence, state, step FROM news JOIN orders USING (operation)"
                " WHERE id = %s ORDER BY sequence",
                (arguments.id,),
            )
            for sequence, state, step in told:
                log(f"{sequence:>3}  {state:<14} {step or ''}".rstrip())
            return
        for id, status, reason in db.execute("SELECT id, status, reason FROM orders ORDER BY id"):
            log(f"{id:<12} {status:<16} {reason or ''}".rstrip())
        for article, on_hand in db.execute("SELECT * FROM services.shelf ORDER BY article"):
            log(f"on the shelf: {on_hand} x {article}")
        (unsent,) = db.execute("SELECT count(*) FROM outbox WHERE sent_at IS NULL").fetchone()
        log(f"requests that are not sent: {unsent}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (init, relay, listen, services):
        commands.add_parser(command.__name__).set_defaults(run=command)
    ordering = commands.add_parser("order")
    ordering.set_defaults(run=order)
    ordering.add_argument("id", help="the order's number; the same again places no second order")
    ordering.add_argument("--article", default="lamp")
    ordering.add_argument("--quantity", type=int, default=1)
    ordering.add_argument("--cents", type=int, default=1950)
    ordering.add_argument("--token", default="visa", help="`declined` is declined by the bank")
    ordering.add_argument("--city", default="Springfield", help="nothing is shipped to `Nowhere`")
    showing = commands.add_parser("status")
    showing.set_defaults(run=status)
    showing.add_argument("id", nargs="?", help="an order, to see its course")
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
