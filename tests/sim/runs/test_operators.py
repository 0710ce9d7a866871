"""Operators and random requests: acknowledged changes that are not made are found, and so are wrong answers."""

from __future__ import annotations

import dis
from random import Random
from typing import Any

import attrs
import pytest

from odradek.data_plane.handlers.administration.alter_configs import AlterConfigsHandler
from odradek.data_plane.handlers.administration.forwarded import ForwardingHandler
from odradek.serving.contract import Context, Result
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.codec import encode
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from odradek.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from odradek.wire.messages.list_groups import ListGroupsResponse
from sim.campaign.coverage import branches_of
from sim.campaign.guidance import added_for, options_named, with_added
from sim.history import SafetyViolation
from sim.load.operators.asker import check_answer
from sim.load.operators.drawn_requests import draw_request
from sim.load.operators.duty import Possible
from sim.machine.answer_counts import AnswerCounts, never_seen
from sim.machine.guards import CLIENTS_LOG_IN
from sim.options import RunOptions
from sim.run import run

SECONDS = 8.0


def _options(*duties: str, nodes: int = 3) -> RunOptions:
    drawn = RunOptions.draw(1, "calm", nodes=nodes, seconds=SECONDS)
    return attrs.evolve(drawn, workloads=("produce",), duties=duties)


def test_sound_nodes_keep_what_they_acknowledge_to_operators() -> None:
    """With all operators active a sound cluster passes, and the run counts the answers of each API."""
    result = run(
        1, _options("moves", "topics", "settings", "elections", "directories", "retirements", "ask", nodes=4)
    )
    assert result.verdict == "ok", result.message
    assert result.answers.counts["broker PRODUCE 13"]["answers"] > 0
    assert "broker METADATA" in result.answers.served


def _guarded_options(*duties: str) -> RunOptions:
    options = _options(*duties)
    return attrs.evolve(options, shape=attrs.evolve(options.shape, guarded=CLIENTS_LOG_IN))


def test_lives_of_a_topic_and_tokens_keep_their_promises() -> None:
    """A topic that was deleted and created again has the configuration of its last creation. Tokens work until they
    expire."""
    result = run(1, _guarded_options("lives", "tokens"))
    assert result.verdict == "ok", result.message
    assert result.statistics["tokens taken"] > 0 < result.statistics["tokens refused"]
    assert result.statistics["operator lives"] > 0


def test_a_token_that_lets_in_after_its_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug accepts an expired token before the controller has removed it. The run finds it (KIP-48)."""
    monkeypatch.setattr("odradek.security.tokens.is_expired", lambda token, now_ms: False)
    result = run(1, _guarded_options("tokens"))
    assert result.verdict == "safety"
    assert "has ended at" in result.message or "has expired" in result.message


def test_a_configuration_that_is_acknowledged_and_not_altered_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted bug acknowledges a configuration without storing it. The run finds that brokers report another
    value."""

    def lie(self: AlterConfigsHandler, context: Context, request: Any) -> Result:
        told = [
            AlterConfigsResourceResponse(0, None, each.resource_type, each.resource_name)
            for each in request.resources
        ]
        return IncrementalAlterConfigsResponse(0, told)

    monkeypatch.setattr(AlterConfigsHandler, "handle", lie)
    result = run(1, _options("settings"))
    assert result.verdict == "safety"
    assert "acknowledged was" in result.message


