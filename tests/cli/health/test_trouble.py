"""Messages of commands while the cluster has trouble: a missing quorum leader, silent brokers, refused requests."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from attrs import evolve

from odradek.cli.__main__ import main
from odradek.cli.commands import broker, client, disk, partition, quorum
from odradek.cli.commands.cluster import events, status
from odradek.cli.commands.topic import topics
from odradek.cli.connecting import LOOK_SECONDS_MAX, call_failure
from odradek.cli.moves import plans
from odradek.client.admin import (
    BrokerClients,
    BrokerLogDirs,
    ClientDescription,
    ClusterDescription,
    ClusterSurvey,
    ConfigResource,
    CreatedTopic,
    LogDirDescription,
    LogDirReplica,
    QuorumReplica,
    Reassignment,
    ReplicaLog,
    ResourceType,
)
from odradek.client.admin.admin_logs import DirectoryHealth
from odradek.client.admin.moves.placement import Move
from odradek.client.core.known_cluster import Broker, Partition, Topic
from odradek.client.errors import ClientError, RequestTimedOut, UnsupportedByBroker
from odradek.operations.cluster_events import Event
from odradek.operations.event_reader import EventReader
from odradek.wire.errors import ErrorCode, KafkaError
from tests.cli.running import Outcome, words_of

Run = Callable[..., Outcome]
MODULES = (broker, client, disk, events, partition, quorum, status, topics)
PERHAPS = "the change may have been made anyway"
SILENCE = RequestTimedOut("no answer within 3 s")
WORDS = Topic(
    "words", bytes(16), False, {index: Partition(index, 1, 0, (1, 2), (1, 2), ()) for index in (0, 1)}
)
CLUSTER = ClusterDescription(
    "c", 1, (Broker(1, "one", 9092, None), Broker(2, "two", 9092, None)), frozenset({2})
)


def survey(moving: bool = False) -> ClusterSurvey:
    keys = [("words", index) for index in (0, 1)] if moving else []
    return ClusterSurvey(CLUSTER, (WORDS,), {}, {key: Reassignment((1, 2, 3), (3,), ()) for key in keys}, ())


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A mock that replaces the administration client in all commands."""
    found = Mock()
    found.describe_cluster.return_value = CLUSTER
    found.describe_quorum.return_value = SimpleNamespace(voters=(), observers=(), leader_id=1)
    found.survey_cluster.return_value = survey()
    found.describe_configs.return_value = []
    found.describe_log_dirs.return_value = []

    @contextmanager
    def connected(_: argparse.Namespace) -> Iterator[Any]:
        try:
            yield SimpleNamespace(admin=found, metadata=lambda _: SimpleNamespace(topics={"words": WORDS}))
        except (KafkaError, ClientError) as error:
            raise call_failure(error) from error

    for module in MODULES:
        monkeypatch.setattr(module, "connected", connected)
    return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run_here(*words: str) -> Outcome:
        return Outcome(main(words), *capsys.readouterr())

    return run_here


def test_a_move_to_a_broker_that_is_down(run: Run, admin: Mock) -> None:
    """A move to a broker that is down is refused, unless the broker already has the replica."""
    three = ClusterDescription("c", 1, (*CLUSTER.brokers, Broker(3, "three", 9092, None)), frozenset({2, 3}))
    admin.survey_cluster.return_value = evolve(survey(), cluster=three)
    assert "broker 3 is down" in run("partition", "move", "words", "--to", "1,3").refusal()
    assert "words" in run("partition", "move", "words", "--to", "2,1").out
    admin.alter_partition_reassignments.assert_not_called()


def test_a_move_that_would_drop_replicas(run: Run, admin: Mock) -> None:
    """A shorter replica list is refused without `--fewer`. If a target names a directory, the set of brokers does not
    change."""
    said = run("partition", "move", "words", "--to", "1", "--execute").refusal()
    assert "words-0 has 2 replicas and would keep only 1" in said
    assert "(now 1,2)" in said
    admin.alter_partition_reassignments.assert_not_called()
    assert "words" in run("partition", "move", "words", "--to", "1", "--fewer").out
    admin.alter_replica_log_dirs.return_value = {("words", 0, 1): None}
    said = run("partition", "move", "words:0", "--to", "1:/a", "--execute").out
    assert "1 replica on the way to other directories" in said
    admin.alter_replica_log_dirs.assert_called_once_with({("words", 0, 1): "/a"})
    admin.alter_partition_reassignments.assert_not_called()
    admin.move_partitions.assert_not_called()


