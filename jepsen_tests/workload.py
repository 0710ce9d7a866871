"""The clients of a run: producers, consumers with assigned partitions, and group members. Each is a thread, and is
often replaced.

All of them use librdkafka (confluent-kafka). A `Recorder` records their operations. A client runs for some seconds.
Then it is dropped, as if its process had crashed or restarted, and a new client with a new name replaces it.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from jepsen_tests.history import CORRUPT, Assign, Commit, Fault, History, Operation, Own, Poll, Restart, Send

TOPIC = "jepsen"
GROUP = "jepsen-group"
QUEUE_SENDS_MAX = 20_000
"""The number of unanswered sends at which a producer waits."""
_TICK_SECONDS = 0.01
_POLL_SECONDS = 0.2
_POLL_RECORDS = 500
_LIFE_SECONDS = (8.0, 24.0)
_CRASHES = 0.4
"""The share of producers that are dropped without waiting for their last answers."""
_FLUSH_SECONDS = 3.0

_CERTAINLY_NOT_SENT = {
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.MSG_SIZE_TOO_LARGE,
}
"""Errors of records that were certainly never sent. _PURGE_QUEUE is not among them, because a record that waits for a
retry is in the queue, too.
"""
_COMMIT_REFUSED = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
}

CLIENT_SETTINGS: Mapping[str, Any] = {
    "log_level": 0,
    "socket.timeout.ms": 6000,
    "socket.connection.setup.timeout.ms": 3000,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 5000,
}
PRODUCER_SETTINGS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "request.timeout.ms": 5000,
    "message.timeout.ms": 300_000,
    "retry.backoff.max.ms": 500,
    "debug": "eos",
    "log_level": 7,
}
CONSUMER_SETTINGS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 1000,
    "max.poll.interval.ms": 20_000,
}


def payload(value: int, size: int) -> bytes:
    """Encode a value: its number, a checksum of the filler, and `size` bytes of filler made from the number."""
    number = b"%d" % value
    filler = (number + b".") * (size // (len(number) + 1) + 1)
    return b"%d:%d:%b" % (value, zlib.crc32(filler[:size]), filler[:size])


def parse_payload(data: bytes | None) -> int:
    """Return the value in bytes that `payload` has made; `CORRUPT` for other bytes."""
    number, _, rest = (data or b"").partition(b":")
    size = len(rest.partition(b":")[2])
    if not number.isdigit() or data != payload(int(number), size):
        return CORRUPT
    return int(number)


@attrs.define
class Recorder:
    """The history of a run while it grows. It needs no lock: appending to a list is atomic, and only one client
    changes an operation.
    """

    started: float = attrs.field(factory=time.monotonic)
    history: History = attrs.field(factory=History)
    errors: dict[str, int] = attrs.field(factory=dict)
    """The number of errors that were reported to applications, by a text of the form `client: error`."""

    def now(self) -> float:
        """Return the seconds since the run began."""
        return round(time.monotonic() - self.started, 4)

    def add(self, operation: Operation) -> None:
        self.history.operations.append(operation)

    def fault(self, name: str, detail: str) -> None:
        self.add(Fault(self.now(), name, detail))

    def error(self, client: str, error: str) -> None:
        where = f"{client.rpartition('.')[0] or client}: {error}"
        self.errors[where] = self.errors.get(where, 0) + 1


class RestartListener(logging.Handler):
    """Detects in librdkafka's debug log (context `eos`) that a producer has restarted its sequence in a new epoch."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        super().__init__()
        self._recorder = recorder
        self._name = name

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "epoch bump" in text or "bumped epoch" in text:
            self._recorder.add(Restart(self._name, self._recorder.now(), text))

    def logger(self) -> logging.Logger:
        """Make a logger that passes its lines only to this handler."""
        logger = logging.Logger(self._name, logging.DEBUG)
        logger.addHandler(self)
        return logger


