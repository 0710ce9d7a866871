"""A client uses up the epochs of its producer id, lets its transaction time out, and guesses the last epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from odradek.data_plane.transactions.state import EPOCH_MAX
from odradek.security.acls.rules import ResourceType
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest
from odradek.wire.messages.end_txn import EndTxnRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from tests.attacks.coordinators import (
    PAUSE_SECONDS,
    TRANSACTION,
    allowed,
    answered,
    at_coordinator,
    make_topic,
)
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import Conn

WHO = "client"
TOPIC = "last-epoch"
LATE, STRANGER = "last-epoch-a", "last-epoch-z"
"""Two transactional ids. A coordinator of both checks the timeout of LATE first, so an error there could hold up
STRANGER."""
EPOCHS_IN_FULL = EPOCH_MAX - 1
PIPELINED = 200
TIMEOUT_MS = 1_000
FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Use up all epochs and guess the last one. The short form uses up only a few hundred."""
    make_topic(place, TOPIC)
    resources = [
        (ResourceType.TOPIC, TOPIC),
        (ResourceType.TRANSACTIONAL_ID, LATE),
        (ResourceType.TRANSACTIONAL_ID, STRANGER),
    ]
    with allowed(place, resources), at_coordinator(place, TRANSACTION, LATE) as late:
        yield from _guess(late, min(EPOCHS_IN_FULL, round(EPOCHS_IN_FULL * scale * scale)))
        with at_coordinator(place, TRANSACTION, STRANGER) as stranger:
            producer = _init(stranger, STRANGER)
            _add(stranger, STRANGER, producer.producer_id, producer.producer_epoch)
            yield Outcome("others' transactions are timed out behind it", *_timed_out(stranger, STRANGER))


def _guess(conn: Conn, epochs: int) -> Iterator[Outcome]:
    producer_id, epoch = _used_up(conn, epochs)
    begun = _add(conn, LATE, producer_id, epoch)
    yield Outcome("the producer begins a transaction", begun == 0, f"{producer_id}/{epoch}: code {begun}")
    yield Outcome("it is timed out", *_timed_out(conn, LATE))
    state = _described(conn, LATE)
    yield Outcome("the last epoch is nobody's", state.producer_epoch != EPOCH_MAX, _told(state))
    codes = [_add(conn, LATE, each, EPOCH_MAX) for each in (producer_id, state.producer_id)]
    yield Outcome(
        "a guessed epoch begins no transaction", all(code in FENCED for code in codes), f"codes {codes}"
    )
    ends = [_end_code(conn, each) for each in (producer_id, state.producer_id)]
    yield Outcome("nor does it end one", all(code in FENCED for code in ends), f"codes {ends}")
    again = _init(conn, LATE)
    yield Outcome("the transactional id goes on", not again.error_code, f"code {again.error_code}")


def _used_up(conn: Conn, epochs: int) -> tuple[int, int]:
    """Use up one epoch after the other, many requests at a time. Return the newest producer id and epoch."""
    newest = _init(conn, LATE)
    first_id = newest.producer_id
    while newest.producer_id == first_id and newest.producer_epoch < epochs:
        count = min(PIPELINED, epochs - newest.producer_epoch)
        versions = [conn.send(InitProducerIdRequest(LATE, TIMEOUT_MS, -1, -1), 4) for _ in range(count)]
        for version in versions:
            newest = conn.receive(InitProducerIdRequest.API_KEY, version)
    return newest.producer_id, newest.producer_epoch


def _init(conn: Conn, name: str) -> Any:
    request = InitProducerIdRequest(name, TIMEOUT_MS, -1, -1)
    return answered(lambda: conn.call(request, 4), lambda answer: int(answer.error_code))


def _add(conn: Conn, name: str, producer_id: int, epoch: int) -> int:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(TOPIC, [0])],
    )

    def code(answer: Any) -> int:
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    return code(answered(lambda: conn.call(request, 3), code))


def _end_code(conn: Conn, producer_id: int) -> int | str:
    try:
        return int(conn.call(EndTxnRequest(LATE, producer_id, EPOCH_MAX, True), 5).error_code)
    except ConnectionError as error:
        return str(error)


def _described(conn: Conn, name: str) -> Any:
    return conn.call(DescribeTransactionsRequest([name]), 0).transaction_states[0]


def _timed_out(conn: Conn, name: str) -> tuple[bool, str]:
    """Wait until the coordinator has aborted the transaction. Return whether it has, and the last state."""
    until = time.monotonic() + 60
    while (state := _described(conn, name)).transaction_state != "CompleteAbort" and time.monotonic() < until:
        time.sleep(PAUSE_SECONDS)
    return state.transaction_state == "CompleteAbort", _told(state)


def _told(state: Any) -> str:
    return f"{state.transaction_state} {state.producer_id}/{state.producer_epoch}"
