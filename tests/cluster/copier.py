"""A program that copies a topic by consume-transform-produce, each record exactly once, by one of two clients.

It ends with 0 when the group's committed offsets reach the total. It ends with 3 after an error that only a successor
of the same `transactional.id` gets over. Each line that it prints is an event and a number or a reason.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import confluent_kafka

from odradek import Consumer, Producer
from odradek.client.errors import RequestTimedOut, TransactionAbortableError, TransactionFatalError

RECORDS = 100
PARTITIONS = 3
NEEDS_SUCCESSOR = 3
CALL_SECONDS = 20.0
T = TypeVar("T")


class Fatal(Exception):
    """This producer can do no more."""


class Abortable(Exception):
    """This transaction can only be aborted."""


class Copier(Protocol):
    """One client's way to copy."""

    def subscribe(self) -> None:
        """Become a member of the group."""
        ...

    def poll(self) -> list[tuple[int, int, bytes]]:
        """The partition, offset and value of each record that has come, at most `RECORDS`."""
        ...

    def begin(self) -> None:
        """Begin a transaction. Raises `Abortable` or `Fatal`, as all that follow."""
        ...

    def write(self, partition: int, value: bytes) -> None:
        """Write one record to the target."""
        ...

    def flush(self) -> None:
        """Wait until all records have their outcome."""
        ...

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        """Commit the group's offsets, by partition of the source, with the transaction."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...

    def abort(self) -> None:
        """Abort the transaction, and read again from the committed offsets. Raises `Fatal`."""
        ...

    def committed(self) -> int:
        """The number of records behind the group's committed offsets."""
        ...

    def close(self) -> None:
        """End it; what is open stays to its successor."""
        ...


def say(event: str, about: object) -> None:
    """One line for the program that watches."""
    print(event, str(about).replace("\n", " "), flush=True)


class ByConfluent:
    """librdkafka's producer, which speaks the first protocol of transactions."""

    def __init__(self, bootstrap: str, source: str, target: str, name: str) -> None:
        self.target = target
        self.source = source
        self.keys = [(source, partition) for partition in range(PARTITIONS)]
        quiet = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.producer = confluent_kafka.Producer(
            {**quiet, "transactional.id": name, "transaction.timeout.ms": 30_000}
        )
        self.call(lambda: self.producer.init_transactions(CALL_SECONDS))
        self.consumer = confluent_kafka.Consumer(
            {
                **quiet,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
            }
        )

    def call(self, make: Callable[[], T]) -> T:
        """Make the call until its outcome is known."""
        while True:
            try:
                return make()
            except confluent_kafka.KafkaException as raised:
                error = raised.args[0]
                if error.fatal():
                    raise Fatal(error) from raised
                if error.txn_requires_abort():
                    raise Abortable(error) from raised
                if not error.retriable():
                    raise Fatal(f"neither fatal, abortable nor retriable: {error}") from raised
                say("again", error)

    def subscribe(self) -> None:
        self.consumer.subscribe([self.source])

    def poll(self) -> list[tuple[int, int, bytes]]:
        found = []
        for message in self.consumer.consume(RECORDS, 0.5):
            partition, offset, value = message.partition(), message.offset(), message.value()
            if message.error() is not None or partition is None or offset is None or value is None:
                say("consumer", message.error())
            else:
                found.append((partition, offset, value))
        return found

    def begin(self) -> None:
        self.call(self.producer.begin_transaction)

    def write(self, partition: int, value: bytes) -> None:
        self.call(lambda: self.producer.produce(self.target, value, partition=partition))

    def flush(self) -> None:
        self.producer.flush(CALL_SECONDS)

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        offsets = [confluent_kafka.TopicPartition(self.source, *each) for each in positions.items()]
        member = self.consumer.consumer_group_metadata()
        self.call(lambda: self.producer.send_offsets_to_transaction(offsets, member, CALL_SECONDS))

    def commit(self) -> None:
        self.call(lambda: self.producer.commit_transaction(CALL_SECONDS))

    def abort(self) -> None:
        self.call(lambda: self.producer.abort_transaction(CALL_SECONDS))
        mine = self.consumer.assignment()
        for each in self._offsets([(each.topic, each.partition) for each in mine]):
            self.consumer.seek(each)

    def _offsets(self, keys: list[tuple[str, int]]) -> list[confluent_kafka.TopicPartition]:
        """The group's offsets, with 0 where there are none yet."""
        asked = [confluent_kafka.TopicPartition(*key) for key in keys]
        found = self.call(lambda: self.consumer.committed(asked, CALL_SECONDS)) if asked else []
        return [
            confluent_kafka.TopicPartition(each.topic, each.partition, max(each.offset, 0)) for each in found
        ]

    def committed(self) -> int:
        return sum(each.offset for each in self._offsets(self.keys))

    def close(self) -> None:
        self.consumer.close()


