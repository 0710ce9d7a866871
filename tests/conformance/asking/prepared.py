"""A transactional id that stays in PrepareCommit or PrepareAbort, because one partition never takes its marker.

First an admin client writes a marker with the highest coordinator epoch. The partition then refuses all later markers
of this producer (TRANSACTION_COORDINATOR_FENCED), and the coordinator gives up, as in Kafka. Normally the state lasts
for milliseconds. Here it stays, so that requests can be sent in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import ABORT, COMMIT, END, V1, V2, Producer, in_state, without_text

COORDINATOR_EPOCH_MAX = 2**31 - 1
STATE = {COMMIT: "PrepareCommit", ABORT: "PrepareAbort"}
NEIGHBOURS = ((0, 0), (-1, 0), (1, 0), (0, 1))
"""Differences that requests add to the right epoch and to the right producer id."""


def prepared(talk: Talk, stem: str, is_commit: bool, client: int) -> Producer:
    """Make a producer whose transaction is committed or aborted but never gets all its markers.

    A client of version 2 already has the epoch of its next transaction.
    """
    producer = in_state(talk, stem, "empty", client)
    topics = [WritableTxnMarkerTopic(producer.topic, [0])]
    marker = WritableTxnMarker(producer.producer_id, producer.epoch, ABORT, topics, COORDINATOR_EPOCH_MAX, 0)
    answer = talk.ask_silently(WriteTxnMarkersRequest([marker]), 1)
    assert not answer.markers[0].topics[0].partitions[0].error_code, answer
    producer.begin()
    response = talk.ask_silently(producer.end_request(is_commit), END[client])
    assert not response.error_code, response
    if client == V2:
        producer.learn(response)
    producer.wait_for(lambda state: state == STATE[is_commit])
    return producer


def ask_all(talk: Talk, asked: list[tuple[Any, int]]) -> None:
    """Send many requests before reading any answer: Kafka reports at once that it is busy, our node after half a
    second."""
    line = talk.line()
    for message, version in asked:
        line.send(message, version)
    for _ in asked:
        line.answer(without_text)


def prepared_case(api: str) -> Callable[[Callable[[Talk, Producer], None]], None]:
    """Register a case for each outcome and client. The decorated function is called with the talk and the producer."""

    def enter(conversation: Callable[[Talk, Producer], None]) -> None:
        for client in (V1, V2):
            for is_commit in (COMMIT, ABORT):
                state = STATE[is_commit]

                def run(talk: Talk, *, client: int, is_commit: bool, stem: str) -> None:
                    producer = prepared(talk, stem, is_commit, client)
                    producer.look()
                    conversation(talk, producer)
                    producer.look()

                case(f"{api} of client {client} in {state}")(
                    partial(run, client=client, is_commit=is_commit, stem=f"pr-{api}-{client}-{state}")
                )

    return enter
