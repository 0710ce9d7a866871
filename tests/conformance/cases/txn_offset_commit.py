"""TxnOffsetCommit: offsets that count once their transaction commits (KIP-98, KIP-447, KIP-890)."""

from __future__ import annotations

from functools import partial
from typing import Any

from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.conformance.asking.members import STRANGER as NO_MEMBER
from tests.conformance.asking.members import stable
from tests.conformance.asking.offsets import commit
from tests.conformance.asking.prepared import NEIGHBOURS, ask_all, prepared_case
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import (
    ABORT,
    COMMIT,
    END,
    SHORT_MS,
    STATES,
    V1,
    V2,
    Producer,
    in_state,
)

MEMBERS_SINCE = 3
IMPLICIT_SINCE = 5
"""The first version in which this request itself begins a transaction (KIP-890)."""
LONG_ENOUGH_MS = 2_000
"""A timeout for the second transaction, long enough for its requests and short enough to pass during the case."""
SIMPLE: dict[str, Any] = {}


def _fetch(talk: Talk, group: str, topic: str) -> None:
    """Fetch the committed offsets, and whether more are pending."""
    wanted = [OffsetFetchRequestTopics(topic, partition_indexes=[0, 1])]
    for is_stable in (False, True):
        groups = [OffsetFetchRequestGroup(group, topics=wanted)]
        talk.ask(OffsetFetchRequest(groups=groups, require_stable=is_stable), 9)


def _in_a_state(talk: Talk, *, state: str, client: int, version: int) -> None:
    """Commit with wrong epochs and producer ids, then with the right ones, before and after adding the group."""
    stem = f"tc-{client}-{version}-{state.replace(' ', '-')}"
    begins_another = client == V2 and version >= IMPLICIT_SINCE
    producer = in_state(talk, stem, state, client, short_ms=LONG_ENOUGH_MS if begins_another else SHORT_MS)
    group = talk.name(stem)
    for by, other in ((-1, 0), (1, 0), (0, 1), (0, 0)):
        producer.ask(producer.commit_request(group, by=by, other=other), version)
        producer.look()
    producer.ask(producer.offsets_request(group), 4)
    for offset in (6, 7):
        producer.ask(producer.commit_request(group, offset), version)
        producer.look()
    for by, other in ((-1, 0), (1, 0), (0, 1)):
        producer.ask(producer.commit_request(group, by=by, other=other), version)
    _fetch(talk, group, producer.topic)
    producer.ask(producer.end_request(COMMIT), END[client])
    _fetch(talk, group, producer.topic)


for _state in STATES:
    for _client in (V1, V2):
        for _version in range(6):
            case(f"txn_offset_commit v{_version} of client {_client} when {_state}")(
                partial(_in_a_state, state=_state, client=_client, version=_version)
            )


def _added(talk: Talk, stem: str, group: str, client: int = V1) -> Producer:
    """Make a producer with an open transaction to which the group was added."""
    producer = in_state(talk, stem, "empty", client)
    producer.ask(producer.offsets_request(group), 4)
    return producer


def _members(talk: Talk, *, version: int) -> None:
    """Commit as a group's members, with the right generation and member id and with wrong ones, which are fenced."""
    (member,) = stable(talk, talk.name(f"tc-members-{version}"))
    producer = _added(talk, f"tc-members-{version}", member.group)
    mine = {"member_id": member.member_id, "generation_id": member.generation}
    for fields in (
        SIMPLE,
        mine,
        {**mine, "generation_id": member.generation + 1},
        {**mine, "generation_id": member.generation - 1},
        {**mine, "generation_id": -1},
        {**mine, "generation_id": -2},
        {**mine, "member_id": ""},
        {**mine, "member_id": NO_MEMBER},
        {**mine, "group_instance_id": "nobody"},
        {**mine, "group_instance_id": ""},
        {**mine, "member_id": NO_MEMBER, "generation_id": -1},
    ):
        producer.ask(producer.commit_request(member.group, **fields), version)
    _fetch(talk, member.group, producer.topic)
    producer.ask(producer.end_request(COMMIT), 4)
    _fetch(talk, member.group, producer.topic)


def _static_members(talk: Talk, *, version: int) -> None:
    (member,) = stable(talk, talk.name(f"tc-static-{version}"), instance="one")
    producer = _added(talk, f"tc-static-{version}", member.group)
    mine = {
        "member_id": member.member_id,
        "generation_id": member.generation,
        "group_instance_id": "one",
    }
    for fields in (
        mine,
        {**mine, "group_instance_id": None},
        {**mine, "group_instance_id": "two"},
        {**mine, "member_id": NO_MEMBER},
        {**mine, "member_id": ""},
        {**mine, "generation_id": 99},
        {**mine, "member_id": NO_MEMBER, "generation_id": 99},
    ):
        producer.ask(producer.commit_request(member.group, **fields), version)


def _unknown_groups(talk: Talk, *, version: int) -> None:
    """Commit to an empty group. It accepts only offsets without a generation."""
    group = talk.name(f"tc-nobody-{version}")
    producer = _added(talk, f"tc-nobody-{version}", group)
    for fields in (
        {"member_id": "x", "generation_id": 1},
        {"member_id": "", "generation_id": 1},
        {"member_id": "", "generation_id": 0},
        {"member_id": "x", "generation_id": -1},
        {"member_id": "x", "generation_id": -2},
        {"member_id": "", "generation_id": -1, "group_instance_id": "i"},
        {"member_id": "", "generation_id": -1},
    ):
        producer.ask(producer.commit_request(group, **fields), version)
    producer.ask(producer.commit_request(""), version)
    producer.ask(producer.commit_request("", by=1), version)
    producer.ask(producer.end_request(ABORT), 4)
    _fetch(talk, group, producer.topic)
    producer.ask(producer.commit_request(group, member_id="x", generation_id=1), version)