class ByOdradek:
    """Our own clients, which speak the second protocol of transactions (KIP-890) where the cluster has it."""

    def __init__(self, bootstrap: str, source: str, target: str, name: str) -> None:
        self.target = target
        self.source = source
        self.keys = [(source, partition) for partition in range(PARTITIONS)]
        self.producer = Producer(
            bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=30_000
        )
        self.call(self.producer.init_transactions)
        self.consumer = Consumer(
            bootstrap_servers=bootstrap,
            group_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            max_poll_records=RECORDS,
        )

    def call(self, make: Callable[[], T]) -> T:
        """Make the call until its outcome is known."""
        while True:
            try:
                return make()
            except TransactionFatalError as error:
                raise Fatal(f"{error!r} {error.__cause__!r}") from error
            except TransactionAbortableError as error:
                raise Abortable(f"{error!r} {error.__cause__!r}") from error
            except RequestTimedOut as error:
                say("again", error)

    def subscribe(self) -> None:
        self.consumer.subscribe([self.source])

    def poll(self) -> list[tuple[int, int, bytes]]:
        return [(each.partition, each.offset, each.value) for each in self.consumer.poll(0.5)]

    def begin(self) -> None:
        self.call(self.producer.begin_transaction)

    def write(self, partition: int, value: bytes) -> None:
        self.call(lambda: self.producer.send(self.target, value, partition=partition))

    def flush(self) -> None:
        self.producer.flush(CALL_SECONDS)

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        offsets = {(self.source, partition): offset for partition, offset in positions.items()}
        member = self.consumer.group_metadata()
        self.call(lambda: self.producer.send_offsets_to_transaction(offsets, member))

    def commit(self) -> None:
        self.call(self.producer.commit_transaction)

    def abort(self) -> None:
        self.call(self.producer.abort_transaction)
        for key, offset in self._offsets(list(self.consumer.assignment())).items():
            self.consumer.seek(key, offset)

    def _offsets(self, keys: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The group's offsets, with 0 where there are none yet."""
        found = self.call(lambda: self.consumer.committed(keys))
        return {key: 0 if (told := found.get(key)) is None else told.offset for key in keys}  # type: ignore[call-overload]

    def committed(self) -> int:
        return sum(self._offsets(self.keys).values())

    def close(self) -> None:
        self.consumer.close()
        self.producer.close(0)


CLIENTS: dict[str, type[ByConfluent] | type[ByOdradek]] = {"confluent": ByConfluent, "odradek": ByOdradek}


def transform(value: bytes) -> bytes:
    """The copy of one record's value."""
    return b"copy of " + value


def copy(copier: Copier, total: int) -> None:
    """Go on until all is copied. Raises `Fatal`."""
    while True:
        started = time.monotonic()
        records = copier.poll()
        count = len(records)
        if not records:
            if copier.committed() >= total:
                return
            continue
        try:
            copier.begin()
            for partition, _, value in records:
                copier.write(partition, transform(value))
            copier.send_offsets({partition: offset + 1 for partition, offset, _ in records})
            copier.commit()
            say("committed", f"{count} {time.monotonic() - started:.3f}")
        except Abortable as error:
            say("aborting", error)
            copier.abort()
            say("aborted", f"{count} {time.monotonic() - started:.3f}")


def main(client: str, bootstrap: str, source: str, target: str, name: str, total: str) -> int:
    """Copy until `total` records are done; the exit status."""
    try:
        copier = CLIENTS[client](bootstrap, source, target, name)
        say("ready", name)
        copier.subscribe()
        copy(copier, int(total))
    except (Fatal, Abortable) as error:
        say("fatal", error)
        return NEEDS_SUCCESSOR
    say("done", total)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
