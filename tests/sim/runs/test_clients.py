"""Producers of all kinds and groups with changing members: sound runs pass, and bugs in the cluster are found."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest

from odradek.client.core.client_keys import ConsumerSettings, ProducerSettings
from odradek.client.errors import RequestTimedOut
from odradek.client.producer.accumulator import Batch, Lane
from odradek.data_plane.handlers.producing.produce import ProduceHandler
from odradek.serving.contract import Context, Result
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.produce import ProduceRequest
from sim.history import SafetyViolation
from sim.load.attachments import attached_to, must_be_whole, value_with
from sim.load.consumers.member_plan import CALM, MemberPlan
from sim.load.producers.producer_plan import ProducerPlan
from sim.load.producers.varied import certainly_failed
from sim.options import GROUP_SETTINGS, RunOptions
from sim.run import RunResult, run
from tests.mutants.patching import patched

SECONDS = 6.0


def _run(*workloads: str, seconds: float = SECONDS) -> RunResult:
    options = RunOptions.draw(1, "calm", seconds=seconds)
    settings = options.shape.settings | {key: values[0] for key, values in GROUP_SETTINGS.items()}
    shape = attrs.evolve(options.shape, settings=settings)
    return run(1, attrs.evolve(options, shape=shape, clients=1, workloads=("produce", *workloads)))


def test_every_plan_is_one_that_clients_take() -> None:
    """The drawn configurations are valid for Kafka's clients, and each kind is drawn."""
    random = Random(1)
    servers = {"bootstrap.servers": "a:1", "group.id": "g"}
    plans = [ProducerPlan.draw(random) for _ in range(400)]
    for plan in plans:
        settings = ProducerSettings.from_properties({"bootstrap.servers": "a:1", **plan.settings})
        assert settings.enable_idempotence is plan.idempotent
    assert {(plan.acks, plan.idempotent) for plan in plans} == {
        ("all", True),
        ("all", False),
        ("1", False),
        ("0", False),
    }
    assert {plan.settings["compression.type"] for plan in plans} == {"none", "gzip", "snappy", "lz4", "zstd"}
    members = [MemberPlan.draw(random, 1000) for _ in range(100)]
    for member in (*members, CALM):
        ConsumerSettings.from_properties({**servers, **member.settings})
    assert {member.end for member in members} == {"close", "die", "stall", "unsubscribe"}


def test_a_value_tells_what_its_record_has() -> None:
    """A record's value contains the key and headers that the record must have, so a reader can check them."""
    value = value_with("one", 7, 3, 2, b":filler")
    key, headers = attached_to(value)
    assert (key, headers) == (b"key-3", (("header-0", None), ("header-1", b"7")))
    must_be_whole("t-0 5", key, value, headers)
    assert attached_to(value_with("one", 8, None, 0)) == attached_to(b"other:1:") == (None, ())
    for wrong in ((None, headers), (key, headers[:1]), (b"key-4", headers)):
        with pytest.raises(SafetyViolation, match=r"^t-0 5: .* was sent with"):
            must_be_whole("t-0 5", wrong[0], value, wrong[1])


def test_which_failures_are_certain() -> None:
    """A send has certainly failed (G1a) if it was never sent, or if its only attempt was refused."""
    timed_out = RequestTimedOut("too late")
    refused = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "two are needed")

    def batch(attempts: int, **more: Any) -> Batch:
        return Batch(Lane("t", 0), 0.0, 1.0, 0, attempts=attempts, **more)

    assert certainly_failed(batch(0), timed_out)
    assert certainly_failed(batch(1), refused)
    assert not certainly_failed(batch(1), timed_out)
    assert not certainly_failed(batch(2), refused)
    assert not certainly_failed(batch(1, maybe_appended=True), refused)
    assert not certainly_failed(batch(1, parts=[]), refused)


def test_all_kinds_of_clients_live_through_a_run() -> None:
    """Producers die and group members come and go. No record is lost, and commits of old generations are refused."""
    result = _run("varied", "crowd", seconds=4.0)
    assert result.verdict == "ok", result.message
    figures = result.statistics
    assert figures["producer_deaths"] > 0
    assert figures["rebalances"] > 2
    assert figures["late_commits"] > 0


def test_a_commit_of_an_older_generation_that_is_taken_is_found() -> None:
    """A planted bug lets a member of an older generation commit. The run finds it."""
    with patched(
        "odradek.data_plane.groups.offsets:OffsetStore._may_commit",
        "if generation != group.generation:",
        "if generation > group.generation:",
    ):
        result = _run("crowd", seconds=10.0)
    assert result.verdict == "safety"
    assert "of generation 1, and group crowd-1 was at 2" in result.message


def test_a_broker_that_appends_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a broker appends a non-idempotent record twice that was sent once, the run finds it."""
    sound = ProduceHandler.handle

    def twice(
        self: ProduceHandler, context: Context, request: ProduceRequest, *more: Any, **named: Any
    ) -> Result:
        (topic, *_) = request.topic_data
        data = [bytes(each.records or b"") for each in topic.partition_data]
        if request.acks == 1 and parse_header(data[0], 0).producer_id < 0:
            sound(self, context, request, *more, **named)
            for each, again in zip(topic.partition_data, data, strict=True):
                each.records = memoryview(bytearray(again))
        return sound(self, context, request, *more, **named)

    monkeypatch.setattr(ProduceHandler, "handle", twice)
    result = _run("varied")
    assert result.verdict == "safety"
    assert " and at " in result.message