@pytest.mark.parametrize(
    "words",
    [
        ("broker", "add", "1"),
        ("broker", "drain", "1"),
        ("broker", "remove", "1"),
        ("partition", "balance"),
        ("partition", "elect"),
        ("partition", "move", "words", "--to", "1"),
        ("partition", "move", "--unthrottle"),
        ("quorum", "status"),
        ("quorum", "add", "4"),
        ("quorum", "remove", "4"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("error", [SILENCE, KafkaError(ErrorCode.REQUEST_TIMED_OUT)], ids=["silent", "error"])
def test_without_a_leader_of_the_quorum(
    run: Run, admin: Mock, words: tuple[str, ...], error: Exception
) -> None:
    """If the quorum has no leader, a command that needs one fails after 3 s, whatever `--timeout` is. It sends no
    further request."""
    admin.describe_quorum.side_effect = error
    assert "start a majority of its voters" in run(*words).refusal()
    admin.describe_quorum.assert_called_once_with(timeout=3.0)
    admin.survey_cluster.assert_not_called()


def test_a_vote_for_a_node_whose_disk_was_replaced(run: Run, admin: Mock) -> None:
    """When a replaced disk has left an old directory id in the quorum, `quorum add` takes the id that still fetches
    (KIP-853)."""
    old = QuorumReplica(3, bytes(15) + b"o", 7, 1_000_000, 1_000_000)
    new = QuorumReplica(3, bytes(15) + b"n", 7, 1_020_000, 1_020_000)
    words = ("quorum", "add", "3", "--endpoint", "CONTROLLER://h:9093")
    admin.describe_quorum.return_value = SimpleNamespace(voters=(), observers=(old, new), leader_id=1)
    assert run(*words).code == 0
    admin.add_raft_voter.assert_called_once_with(3, new.directory_id, {"CONTROLLER": ("h", 9093)})
    both = (evolve(old, last_fetch_ms=1_019_900), new)
    admin.describe_quorum.return_value = SimpleNamespace(voters=(), observers=both, leader_id=1)
    assert "several directories" in run(*words).refusal()


def test_too_little_room(run: Run, admin: Mock) -> None:
    """A plan that would fill a broker's disks is refused before a partition moves. The refusal says what to do."""
    brokers = tuple(Broker(node, "h", 9092, None) for node in (1, 2, 3))
    cluster = ClusterDescription("c", 1, brokers)
    sizes = {("words", index): 600 for index in (0, 1)}
    admin.survey_cluster.return_value = ClusterSurvey(cluster, (WORDS,), sizes, {}, (), {3: 1000})
    refusal = run("broker", "drain", "2", "--execute").refusal()
    assert "broker 3 would get 1.2 KiB more, and has room for 1.0 KiB" in refusal
    admin.move_partitions.assert_not_called()
    admin.survey_cluster.return_value = ClusterSurvey(cluster, (WORDS,), sizes, {}, (), {3: 1200})
    admin.move_partitions.return_value = {}
    assert run("broker", "drain", "2", "--execute").code == 0
    admin.move_partitions.assert_called_once()


def test_who_may_not_ask_hears_so(run: Run, admin: Mock) -> None:
    """A missing right is reported as such, and not as a missing leader."""
    admin.describe_quorum.side_effect = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert "CLUSTER_AUTHORIZATION_FAILED" in run("partition", "balance").refusal()


def test_no_answer_to_a_change(run: Run, admin: Mock) -> None:
    """Only commands that change something warn that the change may have been made."""
    admin.create_topics.side_effect = SILENCE
    assert PERHAPS in run("topic", "create", "words").refusal()
    assert PERHAPS not in run("topic", "create", "words", "--validate-only").refusal()
    admin.describe_topics.side_effect = SILENCE
    assert PERHAPS not in run("topic", "list").refusal()


def test_an_answer_that_the_time_was_up(run: Run, admin: Mock) -> None:
    """After REQUEST_TIMED_OUT the command warns that the controller may still make the change."""
    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    admin.create_topics.side_effect = None
    admin.create_topics.return_value = [CreatedTopic("words", bytes(16), -1, -1, late)]
    line = run("topic", "create", "words").refusal()
    assert "REQUEST_TIMED_OUT" in line
    assert PERHAPS in line


def test_a_controllers_listener(run: Run, admin: Mock) -> None:
    """A request to a controller's listener is refused with the advice to name a broker's listener (KIP-919)."""
    admin.survey_cluster.side_effect = KafkaError(ErrorCode.MISMATCHED_ENDPOINT_TYPE)
    line = run("broker", "list").refusal()
    assert "a controller listens at this address" in line
    assert "name a broker's listener" in line


def test_a_cancellation_that_fails(run: Run, admin: Mock) -> None:
    """If one cancellation fails, only the others are listed as cancelled."""
    admin.survey_cluster.return_value = survey(moving=True)
    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    admin.alter_partition_reassignments.return_value = {("words", 0): None, ("words", 1): late}
    said = run("partition", "move", "--cancel", "--execute")
    assert (said.code, said.out) == (1, "words-0 stays where it was\n")
    assert PERHAPS in said.err
    said = run("partition", "move", "--cancel", "--execute", "--json")
    assert '"cancelled":[{"topic":"words","partition":0}]' in said.out
    assert '"failed":[{"topic":"words","partition":1,"error":"' in said.out


def test_a_broker_is_removed_whatever_the_quorum_says_then(run: Run, admin: Mock) -> None:
    """`broker remove` succeeds even if the quorum does not answer afterwards."""
    answers = [admin.describe_quorum.return_value, SILENCE] * 2
    admin.describe_quorum.side_effect = answers
    said = run("broker", "remove", "2", "--force")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[0] == "broker 2 removed"
    assert "the quorum did not answer, so node 2 may still have a vote" in said.out
    assert run("broker", "remove", "2", "--force", "--json").json() == {"removed": 2, "voter": None}


@pytest.mark.parametrize("no_wait", [True, False])
def test_throttles_that_stay_behind_are_named(
    admin: Mock, capsys: pytest.CaptureFixture[str], no_wait: bool
) -> None:
    """If a plan fails, the command warns that throttles may remain, and names the option that removes them."""
    args = argparse.Namespace(
        json=False,
        execute=True,
        throttle=1 << 20,
        no_wait=no_wait,
        at_once=50,
        execute_option="--execute",
        deadline=None,
    )
    admin.move_partitions.side_effect = admin.alter_partition_reassignments.side_effect = SILENCE
    client: Any = SimpleNamespace(admin=admin)
    move = Move("words", 0, (1, 2), (1, 3), 5)
    with pytest.raises(Exception, match=PERHAPS):
        plans.carry_out(args, client, [move], survey(), "nothing")
    (line,) = capsys.readouterr().err.splitlines()
    assert "throttles may stay" in line
    assert "--unthrottle" in line


def test_sizes_are_asked_for_only_where_they_matter(run: Run, admin: Mock) -> None:
    """Only commands that need replica sizes request them, because a broker that has just died would delay the
    answer."""
    assert "still holds 2 replicas" in run("broker", "remove", "2").refusal()
    run("partition", "elect", "words")
    run("partition", "move", "--cancel")
    assert [call.kwargs for call in admin.survey_cluster.call_args_list] == [{"measured": False}] * 3


def test_what_a_partition_without_a_leader_waits_for(run: Run, admin: Mock) -> None:
    """`partition list` names the replica to wait for, or else the longest log and the command that elects it."""
    three = tuple(Broker(node, "h", 9092, None) for node in (1, 2, 3))

    def listed(
        elr: tuple[int, ...], last: tuple[int, ...], logs: dict[int, Any], down: int | None = None
    ) -> str:
        lost = Partition(0, -1, 4, (1, 2, 3), (), (), elr, last)
        topics = [Topic("words", bytes(16), False, {0: lost})]
        fenced = frozenset(() if down is None else (down,))
        admin.survey_cluster.return_value = ClusterSurvey(
            ClusterDescription("c", 1, three, fenced), tuple(topics), {}, {}, ()
        )
        admin.describe_topic_partitions.return_value = topics
        admin.describe_replica_logs.return_value = {("words", 0, node): told for node, told in logs.items()}
        return run("partition", "list").out

    here = {2: ReplicaLog(0, 9, 1_000, 3), 3: ReplicaLog(0, 7, 1_000, 4)}
    said = listed((1,), (), here, down=1)
    assert "all its records are on broker 1, which is down: start the broker" in said
    # A later leader epoch counts more than a longer log.
    assert "if that is impossible: `odradek partition elect --unclean words:0 --leader 3 --execute`" in said
    said = listed((1,), (), {1: KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), **here})
    assert "broker 1, whose directory for the partition is offline: bring the disk back" in said
    said = listed((), (1,), {1: SILENCE, **here})
    assert "its last leader was broker 1, which does not answer" in said
    assert [row[3:5] for row in words_of(said)[4:7]] == [
        ["SILENT", "led"],
        ["online", "no"],
        ["online", "no"],
    ]
    said = listed((), (), {1: ReplicaLog(0, 0, None, None), **here})
    assert "words:0 cannot get a leader by itself" in said
    assert "an operator has to choose: `odradek partition elect --unclean words:0 --leader 3" in said
    assert "if the log of broker 3 says partition.found_elsewhere or partition.move_given_up" in said
    assert "found_elsewhere" not in listed((1,), (), here, down=1)
    assert "because no replica answers now" in listed((1,), (), {2: SILENCE, 3: SILENCE}, down=1)


def test_old_news_is_marked(run: Run, admin: Mock) -> None:
    """Without a quorum, lists and the status say that their data may be old, in text and in JSON."""
    admin.survey_cluster.return_value = evolve(survey(), is_current=False)
    for words in (("broker", "list"), ("partition", "list")):
        assert "may have changed since" in run(*words).err
        assert run(*words, "--json").json()["current"] is False
    admin.describe_quorum.side_effect = SILENCE
    admin.describe_topics.return_value = [WORDS]
    said = run("cluster", "status").out
    assert "may have changed since" in said
    assert "1 of 2 was online, down: 2" in said
    assert words_of(said)[-2][:3] == ["1", "was", "online"]
    assert words_of(said)[-1][:3] == ["2", "was", "DOWN"]
    document = run("cluster", "status", "--json").json(3)
    assert (document["current"], document["controller"], document["quorum"]) == (False, None, None)


def test_the_status_names_brokers_with_a_disk_away(run: Run, admin: Mock) -> None:
    """An online broker outside the ISR of its replicas is reported with an offline disk. A broker that is down is
    not."""
    away = {index: Partition(index, 1, 0, (1, 2), (1,), (1, 2)) for index in (0, 1)}
    admin.describe_topics.return_value = [evolve(WORDS, partitions=away)]
    admin.describe_quorum.side_effect = SILENCE
    said = run("cluster", "status").out
    assert "broker 1 has 2 replicas on a disk that is offline: `odradek disk list` names the disk" in said
    assert "broker 2: 2 replicas" not in said
    assert run("cluster", "status", "--json").json(3)["replicas_on_disks_away"] == [
        {"broker": 1, "partitions": ["words-0", "words-1"]}
    ]


def test_clients_of_brokers_that_do_not_answer(run: Run, admin: Mock) -> None:
    """If one broker cannot list its clients, those of the others are still listed, and this broker is named."""
    known = ClientDescription("User:ann", "app", "lib", "1.0", "10.0.0.1", 2, 60_000, 7, None, ())
    refused = UnsupportedByBroker("broker 2 keeps no list of its clients")
    admin.describe_clients.return_value = [BrokerClients(1, (known,)), BrokerClients(2, (), refused)]
    for words in (("list",), ("describe", "app")):
        said = run("client", *words)
        assert said.code == 1
        assert "app" in said.out
        assert "broker 2 keeps no list of its clients" in said.err
    admin.describe_clients.assert_called_with(client_id="app", timeout=LOOK_SECONDS_MAX)
    (listed,) = json.loads(run("client", "list", "--json").out)["clients"]
    assert (listed["user"], listed["instances"], listed["since_push_ms"]) == ("ann", 2, None)


def test_a_client_that_nobody_knows(run: Run, admin: Mock) -> None:
    """`client describe` fails for an unknown client or for another user's client, and names `client list`."""
    known = ClientDescription("User:ann", "app", "lib", "1.0", "10.0.0.1", 1, 60_000, 7, 1500, ())
    admin.describe_clients.return_value = [BrokerClients(1, (known,))]
    assert run("client", "describe", "app", "--user", "ann").code == 0
    assert "`odradek client list`" in run("client", "describe", "app", "--user", "bob").refusal()


def test_disks_of_brokers_that_are_down(run: Run, admin: Mock) -> None:
    """`disk list` shows a broker that is down without sending it a request. JSON includes the error of a broker that
    fails."""
    here = LogDirDescription("/data", 100, 50, ())
    admin.describe_log_dirs.return_value = [BrokerLogDirs(1, (here,))]
    said = run("disk", "list")
    assert words_of(said.out)[1][:2] == ["1", "online"]
    assert words_of(said.out)[2][:2] == ["2", "DOWN"]
    admin.describe_log_dirs.assert_called_once_with([1], include_cleaning=True, timeout=LOOK_SECONDS_MAX)
    assert "broker 2 is down" in run("disk", "list", "--topics").out
    assert "there is no broker 7 (brokers: 1, 2)" in run("disk", "list", "--broker", "7").refusal()
    admin.describe_log_dirs.return_value = [BrokerLogDirs(1, (), SILENCE)]
    said = run("disk", "list", "--json")
    first, second = json.loads(said.out)["brokers"]
    assert (said.code, first["error"].partition(".")[0]) == (1, str(SILENCE))
    assert (second["broker"], second["online"], second["directories"]) == (2, False, [])
    assert words_of(run("disk", "list").out)[1][:2] == ["1", "SILENT"]
    admin.describe_log_dirs.return_value = [
        BrokerLogDirs(1, (), KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    ]
    assert words_of(run("disk", "list").out)[1][:2] == ["1", "FAILED"]


def test_the_health_of_disks(run: Run, admin: Mock) -> None:
    """`disk list` shows hours left, sync time, errors and scrub results. Each slow, filling or rotten disk gets a
    line."""
    sound = DirectoryHealth(10, False, 0, None, 2000, 1900, False, False, 0, 100, 5, 0)
    ill = DirectoryHealth(10, False, 1 << 20, 7200, 90_000, 2000, True, False, 3, 40, None, 2)
    short = evolve(sound, is_short=True, seconds_left=0)
    admin.describe_log_dirs.return_value = [
        BrokerLogDirs(
            1,
            (
                LogDirDescription("/a", 100, 50, (), None, True, sound),
                LogDirDescription("/b", 100, 50, (), None, False, ill),
                LogDirDescription("/c", 100, 1, (), None, False, short),
            ),
        )
    ]
    said = run("disk", "list").out
    assert [row[1] for row in words_of(said)[1:4]] == ["cordoned", "SLOW", "FULL"]
    assert "90.0 ms" in said
    assert "broker 1: /b will be full in 2h at the rate of the last hour" in said
    assert "`odradek disk demote 1:/b` lets other brokers lead" in said
    assert "the scrub has found 2 rotten logs in /b" in said
    assert "/c will be full in" not in said, "its state already says that it is full"
    directories = json.loads(run("disk", "list", "--json").out)["brokers"][0]["directories"]
    assert [each["cordoned"] for each in directories] == [True, False, False]
    assert directories[1]["health"]["seconds_left"] == 7200


def test_replicas_on_their_way_to_another_disk(run: Run, admin: Mock) -> None:
    """`disk list` counts the replicas on the way to a directory, and the records still to copy (KIP-113)."""
    moving = [LogDirReplica("words", index, 10, 7, is_future=True) for index in (0, 1)]
    here = LogDirDescription("/a", 100, 50, (LogDirReplica("more", 0, 10, 0, is_future=False), *moving))
    admin.describe_log_dirs.return_value = [BrokerLogDirs(1, (here,))]
    assert "broker 1: 2 replicas on the way to /a, 14 records left to copy" in run("disk", "list").out


def test_a_disk_is_demoted_and_that_is_undone(run: Run, admin: Mock) -> None:
    """`disk demote` adds a path to the broker's configuration, and `--undo` removes it. Unknown paths are refused."""
    here = (LogDirDescription("/a", 100, 50, ()), LogDirDescription("/b,c", 100, 50, ()))
    admin.describe_log_dirs.return_value = [BrokerLogDirs(1, here)]

    def stored(value: str) -> None:
        admin.describe_configs.return_value = [
            SimpleNamespace(error=None, entries=(SimpleNamespace(value=value),))
        ]

    def change() -> Any:
        ((changes,), _) = admin.incremental_alter_configs.call_args
        ((only,),) = changes.values()
        return only

    admin.incremental_alter_configs.return_value = [(None, None)]
    stored("/a")
    assert run("disk", "demote", "1:/b,c").code == 0
    assert (change().name, change().value) == ("odradek.demoted.log.dirs", "/a,/b%2Cc")
    stored("/a,/b%2Cc")
    assert json.loads(run("disk", "demote", "--undo", "1:/a", "--json").out)["demoted"] is False
    assert change().value == "/b%2Cc"
    admin.incremental_alter_configs.reset_mock()
    assert run("disk", "demote", "1:/b,c").code == 0
    admin.incremental_alter_configs.assert_not_called()
    assert "has no log directory /x (it has: /a, /b,c)" in run("disk", "demote", "1:/x").refusal()
    assert "there is no broker 7" in run("disk", "demote", "7:/x").refusal()
    for text in ("/a", "1", "1:", "x:/a", "-1:/a"):
        assert run("disk", "demote", "--", text).code == 2, text


def test_disks_in_trouble(run: Run, admin: Mock) -> None:
    """`disk list` and `cluster status` show a hung disk with its state and the time when the hang began, as text and
    JSON."""
    admin.describe_log_dirs.return_value = [
        BrokerLogDirs(1, (LogDirDescription("/data", 100, 50, ()), LogDirDescription("/more", 100, 50, ())))
    ]
    listed = SimpleNamespace(value="AAAAAAAAAAAAAAAAAAAAAA:hung:1700000000000:/more")

    def described(resources: list[ConfigResource], *_: Any, **__: Any) -> list[Any]:
        is_broker = resources[0].type is ResourceType.BROKER
        return (
            [SimpleNamespace(resource=SimpleNamespace(name="1"), error=None, entries=(listed,))]
            if is_broker
            else []
        )

    admin.describe_configs.side_effect = described
    said = run("disk", "list").out
    assert [row[:2] for row in words_of(said)[1:3]] == [["1", "online"], ["1", "HUNG"]]
    sentence = "broker 1: /more does not answer since "
    assert sentence in said
    first, second = json.loads(run("disk", "list", "--json").out)["brokers"][0]["directories"]
    assert (first["trouble"], second["trouble"]) == (None, "hung")
    assert second["trouble_since_ms"] == 1700000000000
    admin.describe_topics.return_value = [WORDS]
    admin.describe_quorum.side_effect = SILENCE
    assert sentence in run("cluster", "status").out
    (told,) = run("cluster", "status", "--json").json(3)["troubled_directories"]
    assert told == {"broker": 1, "path": "/more", "trouble": "hung", "since_ms": 1700000000000}


def test_history_that_begins_with_a_snapshot(run: Run, admin: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a snapshot replaced older events, the command gives the offset where history begins. An unknown topic is
    refused."""
    admin.describe_quorum.return_value.high_watermark = 7

    def read(reader: Any, _: int) -> Iterator[list[Event]]:
        reader._offset = reader.begins_at = 7
        reader.topics.add("gone")
        yield [Event(8, 0, "topic", "topic gone", "was deleted")]

    monkeypatch.setattr(EventReader, "read", read)
    said = run("cluster", "events", "--topic", "gone")
    assert said.err.startswith("odradek: events before offset 7 cannot be shown, ")
    assert said.out.endswith("topic gone was deleted\n")
    assert run("cluster", "events", "--topic", "words").out == ""
    assert "topic nope does not exist" in run("cluster", "events", "--topic", "nope").refusal()


def test_requests_that_a_controller_does_not_know(run: Run, admin: Mock) -> None:
    """If a controller does not know a request at all, the command also guesses that the address is a controller's
    listener."""
    admin.describe_topics.side_effect = UnsupportedByBroker("c:9093 has no version of METADATA that we speak")
    assert "the address may be a controller's listener" in run("topic", "list").refusal()
