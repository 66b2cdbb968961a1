"""An agent in Python: keeps the topic contract of docs/agents.md, and uses nothing of Waybill but
the schemas.

    pip install -r examples/python-agent/requirements.txt
    python examples/python-agent/agent.py --brokers 127.0.0.1:9092 --store seats.db

It books seats. The store is its service: one effect for an idempotency key, and a tombstone for what
was undone. Where the service is a remote one, that one has to keep both, and the agent only hands the
key on.
"""

import argparse
import collections
import json
import logging
import pathlib
import signal
import sys
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

import wire
from store import Store, StoreBusy, Undone

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMIT_EVERY = 1.0  # seconds
POLL_WAIT = 0.1  # seconds
BATCH_MAX = 100  # records per poll
UNACKNOWLEDGED_MAX = 1000  # replies in flight; at the limit, no further request is read
FLUSH_WAIT = 10.0  # seconds
OWNER_REMEMBERED = 600.0  # seconds; after a restore from a backup epochs begin lower
SHARDS_MAX = 10_000  # how many shards are remembered
ECHOED = ("operation", "step", "attempt", "epoch", "action", "nonce")  # the fields of the request that a reply repeats
FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)

log = logging.getLogger("agent")


class Offsets:
    """How far each partition is done: below it, every record has its reply or dead letter
    acknowledged, or needs none."""

    def __init__(self):
        self.partitions = {}

    def assign(self, partitions):
        for partition in partitions:
            self.partitions[partition] = {"open": collections.OrderedDict(), "next": None, "committed": None}

    def revoke(self, partitions):
        for partition in partitions:
            self.partitions.pop(partition, None)

    def holds(self, partition):
        return partition in self.partitions

    def begin(self, partition, offset):
        """Registers a record; returns a function that marks it as done."""
        state = self.partitions[partition]
        state["open"][offset] = True
        state["next"] = offset + 1

        # The assignment has ended, so the offset is no longer tracked.
        return lambda: state["open"].pop(offset, None)

    def to_commit(self, again):
        """The offsets that have moved, or all of them, by partition."""
        moved = {}
        for partition, state in self.partitions.items():
            done_to = next(iter(state["open"]), state["next"])
            if done_to is not None and (again or done_to != state["committed"]):
                moved[partition] = done_to
        return moved

    def committed(self, moved):
        for partition, offset in moved.items():
            if partition in self.partitions:
                self.partitions[partition]["committed"] = offset


class Epochs:
    """The newest owner of each shard that has sent requests: a superseded owner is refused."""

    def __init__(self):
        self.newest = {}

    def is_superseded(self, request):
        if request["shard"] is None:
            return False
        shard = (request["layout"], request["shard"])
        now = time.monotonic()
        epoch, asked_at = self.newest.get(shard, (0, now))
        if request["epoch"] < epoch and now - asked_at < OWNER_REMEMBERED:
            return True
        if shard not in self.newest and len(self.newest) >= SHARDS_MAX:
            self.newest.clear()
        self.newest[shard] = (request["epoch"], now)
        return False