@attrs.define
class Workload:
    """The clients of a run: their threads, and the state that they share."""

    bootstrap: str
    partitions: int
    recorder: Recorder
    rate: float
    """Sends per second of all producers together."""
    value_bytes: int
    seed: int
    acks: str = "all"
    """The `acks` of producers: `all` or `1`. With `1`, records may be lost, because the leader acknowledges records
    that no other replica has.
    """
    steady: bool = False
    """True if clients run as long as the test, without being replaced."""
    _stop: threading.Event = attrs.field(factory=threading.Event)
    _stop_reading: threading.Event = attrs.field(factory=threading.Event)
    _values: itertools.count[int] = attrs.field(factory=itertools.count)
    _threads: list[threading.Thread] = attrs.field(factory=list)
    _failures: list[str] = attrs.field(factory=list)
    _furthest_member: dict[str, int] = attrs.field(factory=dict)

    def start(self, producers: int, readers: int, members: int) -> None:
        """Start this number of clients of each kind."""
        kinds: list[tuple[str, int, Callable[[str, random.Random], None]]] = [
            ("producer", producers, lambda name, dice: self._produce(name, dice, self.rate / producers)),
            ("reader", readers, self._read),
            ("member", members, self._be_member),
        ]
        for kind, count, body in kinds:
            for number in range(1, count + 1):
                thread = threading.Thread(
                    target=self._live, args=(f"{kind}-{number}", body), name=f"{kind}-{number}", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def stop_producing(self, timeout_seconds: float) -> bool:
        """Stop the producers. Return whether every send was answered in time."""
        self._stop.set()
        return self._join("producer", timeout_seconds)

    def stop_reading(self, timeout_seconds: float) -> bool:
        """Stop the consumers. Return whether all of them closed in time."""
        self._stop_reading.set()
        return self._join("", timeout_seconds)

    def failures(self) -> list[str]:
        """Return the exceptions that have ended threads. They are bugs of the test program or of librdkafka."""
        return self._failures

    def _join(self, kind: str, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        chosen = [thread for thread in self._threads if thread.name.startswith(kind)]
        for thread in chosen:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in chosen)

    def _live(self, name: str, body: Callable[[str, random.Random], None]) -> None:
        """Run clients of one kind, one after the other, until the run ends."""
        dice = random.Random(f"{self.seed} {name}")
        over = self._stop if name.startswith("producer") else self._stop_reading
        try:
            for life in itertools.count(1):
                body(f"{name}.{life}", dice)
                if over.is_set():
                    return
        except Exception as failure:  # noqa: BLE001 - a run without this client would prove little
            self._failures.append(f"{name}: {failure!r}")

    def _life_seconds(self, dice: random.Random) -> float:
        return math.inf if self.steady else dice.uniform(*_LIFE_SECONDS)

    def _client(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": name,
            **CLIENT_SETTINGS,
            **settings,
            "error_cb": lambda error: None,
        }

    # Producers

    def _produce(self, name: str, dice: random.Random, rate: float) -> None:
        logger = RestartListener(self.recorder, name).logger()
        settings = {**PRODUCER_SETTINGS, "acks": self.acks, "enable.idempotence": self.acks == "all"}
        producer = confluent_kafka.Producer({**self._client(name, settings), "logger": logger})
        started = time.monotonic()
        end = started + self._life_seconds(dice)
        sent = 0
        while time.monotonic() < end and not self._stop.is_set():
            while sent < (time.monotonic() - started) * rate and len(producer) < QUEUE_SENDS_MAX:
                self._send(producer, name, dice.randrange(self.partitions))
                sent += 1
            producer.poll(_TICK_SECONDS)
        crashes = dice.random() < _CRASHES and not self._stop.is_set()
        while len(producer):
            producer.flush(_FLUSH_SECONDS)
            if crashes:
                producer.purge()

    def _send(self, producer: confluent_kafka.Producer, name: str, partition: int) -> None:
        value = next(self._values)
        send = Send(name, self.recorder.now(), f"{TOPIC}-{partition}", value)

        def delivered(error: KafkaError | None, message: confluent_kafka.Message) -> None:
            send.completed = self.recorder.now()
            if error is None:
                send.outcome = "ok"
                send.offset = message.offset()
                return
            send.error = error.name()
            send.outcome = "fail" if error.code() in _CERTAINLY_NOT_SENT else "info"
            if error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                self.recorder.error(name, error.name())

        self.recorder.add(send)
        try:
            producer.produce(
                TOPIC, payload(value, self.value_bytes), partition=partition, on_delivery=delivered
            )
        except (BufferError, KafkaException) as refused:
            send.outcome, send.error = "fail", str(refused)

    # -- consumers with assigned partitions

    def _read(self, name: str, dice: random.Random) -> None:
        consumer = confluent_kafka.Consumer(
            self._client(name, {**CONSUMER_SETTINGS, "group.id": f"{name}-none"})
        )
        end = time.monotonic() + self._life_seconds(dice)
        keys = list(range(self.partitions))
        self.recorder.add(Assign(name, self.recorder.now(), [f"{TOPIC}-{key}" for key in keys]))
        consumer.assign([TopicPartition(TOPIC, key, confluent_kafka.OFFSET_BEGINNING) for key in keys])
        while time.monotonic() < end and not self._stop_reading.is_set():
            poll = Poll(name, self.recorder.now())
            self._take(poll, consumer.consume(_POLL_RECORDS, _POLL_SECONDS))
        consumer.close()

    def _take(self, poll: Poll, messages: list[confluent_kafka.Message]) -> None:
        """Complete a poll with the records that it returned; polls without records are dropped."""
        for message in messages:
            if (error := message.error()) is not None:
                self.recorder.error(poll.process, error.name())
                continue
            key = f"{message.topic()}-{message.partition()}"
            offset = message.offset()
            assert offset is not None
            poll.records.setdefault(key, []).append((offset, parse_payload(message.value())))
        if poll.records:
            poll.completed, poll.outcome = self.recorder.now(), "ok"
            self.recorder.add(poll)

    def read_all(self, timeout_seconds: float) -> str:
        """Read every key from its first record to its end, in polls marked as `final`. Return the reason if this fails,
        otherwise an empty text.
        """
        name = "final"
        consumer = confluent_kafka.Consumer(
            self._client(name, {**CONSUMER_SETTINGS, "group.id": "final-none"})
        )
        deadline = time.monotonic() + timeout_seconds
        polls: list[Poll] = []
        try:
            ends = _ends(consumer, self.partitions, deadline)
            missing = {partition: end for partition, end in ends.items() if end}
            keys = [TopicPartition(TOPIC, key, confluent_kafka.OFFSET_BEGINNING) for key in ends]
            self.recorder.add(Assign(name, self.recorder.now(), [f"{TOPIC}-{key}" for key in ends]))
            consumer.assign(keys)
            while missing:
                if time.monotonic() > deadline:
                    return f"partitions not read to their ends within {timeout_seconds:.0f} s: {missing}"
                polls.append(Poll(name, self.recorder.now()))
                self._take(polls[-1], consumer.consume(_POLL_RECORDS, _POLL_SECONDS))
                for place in consumer.position([TopicPartition(TOPIC, key) for key in missing]):
                    if place.offset >= missing[place.partition]:
                        del missing[place.partition]
        except KafkaException as failure:
            return f"the final reading failed: {failure}"
        finally:
            consumer.close()
        for poll in polls:
            poll.final = True
        return ""

    # -- members of the group

    def wait_for_group(self, timeout_seconds: float) -> str:
        """Wait until group members have read all acknowledged records. Return a text about missing offsets; empty if
        there are none.
        """
        acknowledged: dict[str, int] = {}
        for send in self.recorder.history.sends():
            if send.outcome == "ok" and send.offset is not None:
                acknowledged[send.key] = max(acknowledged.get(send.key, -1), send.offset)
        deadline = time.monotonic() + timeout_seconds
        while True:
            missing = {
                key: offset
                for key, offset in acknowledged.items()
                if self._furthest_member.get(key, -1) < offset
            }
            if not missing:
                return ""
            if time.monotonic() > deadline:
                return f"the group has not read these offsets {timeout_seconds:.0f} s after the last fault: {missing}"
            time.sleep(0.1)

    def _be_member(self, name: str, dice: random.Random) -> None:
        rebalances = 0

        def assigned(_: Any, partitions: list[TopicPartition]) -> None:
            nonlocal rebalances
            rebalances += 1
            keys = [f"{each.topic}-{each.partition}" for each in partitions]
            self.recorder.add(Own(name, self.recorder.now(), GROUP, keys))

        def revoked(_: Any, partitions: list[TopicPartition]) -> None:
            nonlocal rebalances
            rebalances += 1

        consumer = confluent_kafka.Consumer(self._client(name, {**CONSUMER_SETTINGS, "group.id": GROUP}))
        consumer.subscribe([TOPIC], on_assign=assigned, on_revoke=revoked)
        end = time.monotonic() + self._life_seconds(dice)
        while time.monotonic() < end and not self._stop_reading.is_set():
            poll = Poll(name, self.recorder.now())
            messages: list[confluent_kafka.Message] = []
            before = rebalances
            while len(messages) < _POLL_RECORDS and self.recorder.now() < poll.invoked + _POLL_SECONDS:
                message = consumer.poll(_POLL_SECONDS / 2)
                if rebalances != before:
                    # Earlier records belong to the previous generation, and are not committed.
                    self._take(poll, messages)
                    poll, messages, before = Poll(name, self.recorder.now()), [], rebalances
                if message is not None:
                    messages.append(message)
            self._take(poll, messages)
            for key, records in poll.records.items():
                self._furthest_member[key] = max(self._furthest_member.get(key, -1), records[-1][0])
            if poll.records and dice.random() < 0.8:
                self._commit(consumer, name, poll)
        consumer.close()

    def _commit(self, consumer: confluent_kafka.Consumer, name: str, poll: Poll) -> None:
        offsets = {key: records[-1][0] + 1 for key, records in poll.records.items()}
        commit = Commit(name, self.recorder.now(), GROUP, offsets)
        self.recorder.add(commit)
        places = [
            TopicPartition(TOPIC, int(key.rpartition("-")[2]), offset) for key, offset in offsets.items()
        ]
        try:
            answers = consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as failure:
            error = failure.args[0]
            commit.error = error.name()
            commit.outcome = "fail" if error.code() in _COMMIT_REFUSED else "info"
        else:
            refused = [place.error for place in answers or () if place.error is not None]
            commit.outcome = "info" if refused else "ok"
        commit.completed = self.recorder.now()


def _ends(consumer: confluent_kafka.Consumer, partitions: int, deadline: float) -> dict[int, int]:
    """Return the high watermark of every partition. Raises `KafkaException` if an answer is missing at the deadline."""
    found: dict[int, int] = {}
    while len(found) < partitions:
        partition = len(found)
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=3)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
            continue
        found[partition] = end
    return found
