"""CreateTopics: names, sizes, assignments, configs."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tests.conformance.asking.talk import Talk, case


def _topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: dict[int, list[int]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name,
        partitions,
        factor,
        [CreatableReplicaAssignment(index, replicas) for index, replicas in (assignments or {}).items()],
        [CreatableTopicConfig(key, value) for key, value in (configs or {}).items()],
    )


def _versions(talk: Talk, *, version: int) -> None:
    name = talk.name(f"create{version}")
    talk.ask(CreateTopicsRequest([_topic(name, 2)], 10_000), version)
    talk.ask(CreateTopicsRequest([_topic(name, 2)], 10_000), version)
    if version >= 4:
        talk.ask(CreateTopicsRequest([_topic(name + "d", -1, -1)], 10_000), version)


for _version in range(2, 8):
    case(f"create_topics v{_version}")(partial(_versions, version=_version))


def _one(talk: Talk, *, stem: str, arguments: dict[str, object], validate_only: bool = False) -> None:
    name = stem if stem.startswith("=") else talk.name(stem)
    topic = _topic(name.removeprefix("="), **arguments)  # type: ignore[arg-type]  # the table's values
    talk.ask(CreateTopicsRequest([topic], 10_000, validate_only), 7)


NAMES = {
    "empty": "=",
    "dot": "=.",
    "two dots": "=..",
    "blank": "=a b",
    "slash": "=a/b",
    "not ascii": "=ü",
    "250 characters": "=" + "x" * 250,
    "cluster metadata": "=__cluster_metadata",
}
for _label, _name in NAMES.items():
    case(f"create_topics named: {_label}")(partial(_one, stem=_name, arguments={}))
SIZES: dict[str, dict[str, object]] = {
    "no partitions": {"partitions": 0},
    "-2 partitions": {"partitions": -2},
    "too many partitions": {"partitions": 10_001},
    "no replicas": {"factor": 0},
    "-2 replicas": {"factor": -2},
    "more replicas than brokers": {"factor": 2},
    "no partitions and no replicas": {"partitions": 0, "factor": 0},
    "defaults": {"partitions": -1, "factor": -1},
    "assignment": {"partitions": -1, "factor": -1, "assignments": {0: [1], 1: [1]}},
    "assignment with partitions": {"partitions": 1, "factor": -1, "assignments": {0: [1]}},
    "assignment with factor": {"partitions": -1, "factor": 1, "assignments": {0: [1]}},
    "assignment to a stranger": {"partitions": -1, "factor": -1, "assignments": {0: [7]}},
    "assignment of nobody": {"partitions": -1, "factor": -1, "assignments": {0: []}},
    "assignment twice to one": {"partitions": -1, "factor": -1, "assignments": {0: [1, 1]}},
    "assignment with a gap": {"partitions": -1, "factor": -1, "assignments": {0: [1], 2: [1]}},
    "assignment from one": {"partitions": -1, "factor": -1, "assignments": {1: [1]}},
    "assignment unequal": {"partitions": -1, "factor": -1, "assignments": {0: [1], 1: [1, 1]}},
}
CONFIGS: dict[str, dict[str, str | None]] = {
    "unknown": {"no.such.config": "1"},
    "null": {"retention.ms": None},
    "two nulls": {"retention.ms": None, "segment.bytes": None},
    "not a number": {"retention.ms": "x"},
    "out of range": {"segment.bytes": "1"},
    "below -1": {"retention.ms": "-2"},
    "blank around": {"retention.ms": " 1000 "},
    "boolean in capitals": {"preallocate": "TRUE"},
    "not a boolean": {"preallocate": "maybe"},
    "bad policy": {"cleanup.policy": "shred"},
    "two policies": {"cleanup.policy": "compact,delete"},
    "no policy": {"cleanup.policy": ""},
    "bad compression": {"compression.type": "brotli"},
    "compression": {"compression.type": "zstd"},
    "compression level": {"compression.gzip.level": "99"},
    "ratio": {"min.cleanable.dirty.ratio": "2"},
    "lag": {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
    "timestamp type": {"message.timestamp.type": "Never"},
    "remote storage": {"remote.storage.enable": "true"},
    "local retention": {"local.retention.ms": "100", "retention.ms": "50"},
    "throttled replicas": {"leader.replication.throttled.replicas": "0:1,1:1"},
    "bad throttled replicas": {"leader.replication.throttled.replicas": "x"},
    "first unknown, then bad": {"no.such.config": "1", "retention.ms": "x"},
    "good and many": {"retention.ms": "1000", "segment.bytes": "1048576", "min.insync.replicas": "1"},
    "message format": {"message.format.version": "3.0"},
    "empty number": {"retention.ms": ""},
    "beyond 32 bits": {"segment.bytes": "2147483648"},
    "min isr 0": {"min.insync.replicas": "0"},
}
for _label, _arguments in SIZES.items():
    case(f"create_topics with {_label}")(partial(_one, stem=_label.replace(" ", "-"), arguments=_arguments))
for _label, _configs in CONFIGS.items():
    case(f"create_topics with config: {_label}")(
        partial(
            _one, stem="config-" + _label.replace(" ", "-").replace(",", ""), arguments={"configs": _configs}
        )
    )


@case("create_topics validates only")
def _(talk: Talk) -> None:
    name = talk.name("validated")
    talk.ask(CreateTopicsRequest([_topic(name, 3)], 10_000, True), 7)
    talk.ask(CreateTopicsRequest([_topic(name, 0)], 10_000, True), 7)
    talk.ask(CreateTopicsRequest([_topic(name, 3)], 10_000, False), 7)
    talk.ask(CreateTopicsRequest([_topic(name, 3)], 10_000, True), 7)


@case("create_topics names one twice")
def _(talk: Talk) -> None:
    once, twice = talk.name("once"), talk.name("twice")
    talk.ask(CreateTopicsRequest([_topic(twice), _topic(once), _topic(twice, 2)], 10_000), 7)
    talk.ask(CreateTopicsRequest([_topic(twice, 0)], 10_000), 7)


@case("create_topics collides")
def _(talk: Talk) -> None:
    talk.topic("collides.with")
    talk.ask(CreateTopicsRequest([_topic(talk.name("collides_with"))], 10_000), 7)
    talk.ask(CreateTopicsRequest([_topic(talk.name("both.of")), _topic(talk.name("both_of"))], 10_000), 7)


@case("create_topics none")
def _(talk: Talk) -> None:
    talk.ask(CreateTopicsRequest([], 10_000), 7)


@case("create_topics sets one config twice")
def _(talk: Talk) -> None:
    configs = [CreatableTopicConfig("retention.ms", "1"), CreatableTopicConfig("retention.ms", "2")]
    talk.ask(CreateTopicsRequest([CreatableTopic(talk.name("config-twice"), 1, 1, [], configs)], 10_000), 7)


@case("create_topics assigns one partition twice")
def _(talk: Talk) -> None:
    told = [CreatableReplicaAssignment(0, [1]), CreatableReplicaAssignment(0, [1])]
    talk.ask(CreateTopicsRequest([CreatableTopic(talk.name("told-twice"), -1, -1, told, [])], 10_000), 7)