for _version in range(6):
    case(f"txn_offset_commit v{_version} of members")(partial(_members, version=_version))
    case(f"txn_offset_commit v{_version} of static members")(partial(_static_members, version=_version))
    case(f"txn_offset_commit v{_version} of unknown groups")(partial(_unknown_groups, version=_version))


def _topics(talk: Talk, *, version: int) -> None:
    """Commit unknown partitions and metadata that is too large. Each partition is refused by itself."""
    group = talk.name(f"tc-topics-{version}")
    producer = _added(talk, f"tc-topics-{version}", group)
    topic, gone = producer.topic, talk.name("tc-nowhere")

    def ask(wanted: dict[str, list[int]], metadata: str | None = "m", **fields: Any) -> None:
        named = [
            TxnOffsetCommitRequestTopic(
                name, [TxnOffsetCommitRequestPartition(index, 5, -1, metadata) for index in indexes]
            )
            for name, indexes in wanted.items()
        ]
        message: TxnOffsetCommitRequest = producer.commit_request(group, **{"topics": named, **fields})
        producer.ask(message, version)

    ask({gone: [0]})
    ask({topic: [0, 2], gone: [0, 1]})
    ask({topic: [-1]})
    ask({"": [0], "bad name": [0]})
    ask({})
    ask({topic: []})
    ask({gone: []})
    ask({topic: [0, 0]})
    ask({gone: [0], topic: [1]}, by=1)
    ask({gone: [0], topic: [1]}, other=1)
    for metadata in (None, "", "x" * 4_096, "x" * 4_097, "ü" * 4_096, "ü" * 2_049):
        ask({topic: [0]}, metadata)
    ask({topic: [0, 1], gone: [0]}, "x" * 4_097)
    for offset in (-1, -2, 0, 2**62):
        producer.ask(producer.commit_request(group, offset), version)
    _fetch(talk, group, topic)
    producer.ask(producer.end_request(COMMIT), 4)
    _fetch(talk, group, topic)


for _version in range(6):
    case(f"txn_offset_commit v{_version} of several topics")(partial(_topics, version=_version))


@case("txn_offset_commit without a transactional id")
def _(talk: Talk) -> None:
    topic, _ = talk.topic("tc-no-id")
    nobody = Producer(talk, "", V1, topic)
    for version in range(6):
        talk.ask(nobody.commit_request(talk.name("tc-no-id")), version)


@case("txn_offset_commit to a group of another protocol")
def _(talk: Talk) -> None:
    (member,) = stable(talk, talk.name("tc-connect"), kind="connect", protocols=(("p", b"anything"),))
    producer = _added(talk, "tc-connect", member.group)
    mine = {"member_id": member.member_id, "generation_id": member.generation}
    for version in (3, 5):
        producer.ask(producer.commit_request(member.group), version)
        producer.ask(producer.commit_request(member.group, **mine), version)


@case("txn_offset_commit while a group is rebalanced")
def _(talk: Talk) -> None:
    (member,) = stable(talk, talk.name("tc-rebalance"))
    producer = _added(talk, "tc-rebalance", member.group)
    mine = {"member_id": member.member_id, "generation_id": member.generation}
    member.send_join()
    member.joined(silently=True)
    for version in (3, 5):
        producer.ask(producer.commit_request(member.group, **mine), version)
        producer.ask(
            producer.commit_request(
                member.group, member_id=member.member_id, generation_id=member.generation
            ),
            version,
        )
        producer.ask(producer.commit_request(member.group), version)


@case("txn_offset_commit beside commits without a transaction")
def _(talk: Talk) -> None:
    """Commit the same offset inside and outside a transaction. The newer commit counts."""
    group = talk.name("tc-beside")
    producer = _added(talk, "tc-beside", group)
    commit(talk, group, producer.topic, 3)
    producer.ask(producer.commit_request(group, 5), 5)
    _fetch(talk, group, producer.topic)
    commit(talk, group, producer.topic, 4)
    _fetch(talk, group, producer.topic)
    producer.ask(producer.end_request(COMMIT), 4)
    _fetch(talk, group, producer.topic)


@case("txn_offset_commit of two producers")
def _(talk: Talk) -> None:
    for outcomes in ((COMMIT, COMMIT), (COMMIT, ABORT), (ABORT, COMMIT), (ABORT, ABORT)):
        stem = f"tc-two-{outcomes[0]}-{outcomes[1]}"
        group = talk.name(stem)
        topic, _ = talk.topic(stem, 2)
        producers = [in_state(talk, f"{stem}-{number}", "empty", V2, topic) for number in range(2)]
        for offset, producer in enumerate(producers, 10):
            producer.ask(producer.commit_request(group, offset), 5)
        _fetch(talk, group, topic)
        for producer, is_commit in zip(reversed(producers), outcomes, strict=True):
            producer.ask(producer.end_request(is_commit), 5)
            _fetch(talk, group, topic)


@prepared_case("txn_offset_commit")
def _(talk: Talk, producer: Producer) -> None:
    for version in range(6):
        group = talk.name(f"tc-prepared-{producer.client}-{version}")
        ask_all(
            talk,
            [(producer.commit_request(group, by=by, other=other), version) for by, other in NEIGHBOURS],
        )
        _fetch(talk, group, producer.topic)
