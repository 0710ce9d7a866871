"""AddPartitionsToTxn: by clients (versions 0 to 3), and by brokers for many transactions at once (4 and 5)."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from tests.conformance.asking.prepared import NEIGHBOURS, ask_all, prepared_case
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import BATCHED_SINCE, STATES, V1, V2, Producer, in_state


def _in_a_state(talk: Talk, *, state: str, client: int, version: int) -> None:
    """Send the request with wrong epochs and producer ids, then with the right ones, partly twice."""
    producer = in_state(talk, f"ap-{client}-{version}-{state.replace(' ', '-')}", state, client)
    for by, other in ((-1, 0), (1, 0), (0, 1), (1, 1)):
        producer.ask(producer.add_request(version=version, by=by, other=other), version)
    for indexes in ([0], [0], [1], [0, 1]):
        producer.ask(producer.add_request({producer.topic: indexes}, version=version), version)
        producer.look()


def _verifies(talk: Talk, *, state: str, client: int, version: int) -> None:
    """Send requests that only verify partitions. They must add none."""
    producer = in_state(talk, f"apv-{client}-{version}-{state.replace(' ', '-')}", state, client)
    for indexes in ([0], [1], [0, 1]):
        for by, other in ((0, 0), (-1, 0), (1, 0), (0, 1)):
            message = producer.add_request(
                {producer.topic: indexes}, version=version, by=by, other=other, verify_only=True
            )
            producer.ask(message, version)
    producer.look()


for _state in STATES:
    for _client in (V1, V2):
        for _version in range(6):
            case(f"add_partitions_to_txn v{_version} of client {_client} when {_state}")(
                partial(_in_a_state, state=_state, client=_client, version=_version)
            )
        for _version in (4, 5):
            case(f"add_partitions_to_txn v{_version} of client {_client} only asks when {_state}")(
                partial(_verifies, state=_state, client=_client, version=_version)
            )


def _unknown_topics(talk: Talk, *, version: int) -> None:
    """Name an unknown partition together with a known one. None may be added."""
    producer = in_state(talk, f"ap-missing-{version}", "empty")
    topic, gone = producer.topic, talk.name("ap-nowhere")
    for wanted in (
        {gone: [0]},
        {topic: [0], gone: [0, 1]},
        {topic: [0, 2]},
        {topic: [-1]},
        {"": [0]},
        {"bad name": [0], topic: [1]},
        {},
        {topic: []},
        {gone: []},
        {topic: [0, 0]},
        {"__transaction_state": [0]},
        {"__consumer_offsets": [0]},
    ):
        producer.ask(producer.add_request(wanted, version=version), version)
        producer.look()
    for wanted in ({gone: [0], topic: [0]}, {topic: []}, {}):
        producer.ask(producer.add_request(wanted, version=version, by=1), version)
        producer.ask(producer.add_request(wanted, version=version, other=1), version)
    if version >= BATCHED_SINCE:
        for wanted in ({gone: [0], topic: [0]}, {topic: []}, {}, {topic: [0, 0]}):
            for by, other in ((0, 0), (1, 0), (0, 1)):
                message = producer.add_request(wanted, version=version, by=by, other=other, verify_only=True)
                producer.ask(message, version)


for _version in range(6):
    case(f"add_partitions_to_txn v{_version} of topics that are missing")(
        partial(_unknown_topics, version=_version)
    )


def _without_id(talk: Talk, *, version: int) -> None:
    topic, _ = talk.topic(f"ap-empty-{version}")
    producer = Producer(talk, "", V1, topic)
    for wanted in ({topic: [0]}, {}, {talk.name("ap-nowhere"): [0]}):
        talk.ask(producer.add_request(wanted, version=version), version)
        if version >= BATCHED_SINCE:
            talk.ask(producer.add_request(wanted, version=version, verify_only=True), version)


for _version in range(6):
    case(f"add_partitions_to_txn v{_version} without a transactional id")(
        partial(_without_id, version=_version)
    )


def _batched(talk: Talk, *, version: int) -> None:
    """Send several transactions in one request. Each has its own answer, unless a transactional id comes twice."""
    topic, _ = talk.topic(f"ap-batched-{version}", 4)
    first = in_state(talk, f"ap-batched-{version}-a", "empty", V2, topic)
    second = in_state(talk, f"ap-batched-{version}-b", "committed", V2, topic)
    nobody = in_state(talk, f"ap-batched-{version}-c", "unknown", V2, topic)

    def entries(*wanted: tuple[Producer, dict[str, list[int]], bool]) -> list[AddPartitionsToTxnTransaction]:
        return [
            each
            for producer, topics, verify_only in wanted
            for each in producer.add_request(topics, version=version, verify_only=verify_only).transactions
        ]

    gone = talk.name("ap-nowhere")
    for wanted in (
        ((first, {topic: [0]}, False), (second, {topic: [1]}, False), (nobody, {topic: [0]}, False)),
        ((first, {topic: [0]}, True), (second, {topic: [0]}, True), (nobody, {topic: [0]}, True)),
        ((first, {topic: [1]}, False), (second, {topic: [1, 2]}, True)),
        ((first, {topic: [2], gone: [0]}, False), (second, {topic: [3]}, False)),
        ((first, {}, False), (second, {topic: []}, True)),
    ):
        talk.ask(AddPartitionsToTxnRequest(entries(*wanted)), version)
        first.look()
        second.look()


for _version in (4, 5):
    case(f"add_partitions_to_txn v{_version} of several transactions")(partial(_batched, version=_version))


@prepared_case("add_partitions_to_txn")
def _(talk: Talk, producer: Producer) -> None:
    asked = [
        (producer.add_request({producer.topic: [index]}, version=version, by=by, other=other), version)
        for version in range(6)
        for index in (0, 1)
        for by, other in NEIGHBOURS
    ]
    asked += [
        (producer.add_request(version=version, by=by, other=other, verify_only=True), version)
        for version in (4, 5)
        for by, other in NEIGHBOURS
    ]
    ask_all(talk, asked)
