"""Additional workloads: pipelining connections, topics that come and go, and joint transactions."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from odradek.data_plane.groups.state import GroupsState
from odradek.data_plane.handlers.producing.produce import ProduceHandler
from odradek.serving.contract import Context, Result
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from sim.load import pipelining
from sim.options import RunOptions
from sim.run import run

SECONDS = 6.0


def _options(*workloads: str) -> RunOptions:
    return attrs.evolve(RunOptions.draw(1, "calm", seconds=SECONDS), workloads=("produce", *workloads))


def test_clients_that_do_not_wait_are_answered_in_order_and_lose_nothing() -> None:
    """Requests that are pipelined on a connection are appended and answered in order, with any codec, acks and size."""
    result = run(1, _options("pipeline"))
    assert result.verdict == "ok", result.message


def test_a_broker_that_appends_out_of_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug appends two requests of a connection in the wrong order. Without producer ids only the checker
    finds it."""
    sound = ProduceHandler.handle
    kept: dict[str, ProduceRequest] = {}

    def late(
        self: ProduceHandler, context: Context, request: ProduceRequest, *more: Any, **named: Any
    ) -> Result:
        (topic, *_) = request.topic_data
        if topic.name != pipelining.TOPIC or request.acks != 1:
            return sound(self, context, request, *more, **named)
        name = str(context.client_id)
        before = kept.pop(name, None)
        if before is not None:
            answer = sound(self, context, request, *more, **named)
            sound(self, context, before, *more, **named)
            return answer
        (data,) = topic.partition_data
        data.records = memoryview(bytearray(data.records or b""))
        kept[name] = request
        refused = PartitionProduceResponse(data.index, ErrorCode.REQUEST_TIMED_OUT, -1, -1, -1, [], None)
        return ProduceResponse([TopicProduceResponse(topic.name, topic.topic_id, [refused])], 0, [])

    monkeypatch.setattr(ProduceHandler, "handle", late)
    result = run(1, _options("pipeline"))
    assert result.verdict == "safety"
    assert "comes after a later one of its producer" in result.message


def test_topics_that_come_and_go_disturb_nobody() -> None:
    """Segments and topics are deleted while workers use their files. Other topics lose nothing."""
    options = _options("churn")
    result = run(1, attrs.evolve(options, shape=attrs.evolve(options.shape, segment_bytes=2000)))
    assert result.verdict == "ok", result.message


def test_joint_transactions_keep_their_promises() -> None:
    """Transactions are visible as a whole or not at all: over many partitions, in a compacted topic, prepared, or with
    odd names."""
    options = _options("wide", "tally", "prepare", "names")
    settings = {**options.shape.settings, "transaction.two.phase.commit.enable": "true"}
    result = run(2, attrs.evolve(options, shape=attrs.evolve(options.shape, settings=settings)))
    assert result.verdict == "ok", result.message
    for workload in ("wide", "tally", "prepare", "names"):
        assert result.statistics[f"{workload} committed"] > 0
    assert result.statistics["prepare kept"] > 0


def test_a_marker_that_makes_older_offsets_count_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug lets a marker restore offsets older than a later commit. The run finds it."""
    monkeypatch.setattr(GroupsState, "_overtaken", lambda self, offsets: self.pending)
    result = run(1, _options("wide"))
    assert result.verdict == "safety"
    assert "is of a plain commit" in result.message or "right would have been" in result.message
