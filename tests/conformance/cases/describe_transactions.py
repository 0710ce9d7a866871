"""DescribeTransactions: what a coordinator knows about transactional ids (KIP-664)."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest
from tests.conformance.asking.prepared import prepared_case
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import COMMIT, STATES, V1, V2, Producer, in_state


def _in_a_state(talk: Talk, *, state: str, client: int) -> None:
    producer = in_state(talk, f"dt-{client}-{state.replace(' ', '-')}", state, client)
    producer.look()
    talk.ask(DescribeTransactionsRequest([producer.transactional_id] * 2), 0)


for _state in STATES:
    for _client in (V1, V2):
        case(f"describe_transactions of client {_client} when {_state}")(
            partial(_in_a_state, state=_state, client=_client)
        )


@case("describe_transactions of many")
def _(talk: Talk) -> None:
    topic, _ = talk.topic("dt-many", 3)
    other, _ = talk.topic("dt-many-others", 2)
    names = []
    for number, state in enumerate(("empty", "ongoing", "committed", "aborted")):
        producer = in_state(talk, f"dt-many-{number}", state, V1, topic)
        if state == "ongoing":
            producer.ask(producer.add_request({topic: [2, 1], other: [1, 0]}), 3)
            producer.ask(producer.offsets_request(talk.name("dt-group")), 4)
        names.append(producer.transactional_id)
    talk.ask(DescribeTransactionsRequest(names), 0)
    talk.ask(DescribeTransactionsRequest([*names, talk.name("dt-nobody")]), 0)


@case("describe_transactions of odd names")
def _(talk: Talk) -> None:
    for names in ([], [""], ["", ""], [" "], ["ü"], ["x" * 1_000], ["x", ""]):
        talk.ask(DescribeTransactionsRequest(names), 0)


@case("describe_transactions of a topic that is gone")
def _(talk: Talk) -> None:
    producer = in_state(talk, "dt-gone", "ongoing", V1)
    talk.delete_topic(producer.topic)
    producer.look()
    producer.ask(producer.end_request(COMMIT), 4)
    producer.look()


@prepared_case("describe_transactions")
def _(talk: Talk, producer: Producer) -> None:
    named = producer.transactional_id
    talk.ask(DescribeTransactionsRequest([named, talk.name("nobody"), named]), 0)
