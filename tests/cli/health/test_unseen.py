"""Health of a cluster of which some part was not seen, and `cluster health --wait` with looks that fail."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from odradek.cli.connecting import LOOK_SECONDS_MAX
from odradek.cli.failure import CliError
from odradek.cli.health import health
from odradek.cli.health.judgement import UNHEALTHY, exit_status, problems_of
from odradek.cli.health.picture import Picture, look_at_cluster
from odradek.client.admin import (
    BrokerLogDirs,
    ClusterDescription,
    ConfigDescription,
    ConfigResource,
    HangingSearch,
    ResourceType,
)
from odradek.client.core.known_cluster import Broker, Partition, Topic
from odradek.client.errors import RequestTimedOut
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

CLUSTER = ClusterDescription(
    "c", 1, (Broker(1, "one", 9092, None), Broker(2, "two", 9092, None)), frozenset()
)
SILENCE = RequestTimedOut("no answer within 3 s")
REFUSED = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "it failed")


def topic(*isr: int) -> Topic:
    return Topic("words", bytes(16), False, {0: Partition(0, 1, 0, (1, 2), isr, ())})


@pytest.fixture
def admin() -> Mock:
    """A mock of the administration client of a healthy cluster."""
    voter = SimpleNamespace(node_id=1, last_fetch_ms=1, last_caught_up_ms=1)
    found = Mock()
    found.describe_cluster.return_value = CLUSTER
    found.describe_quorum.return_value = SimpleNamespace(leader_id=1, leader=voter, voters=[voter])
    found.list_partition_reassignments.return_value = {}
    found.describe_log_dirs.return_value = [BrokerLogDirs(1, ()), BrokerLogDirs(2, ())]
    found.describe_topics.return_value = [topic(1, 2)]
    found.describe_configs.return_value = []
    found.find_hanging_transactions.return_value = HangingSearch((), (), 1, {})
    return found


def judge(admin: Mock) -> list[tuple[str, int | None]]:
    """Judge the cluster. Return each problem that is graver than a warning: the text and the broker."""
    picture: Any = look_at_cluster(Mock(admin=admin), 30, hanging_since_ms=0)
    problems = problems_of(picture)
    assert all(each.kind == "not-seen" for each in problems if not each.text.startswith("1 partition"))
    assert exit_status(problems) == (UNHEALTHY if problems else 0)
    return [(each.text, each.broker) for each in problems if each.kind == "not-seen"]


def config_error(kind: ResourceType, name: str, error: Exception) -> Any:
    """Return a function that answers describe_configs with an error for one resource."""
    described: Any = ConfigDescription(ConfigResource(kind, name), (), error)  # type: ignore[arg-type]
    return lambda resources, *_, **__: [described] if described.resource in resources else []


def test_all_that_was_seen_is_well(admin: Mock) -> None:
    """A cluster that has answered each question has no gap."""
    assert judge(admin) == []


def test_disks_of_a_broker(admin: Mock) -> None:
    """A broker that answers with an error, or hides its troubles, has disks that were not seen."""
    admin.describe_log_dirs.return_value = [BrokerLogDirs(1, ()), BrokerLogDirs(2, (), REFUSED)]
    ((text, broker),) = judge(admin)
    assert text.startswith("the disks of broker 2 were not seen: ")
    assert "it failed" in text
    assert broker == 2
    admin.describe_log_dirs.return_value = [BrokerLogDirs(1, ()), BrokerLogDirs(2, ())]
    missing = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    admin.describe_configs.side_effect = config_error(ResourceType.BROKER, "1", missing)
    ((text, broker),) = judge(admin)
    assert "the troubles of the disks of broker 1" in text
    assert broker == 1
    (problem,) = problems_of(look_at_cluster(Mock(admin=admin), 30, hanging_since_ms=0))
    assert "DESCRIBE_CONFIGS" in problem.remedy


def test_a_topic_without_its_least_in_sync(admin: Mock) -> None:
    """A topic that lacks replicas in sync needs min.insync.replicas for a judgement. A topic that is gone needs none."""
    admin.describe_topics.return_value = [topic(1)]
    assert judge(admin) == []
    admin.describe_configs.side_effect = config_error(ResourceType.TOPIC, "words", SILENCE)
    ((text, _),) = judge(admin)
    assert "min.insync.replicas of 1 topic (words)" in text
    gone = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    admin.describe_configs.side_effect = config_error(ResourceType.TOPIC, "words", gone)
    assert judge(admin) == []


@pytest.mark.parametrize(
    "question", ["describe_log_dirs", "find_hanging_transactions", "list_partition_reassignments"]
)
def test_a_question_without_an_answer(admin: Mock, question: str) -> None:
    """A question that nobody has answered is a problem with its reason."""
    getattr(admin, question).side_effect = SILENCE
    ((text, _),) = judge(admin)
    assert text.endswith("were not seen: no answer within 3 s")


def test_transactions_of_a_leader_that_is_silent(admin: Mock) -> None:
    """Partitions whose leader does not say its transactions are named."""
    errors: Any = {TopicPartition("words", 0): SILENCE}
    admin.find_hanging_transactions.return_value = HangingSearch((), (), 1, errors)
    ((text, _),) = judge(admin)
    assert text == "the open transactions of 1 partition (words-0) were not seen: no answer within 3 s"


def test_a_quorum_that_does_not_answer(admin: Mock) -> None:
    """A quorum without an answer may have a leader that is slow. An answer without a leader is sure."""
    admin.describe_quorum.return_value.leader = None
    client: Any = Mock(admin=admin)
    (problem,) = problems_of(look_at_cluster(client, 30))
    assert "has no leader, because too few voters run" in problem.text
    admin.describe_quorum.side_effect = SILENCE
    (unanswered,) = problems_of(look_at_cluster(client, 30))
    assert "no leader that answers: too few voters run, or the leader is slow" in unanswered.text
    assert unanswered.kind == problem.kind == "no-quorum"


def wait(
    monkeypatch: pytest.MonkeyPatch, seconds: float, looks: list[Picture | CliError]
) -> tuple[list[float], Any]:
    """Wait for health with these looks, each of which takes a second. Return the patience of each, and the result."""
    now, patience = [0.0], []

    def look(args: argparse.Namespace) -> Picture:
        patience.append(args.timeout)
        now[0] += 1
        found = looks[min(len(patience), len(looks)) - 1]
        if isinstance(found, CliError):
            raise found
        return found

    def sleep(pause: float) -> None:
        now[0] += pause

    monkeypatch.setattr(health, "_look", look)
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    args = argparse.Namespace(wait=seconds, timeout=30.0, command_config=None)
    try:
        return patience, health._wait(args)
    except CliError as error:
        return patience, error
    finally:
        assert args.timeout == 30.0


def test_each_look_has_time_for_an_answer(monkeypatch: pytest.MonkeyPatch, admin: Mock) -> None:
    """The looks near the end of the wait are as patient as a single look is with a node."""
    admin.describe_topics.return_value = [
        Topic("words", bytes(16), False, {0: Partition(0, -1, 0, (1, 2), (), ())})
    ]
    ill: Any = look_at_cluster(Mock(admin=admin), 30)
    patience, result = wait(monkeypatch, 5, [ill])
    assert result is ill
    assert min(patience) == LOOK_SECONDS_MAX
    assert len(patience) > 2


def test_the_last_picture_is_kept(
    monkeypatch: pytest.MonkeyPatch, admin: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    """If no broker answers at the end, the last picture is shown with its age. Without any picture the error ends it."""
    admin.describe_log_dirs.side_effect = SILENCE
    ill: Any = look_at_cluster(Mock(admin=admin), 30)
    error = CliError("no broker answers")
    assert wait(monkeypatch, 5, [ill, error])[1] is ill
    assert "no broker answers; below is the picture of" in capsys.readouterr().err
    assert wait(monkeypatch, 5, [error])[1] is error