class Agent:
    def __init__(self, arguments):
        self.topic = f"{arguments.prefix}.{arguments.agent}.requests.v1"
        self.replies = f"{arguments.prefix}.step-replies.v1"
        self.dead_letters = f"{self.topic}.dlq"
        self.step = arguments.step
        self.store = Store(arguments.store)
        self.requests_reader = wire.Reader(ROOT / "schemas", "step-request")
        self.replies_writer = wire.Writer(ROOT / "schemas", "step-reply")
        self.offsets = Offsets()
        self.epochs = Epochs()
        self.unacknowledged = 0
        self.broken = None
        self.stopping = False
        clients = {"bootstrap.servers": arguments.brokers, "client.id": f"{arguments.agent}-agent"}
        self.producer = Producer({**clients, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
        self.consumer = Consumer(
            {
                **clients,
                "group.id": arguments.group or f"{arguments.prefix}-agents",
                # That of Waybill's agents: the brokers refuse a member with another one.
                "partition.assignment.strategy": "cooperative-sticky",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "session.timeout.ms": 6000,
                # How soon a topic that is created later is found.
                "topic.metadata.refresh.interval.ms": 2000,
                "fetch.wait.max.ms": 100,
            }
        )

    def run(self):
        """Reads and answers requests until it is stopped, or cannot continue."""
        self.consumer.subscribe([self.topic], on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.lost)
        commit_at = time.monotonic() + COMMIT_EVERY
        try:
            while not self.stopping and self.broken is None:
                if self.unacknowledged < UNACKNOWLEDGED_MAX:
                    self.take_batch()
                    self.producer.poll(0)
                else:
                    self.producer.poll(POLL_WAIT)
                if time.monotonic() >= commit_at:
                    self.commit(asynchronous=True)
                    commit_at = time.monotonic() + COMMIT_EVERY
        finally:
            self.settle()
            self.consumer.close()
            self.store.close()
        if self.broken is not None:
            raise self.broken

    def stop(self, *_):
        self.stopping = True

    def take_batch(self):
        """Waits for a record, then takes all available ones."""
        message = self.consumer.poll(POLL_WAIT)
        for _ in range(BATCH_MAX):
            if message is None:
                return
            self.take(message)
            message = self.consumer.poll(0)
        if message is not None:
            self.take(message)

    def take(self, message):
        """Handles one record: a reply, a dead letter, or nothing if complete-by has passed."""
        error = message.error()
        if error is not None:
            if error.fatal() or error.code() in FORBIDDEN:
                raise KafkaException(error)
            # Wait for a topic that does not exist yet, for a broker that is down, or for a group whose
            # members use another assignment strategy.
            log.warning("%s", error)
            return
        if self.stopping or not self.offsets.holds(message.partition()):
            # Not registered, so not committed: the next owner of the partition reads it.
            return
        done = self.offsets.begin(message.partition(), message.offset())
        try:
            request = self.requests_reader.read(message.value())
            if request["action"] not in self.ACTIONS:
                raise wire.Unreadable(f"the action {request['action']} is not known")
        except wire.Unreadable as error:
            self.bury(message, error, done)
            return
        if remaining(request) <= 0:
            done()
            return
        if self.epochs.is_superseded(request):
            reply = failed("NotAttempted", "owner-superseded", "a newer owner of the shard has asked")
            self.answer(message, request, {**reply, "retry_after_ms": 100}, done)
            return
        reply = self.ACTIONS[request["action"]](self, request)
        if remaining(request) <= 0:
            # The scheduler no longer waits for it; it sends another request under the same key.
            done()
            return
        self.answer(message, request, reply, done)

    def perform(self, request):
        if request["step"] != self.step:
            return failed("Permanent", "step-unknown", f"this agent performs {self.step}")
        seats = seats_of(request["input"])
        if seats is None:
            return failed("Permanent", "input-invalid", "seats must be a whole number from 1 to 9")
        try:
            outputs = self.store.perform(request["idempotency_key"], seats, remaining(request))
        except Undone:
            return failed("Permanent", "undone-before", "the booking was undone under this key")
        except StoreBusy:
            return failed("Transient", "store-busy", "the store could not be written in time")
        return succeeded(outputs)

    def undo(self, request):
        # Unknown steps were never performed: there is nothing to undo.
        try:
            self.store.undo(request["idempotency_key"], remaining(request))
        except StoreBusy:
            return failed("Transient", "store-busy", "the store could not be written in time")
        return succeeded({})

    def probe(self, request):
        try:
            outputs = self.store.find(request["idempotency_key"], remaining(request))
        except StoreBusy:
            return failed("Transient", "store-busy", "the store could not be read in time")
        return {"outcome": "NotPerformed"} if outputs is None else succeeded(outputs)

    ACTIONS = {"Run": perform, "Compensate": undo, "Probe": probe}

    def answer(self, message, request, reply, done):
        """Replies to exactly the partition that the request names."""
        echo = {name: request[name] for name in ECHOED}
        reply = {"outputs": {}, "error": None, "retry_after_ms": None, **echo, **reply}
        trace = [header for header in message.headers() or [] if header[0] == "traceparent"]
        self.send(
            self.replies,
            request["reply_partition"],
            str(request["operation"]).encode(),
            self.replies_writer.write(reply),
            trace,
            done,
            request,
        )

    def bury(self, message, error, done):
        """Dead-letters an unreadable record: its own bytes, its position, and the cause."""
        log.warning("%s/%s/%s: %s", message.topic(), message.partition(), message.offset(), error)
        errors = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "connector.name": "waybill",
            "stage": "VALUE_CONVERTER",
            "class.name": "python-agent",
            "exception.class.name": type(error).__name__,
            "exception.message": error,
        }
        headers = list(message.headers() or [])
        headers += [(f"__connect.errors.{name}", str(value).encode()) for name, value in errors.items()]
        self.send(self.dead_letters, message.partition(), message.key(), message.value(), headers, done)

    def send(self, topic, partition, key, value, headers, done, request=None):
        """Produces; the request is done once the broker has acknowledged it."""

        def delivered(error, _):
            self.unacknowledged -= 1
            is_late = request is not None and remaining(request) <= 0
            if error is None or is_late:
                done()
            else:
                # No later offset may be committed: stop, so that the record is read again.
                self.broken = KafkaException(error)

        while True:
            try:
                self.producer.produce(
                    topic, value, key, partition=partition, headers=headers, on_delivery=delivered
                )
                break
            except BufferError:
                self.producer.poll(POLL_WAIT)
        self.unacknowledged += 1

    def settle(self):
        """Waits for replies in flight, and commits finished requests."""
        self.producer.flush(FLUSH_WAIT)
        try:
            # Includes offsets that were committed before without waiting for the result.
            self.commit(asynchronous=False)
        except KafkaException as error:
            log.warning("not committed, and so done again: %s", error)

    def commit(self, asynchronous):
        moved = self.offsets.to_commit(again=not asynchronous)
        if not moved:
            return
        offsets = [TopicPartition(self.topic, partition, offset) for partition, offset in moved.items()]
        self.consumer.commit(offsets=offsets, asynchronous=asynchronous)
        self.offsets.committed(moved)

    def assigned(self, _, partitions):
        self.offsets.assign(partition.partition for partition in partitions)
        log.info("assigned: %s", sorted(partition.partition for partition in partitions))

    def revoked(self, _, partitions):
        """Partitions move to another member: finished requests are committed first."""
        self.settle()
        self.offsets.revoke(partition.partition for partition in partitions)

    def lost(self, _, partitions):
        """Another member already owns the partitions: commit nothing."""
        self.offsets.revoke(partition.partition for partition in partitions)


def remaining(request):
    """Seconds until complete-by, by the wall clock."""
    return request["complete_by"].timestamp() - time.time()


def seats_of(text):
    try:
        seats = json.loads(text).get("seats")
    except (ValueError, AttributeError):
        return None
    return seats if type(seats) is int and 1 <= seats <= 9 else None


def succeeded(outputs):
    return {"outcome": "Success", "outputs": outputs}


def failed(outcome, code, message):
    return {"outcome": outcome, "error": {"code": code, "message": message}}


def main():
    parser = argparse.ArgumentParser(description="An agent that books seats.")
    parser.add_argument("--brokers", required=True, help="HOST:PORT,...")
    parser.add_argument("--prefix", default="waybill", help="what the names of topics begin with")
    parser.add_argument("--agent", default="seats", help="the agent's name, which names its topic")
    parser.add_argument("--step", default="book", help="the step that it performs")
    parser.add_argument("--group", help="the consumer group; default PREFIX-agents")
    parser.add_argument("--store", default="seats.db", help="the file of the store")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    agent = Agent(parser.parse_args())
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, agent.stop)
    agent.run()


if __name__ == "__main__":
    try:
        main()
    except KafkaException as error:
        sys.exit(f"agent: {error}")
