"""From the oldest published release to this tree, and each step back once, while clients write and read.

Each release is built from its commit. The newer release writes state before the older one has to read it. The state is a
topic with a configuration, a transaction, and the offset of a group.
"""

from __future__ import annotations

import time

import confluent_kafka
import confluent_kafka.admin as admins
from confluent_kafka.cimpl import NewTopic

from tests.deploy.life import Life, is_whole
from tests.deploy.releases import PUBLISHED, THIS, wait_for_releases

_RETENTION_MS = "86400000"
_SECONDS = 60.0
_RECORDS = 20


def through_all_releases(life: Life) -> None:
    """Upgrade to each release, roll back, and upgrade again. State that a release writes is there after each step."""
    old = PUBLISHED[0]
    written: list[str] = []
    for new in (*PUBLISHED[1:], THIS):
        wait_for_releases(life.hosts.work / "releases", new)
        _upgrade(life, old, new)
        _write_state(life.bootstrap, f"written-by-{new}")
        written.append(f"written-by-{new}")
        _roll_back(life, new, old)
        _check_state(life.bootstrap, written)
        _upgrade(life, old, new, " again")
        _check_state(life.bootstrap, written)
        old = new


def _upgrade(life: Life, old: str, new: str, again: str = "") -> None:
    with life.step(f"upgrade {old} to {new}{again}") as step:
        begun = time.monotonic()
        life.playbooks.inventory["vars"]["odradek_release"] = new
        life.playbooks.run("upgrade")
        step.note = life.phases(begun)
        _check_versions(life, new)


def _roll_back(life: Life, new: str, old: str) -> None:
    with life.step(f"roll back {new} to {old}") as step:
        begun = time.monotonic()
        life.playbooks.run("rollback")
        step.note = life.phases(begun)
        _check_versions(life, old)
        life.playbooks.inventory["vars"]["odradek_release"] = old
        outcome = life.playbooks.run("deploy")
        assert outcome.changed == 0, outcome.output[-3000:]


def _check_versions(life: Life, expected: str) -> None:
    assert life.versions() == {expected}
    life.wait_until(is_whole, "a whole cluster")


def _write_state(bootstrap: str, name: str) -> None:
    """Create a topic, write records to it in a transaction, and commit an offset of a group. All have the same name."""
    admin = admins.AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, num_partitions=1, replication_factor=3, config={"retention.ms": _RETENTION_MS})
    admin.create_topics([topic])[name].result(_SECONDS)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(_SECONDS)
    producer.begin_transaction()
    for number in range(_RECORDS):
        producer.produce(name, str(number).encode(), partition=0)
    producer.commit_transaction(_SECONDS)
    consumer = _consumer(bootstrap, name)
    there = confluent_kafka.TopicPartition(name, 0, _RECORDS // 2)
    consumer.commit(offsets=[there], asynchronous=False)
    consumer.close()


def _check_state(bootstrap: str, names: list[str]) -> None:
    """Read what `_write_state` has written: the configuration, the offset, and the records from that offset on."""
    admin = admins.AdminClient({"bootstrap.servers": bootstrap})
    for name in names:
        resource = admins.ConfigResource(admins.ConfigResource.Type.TOPIC, name)
        config = admin.describe_configs([resource])[resource].result(_SECONDS)
        assert config["retention.ms"].value == _RETENTION_MS, name
        consumer = _consumer(bootstrap, name)
        (committed,) = consumer.committed([confluent_kafka.TopicPartition(name, 0)], timeout=_SECONDS)
        assert committed.offset == _RECORDS // 2, (name, committed)
        consumer.assign([committed])
        found: list[bytes | None] = []
        deadline = time.monotonic() + _SECONDS
        while len(found) < _RECORDS - _RECORDS // 2 and time.monotonic() < deadline:
            found += [
                message.value() for message in consumer.consume(_RECORDS, 0.2) if message.error() is None
            ]
        consumer.close()
        assert found == [str(number).encode() for number in range(_RECORDS // 2, _RECORDS)], (name, found)


def _consumer(bootstrap: str, group: str) -> confluent_kafka.Consumer:
    keys = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    return confluent_kafka.Consumer({**keys, "isolation.level": "read_committed"})


STEPS = (through_all_releases,)