def test_a_move_that_is_acknowledged_and_not_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug acknowledges a reassignment without making it. The run finds the wrong replicas."""
    sound = ForwardingHandler.handle

    def lie(self: ForwardingHandler, context: Context, request: Any) -> Result:
        if request.API_KEY != ApiKey.ALTER_PARTITION_REASSIGNMENTS:
            return sound(self, context, request)
        topics = [
            {"name": topic.name, "partitions": [each.partition_index for each in topic.partitions]}
            for topic in request.topics
        ]
        return _moved(topics)

    monkeypatch.setattr(ForwardingHandler, "handle", lie)
    result = run(1, _options("moves", nodes=4))
    assert result.verdict == "safety"
    assert "asked for was" in result.message


def _moved(topics: list[dict[str, Any]]) -> AlterPartitionReassignmentsResponse:
    from odradek.wire.messages import alter_partition_reassignments as messages

    return messages.AlterPartitionReassignmentsResponse(
        responses=[
            messages.ReassignableTopicResponse(
                topic["name"],
                [messages.ReassignablePartitionResponse(index, 0, None) for index in topic["partitions"]],
            )
            for topic in topics
        ]
    )


def test_answers_with_codes_that_no_sound_node_gives_are_found() -> None:
    """An answer with an unknown error code, or with UNKNOWN_SERVER_ERROR, is a violation."""
    check_answer(ApiKey.LIST_GROUPS, "it", ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    for code in (31_000, int(ErrorCode.UNKNOWN_SERVER_ERROR)):
        with pytest.raises(SafetyViolation):
            check_answer(ApiKey.LIST_GROUPS, "it", ListGroupsResponse(error_code=code))


def test_what_was_asked_without_an_answer_stays_possible() -> None:
    """After requests to set a value, it may be the last acknowledged value, or a value whose request was not
    answered."""
    possible = Possible("a")
    possible.ask("b")
    possible.acknowledge("c")
    assert [possible.allows(each) for each in "abc"] == [False, True, True]


def test_requests_of_every_version_can_be_drawn() -> None:
    """Drawn requests of each version can be encoded."""
    for key in (ApiKey.METADATA, ApiKey.CREATE_TOPICS, ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_CONFIGS):
        low, high = api_versions(key)
        for version in range(low, high + 1):
            random = Random(version)
            assert encode(draw_request(key, version, random, ["t"]), version) is not None


def test_what_nodes_serve_and_nobody_asked_for_is_named() -> None:
    """Served versions that were never answered in a run are listed."""
    counts = AnswerCounts({"broker FETCH 5": {"answers": 1}}, {"broker FETCH": [4, 6]})
    assert never_seen(counts) == {"broker FETCH": [4, 6]}


def test_options_that_reached_something_new_are_added_and_told() -> None:
    """A campaign adds options whose runs have reached new code. The name of such a run contains these options, so it
    can be replayed."""
    options = RunOptions.draw(1)
    words = {"duty ask": 5, "trouble rolling": 0}
    added = {seed: added_for(seed, attrs.evolve(options, duties=()), words, {}) for seed in range(40)}
    assert {each for names in added.values() for each in names} == {"duty ask"}
    assert "duty ask" in options_named(with_added(attrs.evolve(options, duties=()), ("duty ask",)))


def test_an_operator_of_rights_comes_with_a_listener_that_asks_who_one_is() -> None:
    """Adding the operator of rights also adds a listener with logins, which it needs (seed 412035)."""
    options = RunOptions.draw(0, "default", nodes=3)
    plain = attrs.evolve(options, shape=attrs.evolve(options.shape, guarded=0), duties=())
    assert with_added(plain, ("duty access",)).shape.guarded


def test_an_added_workload_has_its_settings() -> None:
    """A group with short sessions is added to a run. Its brokers get short sessions, unless the run has drawn others
    (seed 1500049)."""
    options = RunOptions.draw(0, "default", nodes=3)
    key = "group.consumer.session.timeout.ms"
    for drawn, expected in (({}, "1000"), ({key: "6000"}, "6000")):
        plain = attrs.evolve(options, shape=attrs.evolve(options.shape, settings=drawn), workloads=())
        assert with_added(plain, ("workload herd",)).shape.settings[key] == expected


def test_branches_are_both_ways_of_a_conditional_jump() -> None:
    """For the coverage, a condition has two branches: the line that follows it, and the line to which it jumps."""
    names: dict[str, Any] = {}
    exec(
        compile("def f(a):\n    if a:\n        b = 1\n    else:\n        b = 2\n    return b\n", "f", "exec"),
        names,
    )
    assert branches_of(names["f"].__code__) == {(2, 3), (2, 5)}, dis.dis(names["f"])
