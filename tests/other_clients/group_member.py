"""A consumer group member of one of the client libraries, in a process of its own so that it can be killed.

    python -m tests.other_clients.group_member LIBRARY BOOTSTRAP GROUP TOPIC OPTIONS-AS-JSON

Prints one JSON value a line: `["assigned", [partitions]]` whenever the assignment has changed, `["record", partition,
offset, value]`, and `["done", command, result]` for each command line on standard input:
`commit`, `committed P`, `seek P OFFSET`, `pause P`, `resume P`, `close`.

Only the chosen library is imported, since members start often.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
from typing import Any, Protocol

POLL_SECONDS = 0.1


class GroupMember(Protocol):
    """The operations of a group member that every library offers."""

    def poll(self) -> list[tuple[int, int, str]]:
        """Return the records that have arrived, as (partition, offset, value)."""

    def assignment(self) -> list[int]: ...

    def commit(self) -> None: ...

    def committed(self, partition: int) -> int | None: ...

    def seek(self, partition: int, offset: int) -> None: ...

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int) -> None: ...

    def close(self) -> None: ...


class ConfluentMember:
    """A member that uses librdkafka."""

    def __init__(self, bootstrap: str, group: str, topic: str, options: dict[str, Any]) -> None:
        import confluent_kafka

        self._topic = topic
        self._places = confluent_kafka.TopicPartition
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": options["session_ms"],
            "heartbeat.interval.ms": 300,
            "log_level": 0,
        }
        if "instance" in options:
            config["group.instance.id"] = options["instance"]
        if "assignor" in options:
            config["partition.assignment.strategy"] = options["assignor"]
        self._consumer = confluent_kafka.Consumer(config)
        self._consumer.subscribe([topic])

    def _place(self, partition: int, offset: int = -1001) -> Any:
        return self._places(self._topic, partition, offset)

    def poll(self) -> list[tuple[int, int, str]]:
        messages = self._consumer.consume(100, POLL_SECONDS)
        return [
            (message.partition(), message.offset(), message.value().decode())
            for message in messages
            if message.error() is None
        ]

    def assignment(self) -> list[int]:
        return sorted(each.partition for each in self._consumer.assignment())

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def committed(self, partition: int) -> int | None:
        offset = self._consumer.committed([self._place(partition)], 10)[0].offset
        return None if offset < 0 else int(offset)

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(self._place(partition, offset))

    def pause(self, partition: int) -> None:
        self._consumer.pause([self._place(partition)])

    def resume(self, partition: int) -> None:
        self._consumer.resume([self._place(partition)])

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonMember:
    """A member that uses kafka-python."""

    def __init__(self, bootstrap: str, group: str, topic: str, options: dict[str, Any]) -> None:
        import kafka

        self._topic = topic
        self._places = kafka.TopicPartition
        config: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": options["session_ms"],
            "heartbeat_interval_ms": 300,
        }
        if "instance" in options:
            config["group_instance_id"] = options["instance"]
        self._consumer = kafka.KafkaConsumer(topic, **config)

    def _place(self, partition: int) -> Any:
        return self._places(self._topic, partition)

    def poll(self) -> list[tuple[int, int, str]]:
        batches = self._consumer.poll(timeout_ms=int(POLL_SECONDS * 1000))
        return [
            (each.partition, each.offset, each.value.decode()) for batch in batches.values() for each in batch
        ]

    def assignment(self) -> list[int]:
        return sorted(each.partition for each in self._consumer.assignment())

    def commit(self) -> None:
        self._consumer.commit()

    def committed(self, partition: int) -> int | None:
        return self._consumer.committed(self._place(partition))

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(self._place(partition), offset)

    def pause(self, partition: int) -> None:
        self._consumer.pause(self._place(partition))

    def resume(self, partition: int) -> None:
        self._consumer.resume(self._place(partition))

    def close(self) -> None:
        self._consumer.close()


class AioKafkaMember:
    """A member that uses aiokafka, on a loop that runs inside each call."""

    def __init__(self, bootstrap: str, group: str, topic: str, options: dict[str, Any]) -> None:
        import aiokafka

        self._topic = topic
        self._places = aiokafka.TopicPartition
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=options["session_ms"],
                heartbeat_interval_ms=300,
                group_instance_id=options.get("instance"),
            )
            await consumer.start()
            return consumer

        self._consumer = self._loop.run_until_complete(start())

    def _place(self, partition: int) -> Any:
        return self._places(self._topic, partition)

    def poll(self) -> list[tuple[int, int, str]]:
        got = self._consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
        batches = self._loop.run_until_complete(got)
        return [
            (each.partition, each.offset, each.value.decode()) for batch in batches.values() for each in batch
        ]

    def assignment(self) -> list[int]:
        return sorted(each.partition for each in self._consumer.assignment())

    def commit(self) -> None:
        self._loop.run_until_complete(self._consumer.commit())

    def committed(self, partition: int) -> int | None:
        found: int | None = self._loop.run_until_complete(self._consumer.committed(self._place(partition)))
        return found

    def seek(self, partition: int, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(self._place(partition), offset)

        self._loop.run_until_complete(seek())

    def pause(self, partition: int) -> None:
        async def pause() -> None:
            self._consumer.pause(self._place(partition))

        self._loop.run_until_complete(pause())

    def resume(self, partition: int) -> None:
        async def resume() -> None:
            self._consumer.resume(self._place(partition))

        self._loop.run_until_complete(resume())

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())


MEMBERS: dict[str, type[ConfluentMember | KafkaPythonMember | AioKafkaMember]] = {
    "confluent-kafka": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AioKafkaMember,
}


def tell(*event: Any) -> None:
    """Print one event without buffering."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Poll all the time, and run the commands from standard input. End with `close` or with the parent process."""
    library, bootstrap, group, topic, options = sys.argv[1:]
    member: GroupMember = MEMBERS[library](bootstrap, group, topic, json.loads(options))
    commands: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            commands.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    assigned: list[int] = []
    while True:
        for record in member.poll():
            tell("record", *record)
        if member.assignment() != assigned:
            assigned = member.assignment()
            tell("assigned", assigned)
        if not commands.empty():
            name, *arguments = commands.get().split()
            result = getattr(member, name)(*map(int, arguments))
            tell("done", name, result)
            if name == "close":
                return


if __name__ == "__main__":
    main()
