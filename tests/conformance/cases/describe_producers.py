"""DescribeProducers: the producers of a partition."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.conformance.asking.batches import batch
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import END, PRODUCE, STATES, V1, V2, in_state


def _produce(talk: Talk, name: str, producer: int, epoch: int, sequence: int, timestamp: int = 1_000) -> None:
    data = batch(timestamp=timestamp, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    sent = [TopicProduceData(name, bytes(16), [PartitionProduceData(0, data)])]
    talk.ask_silently(ProduceRequest(None, -1, 5_000, sent), 9)


def _describe(talk: Talk, *topics: tuple[str, list[int]]) -> None:
    talk.ask(DescribeProducersRequest([TopicRequest(*topic) for topic in topics]), 0)


@case("describe_producers v0")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dp", 2)
    _describe(talk, (name, [0, 1]))
    _produce(talk, name, 71, 0, 0)
    _produce(talk, name, 72, 3, 0, 5_000)
    _describe(talk, (name, [0, 1]))
    _produce(talk, name, 71, 0, 3, 9_000)
    _produce(talk, name, 71, 0, 3, 9_000)
    _describe(talk, (name, [0]))
    _produce(talk, name, 71, 1, 0, 9_500)
    _describe(talk, (name, [0]))


@case("describe_producers where a sequence begins anew")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dp-wraps")
    _produce(talk, name, 71, 0, 2**31 - 2)
    _describe(talk, (name, [0]))


@case("describe_producers after a refused batch")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dp-refused")
    _produce(talk, name, 71, 1, 0)
    _produce(talk, name, 71, 1, 9)
    _produce(talk, name, 71, 0, 3)
    _describe(talk, (name, [0]))


@case("describe_producers of what is not there")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dp-missing")
    _describe(talk, (name, [0, 7, -1]), (talk.name("dp-unknown"), [0, 1]))
    _describe(talk, ("bad name", [0]))
    _describe(talk, ("", [0]))
    _describe(talk, ("x" * 250, [0]))


@case("describe_producers of nothing")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dp-nothing")
    _describe(talk)
    _describe(talk, (name, []))


@case("describe_producers names a partition twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dp-twice")
    _produce(talk, name, 71, 0, 0)
    _describe(talk, (name, [0, 0]))
    _describe(talk, (name, [0]), (name, [0]))


@case("describe_producers of producers that have no id")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dp-plain")
    _produce(talk, name, -1, -1, -1)
    _describe(talk, (name, [0]))


def _of_transactions(talk: Talk, *, state: str, client: int) -> None:
    """Show where a transaction begins, until its marker is written."""
    producer = in_state(talk, f"dp-{client}-{state.replace(' ', '-')}", state, client)
    _describe(talk, (producer.topic, [0, 1]))
    producer.ask(producer.add_request({producer.topic: [1]}), 3)
    _describe(talk, (producer.topic, [0, 1]))
    producer.ask(producer.produce_request(index=1, sequence=0), PRODUCE[client])
    _describe(talk, (producer.topic, [0, 1]))
    for is_commit in (True, False):
        producer.ask(producer.end_request(is_commit), END[client])
        _describe(talk, (producer.topic, [0, 1]))


for _state in STATES:
    for _client in (V1, V2):
        case(f"describe_producers of client {_client} when {_state}")(
            partial(_of_transactions, state=_state, client=_client)
        )
