"""`odradek mirror` between real clusters copies each record once, wherever the process is killed."""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek import Admin, Consumer, ConsumerRecord, Producer
from odradek.client.admin import NewTopic
from odradek.client.admin.admin_acls import Acl
from odradek.security.acls.rules import Operation, PatternType, Permission
from odradek.security.acls.rules import ResourceType as AclType
from odradek.spark.pipelines.mirror import command
from odradek.spark.pipelines.mirror.copying import read_map
from odradek.spark.pipelines.mirror.plan import ClusterFacts, TopicFacts, plan_of
from odradek.spark.pipelines.mirror.surveys import perform, survey
from testkit.odradek_server import launch_odradek, prepare_odradek, start_odradek
from testkit.processes import ServerProcess
from tests.cli.running import ROOT, environment
from tests.docs.markdown import blocks
from tests.node_process import RunningNode
from tests.spark.mirror.killed_mirror import POINTS

TIMEOUT_SECONDS = 120.0
PARTITIONS = 3
Row = tuple[object, ...]


@pytest.fixture(scope="module")
def second_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The target cluster of the mirror."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    server = start_odradek(tmp_path_factory.mktemp("second"), settings=settings)
    try:
        yield server
        assert server.is_running(), server.log_tail()
    finally:
        server.stop()


def fill(bootstrap: str, topic: str, **settings: str) -> None:
    """Fill a topic with all kinds of records: null keys, tombstones, headers, committed and aborted transactions."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        configs = {key.replace("_", "."): value for key, value in settings.items()}
        [made] = admin.create_topics([NewTopic(topic, PARTITIONS, 1, configs)])
        assert made.error is None
    rng = random.Random(1)

    def send(producer: Producer, count: int, label: str) -> None:
        for number in range(count):
            producer.send(
                topic,
                None
                if rng.random() < 0.1
                else f"{label} {number} ".encode() + rng.randbytes(rng.randrange(90)),
                None if rng.random() < 0.1 else b"key %d" % rng.randrange(50),
                [] if number % 3 else [("h", b"\0\xff"), ("h", None), ("ü", b"")],
                partition=rng.randrange(PARTITIONS),
                timestamp_ms=1_600_000_000_000 + rng.randrange(10**9),
            )

    with Producer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        send(producer, 900, "plain")
    with Producer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-writer") as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            send(producer, 50, f"transaction {number}")
            producer.flush()
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def records_of(bootstrap: str, topic: str, isolation_level: str = "read_committed") -> list[ConsumerRecord]:
    """Return the committed records of a topic, in order within each partition."""
    keys = [(topic, partition) for partition in range(PARTITIONS)]
    found = []
    with Consumer(bootstrap_servers=bootstrap, isolation_level=isolation_level) as consumer:
        consumer.assign(keys)
        consumer.seek_to_beginning(*keys)
        ends = consumer.end_offsets(keys)
        while any(consumer.position(key) < end for key, end in ends.items()):
            found += consumer.poll(1.0)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def rows_of(records: Sequence[ConsumerRecord]) -> list[Row]:
    """Return the fields of records that a mirror preserves."""
    return [(each.partition, each.key, each.value, each.headers, each.timestamp) for each in records]


def mirror(source: str, target: str, *words: str, killed_at: tuple[str, int] | None = None) -> int:
    """Run the mirror as a process; return its exit status, which is -9 if it was killed."""
    program = ["-m", "odradek", "mirror"]
    if killed_at is not None:
        program = ["-m", "tests.spark.mirror.killed_mirror", killed_at[0], str(killed_at[1])]
    done = subprocess.run(
        [sys.executable, *program, "--source", source, "--target", target, *words],
        capture_output=True,
        text=True,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


Started = tuple["subprocess.Popen[bytes]", Callable[[], int]]


@contextmanager
def running_mirror(
    source: str, target: str, topic: str, words: Sequence[str]
) -> Iterator[Callable[[], Started]]:
    """Yield a function that starts a mirror; it returns the process and a function that counts the target's offsets."""
    keys = [(topic, partition) for partition in range(PARTITIONS)]
    started = []
    with Consumer(bootstrap_servers=target) as watcher:

        def start() -> Started:
            process = subprocess.Popen(
                [sys.executable, "-m", "odradek", "mirror", "--source", source, "--target", target, *words],
                env=environment() | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
            )
            started.append(process)
            return process, lambda: sum(watcher.end_offsets(keys).values())

        try:
            yield start
        finally:
            for process in started:
                process.kill()
                process.wait()


def check_map(source: str, target: str, topic: str, name: str) -> None:
    """Check that every offset of the source translates to that of the record's copy."""
    offset_map = read_map({"bootstrap.servers": target}, name, keep_runs=True)
    copies = {(each.partition, each.offset): each for each in records_of(target, topic)}
    for record in records_of(source, topic):
        place = offset_map.translate((topic, record.partition), record.offset)  # type: ignore[arg-type]  # a tuple
        assert rows_of([copies[record.partition, place]]) == rows_of([record])  # type: ignore[index] # found


def check_killed(source: str, target: str, topic: str, points: Sequence[tuple[str, int]]) -> None:
    """Check that mirrors killed at each of these points and restarted copy each record once and in order."""
    words = ("--topic", topic, "--name", topic, "--transaction-records", "20", "--no-acls")
    killed = [point for point in points if mirror(source, target, *words, killed_at=point) == -9]
    assert mirror(source, target, *words) == 0
    expected = rows_of(records_of(source, topic))
    assert rows_of(records_of(target, topic)) == expected
    assert len(expected) == 1050
    assert killed == list(points)
    check_map(source, target, topic, topic)


def test_killed_at_any_step(
    node: RunningNode, second_node: ServerProcess, fresh_topic: Callable[[str], str], whole_matrix: bool
) -> None:
    """A mirror killed at any step of a session copies each record once after a restart."""
    topic = fresh_topic("killed")
    fill(node.bootstrap, topic)
    points = [("after-ship", 2), ("during-commit", 2), ("after-commit", 2), ("commit", 3)]
    if whole_matrix:
        # This step happens only once in a session.
        points = [(point, 1) for point in POINTS]
        points += [(point, 2) for point in POINTS if "init" not in point and "read-map" not in point]
    check_killed(node.bootstrap, second_node.bootstrap, topic, points)
    seen = len(records_of(second_node.bootstrap, topic, "read_uncommitted"))
    assert seen > 1050, "no kill hit an open transaction"


def test_what_has_come_since(
    node: RunningNode, second_node: ServerProcess, fresh_topic: Callable[[str], str]
) -> None:
    """A second run copies records that came since, also those of partitions added meanwhile."""
    topic = fresh_topic("grown")
    words = ["--source", node.bootstrap, "--target", second_node.bootstrap, "--topic", topic, "--name", topic]
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1)])
        with Producer(bootstrap_servers=node.bootstrap) as producer:
            producer.send(topic, b"first", partition=0).result()
        assert command.main(words) == 0
        admin.create_partitions({topic: PARTITIONS})
    with Producer(bootstrap_servers=node.bootstrap) as producer:
        for partition in range(PARTITIONS):
            producer.send(topic, b"second", partition=partition).result()
    assert command.main(words) == 0
    assert command.main(words) == 0
    found = [(each.partition, each.value) for each in records_of(second_node.bootstrap, topic)]
    assert found == [(0, b"first"), (0, b"second"), (1, b"second"), (2, b"second")]


def test_acls_are_added(second_node: ServerProcess, fresh_topic: Callable[[str], str]) -> None:
    """The mirror adds the ACLs of its plan. The next plan has none."""
    topic = fresh_topic("guarded")
    acl = Acl(AclType.TOPIC, topic, PatternType.LITERAL, "User:ann", "*", Operation.READ, Permission.ALLOW)
    with Admin(bootstrap_servers=second_node.bootstrap) as admin:
        ours = survey(admin, [topic])
        theirs = ClusterFacts("other", 1, {topic: TopicFacts(topic, "00", 1, 1, {})}, frozenset({acl}))
        plan = plan_of(theirs, ours)
        assert plan.acls == (acl,)
        assert perform(admin, plan) == []
        ours = survey(admin, [topic])
        assert ours.acls is not None
        assert acl in ours.acls
        assert plan_of(theirs, ours).acls == ()


def test_settings_that_the_target_refuses(
    second_node: ServerProcess, fresh_topic: Callable[[str], str]
) -> None:
    """If the target refuses settings, the topic is created without them, and each is named."""
    topic = fresh_topic("odd")
    settings = {"retention.ms": "1000", "no.such.key": "1"}
    with Admin(bootstrap_servers=second_node.bootstrap) as admin:
        theirs = ClusterFacts("other", 1, {topic: TopicFacts(topic, "00", 2, 1, settings)}, None)
        [sentence] = perform(admin, plan_of(theirs, survey(admin, [topic])))
        assert sentence.startswith(f"{topic}: no.such.key=1: INVALID_CONFIG")
        assert survey(admin, [topic]).topics[topic].settings["retention.ms"] == "1000"


def test_the_page(node: RunningNode, second_node: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command of docs/mirror.md prints what the page shows."""
    settings = {
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": "1",
    }
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 2, 1, settings)])
        with Producer(bootstrap_servers=node.bootstrap) as producer:
            for number in range(2000):
                producer.send("orders", b"%d" % number, b"key", partition=number % 2)
        with Consumer(bootstrap_servers=node.bootstrap, group_id="billing") as consumer:
            consumer.commit({("orders", 0): 400, ("orders", 1): 1000})
        shown = 0
        for block in blocks("docs/mirror.md", "sh"):
            line = block.code.replace("127.0.0.1:9092", node.bootstrap)
            words = shlex.split(line.replace("127.0.0.1:9192", second_node.bootstrap))
            assert words[:2] == ["odradek", "mirror"]
            assert command.main([*words[2:], "--no-acls"]) == 0
            printed = capsys.readouterr().out
            if block.output:
                assert printed == block.output, block.line
                shown += 1
        assert shown == 2
        admin.delete_topics(["orders"])
        admin.delete_groups(["billing"])


def test_what_is_refused(
    node: RunningNode,
    second_node: ServerProcess,
    fresh_topic: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """What a mirror cannot do is refused in one sentence, with status 1."""
    topic = fresh_topic("refused")
    sides = ["--source", node.bootstrap, "--target", second_node.bootstrap]
    words = [*sides, "--topic", topic, "--name", topic]

    def refused(words: Sequence[str]) -> str:
        assert command.main(words) == 1
        error = capsys.readouterr().err
        return error.strip().splitlines()[-1]

    assert refused(words) == f"mirror: the source has no topic that matches {topic}"
    with (
        Admin(bootstrap_servers=node.bootstrap) as admin,
        Admin(bootstrap_servers=second_node.bootstrap) as target,
        Producer(bootstrap_servers=node.bootstrap) as producer,
        Producer(bootstrap_servers=second_node.bootstrap) as other,
    ):
        for each in (admin, target):
            each.create_topics([NewTopic(topic, 1)])
        same = ["--source", node.bootstrap, "--target", node.bootstrap, "--topic", topic]
        assert refused(same) == "mirror: source and target are the same cluster"
        other.send(topic, b"of another").result()
        assert f"the target's {topic}-0 has records that this mirror did not write" in refused(words)
        target.delete_topics([topic])
        for value in (b"1", b"2"):
            producer.send(topic, value).result()
        assert command.main(words) == 0
        for value in (b"3", b"4"):
            producer.send(topic, value).result()
        admin.delete_records({(topic, 0): 3})
        assert f"{topic}-0 now begins at offset 3, and 1 offsets before that were not copied" in refused(
            words
        )
        assert command.main([*words, "--skip-lost"]) == 0
        target.delete_topics([topic])
        assert f"the topic '{topic}' of the target was deleted and created again" in refused(words)
    bad = tmp_path / "bad.properties"
    bad.write_text("security.protocol\n")
    assert refused([*words, "--source-config", str(bad)]).endswith("line 1: expected KEY=VALUE on one line")
    bad.write_text("compression.type=brotli\n")
    assert "compression.type='brotli'" in refused([*words, "--target-config", str(bad)])
    bad.write_text("compresion.type=lz4\n")
    assert "did you mean compression.type" in refused([*words, "--target-config", str(bad)])
    assert "127.0.0.1:1" in refused(["--source", "127.0.0.1:1", "--target", second_node.bootstrap])
    assert refused([*words, "--name", "a/b"]).startswith("mirror: --name may have only letters")


def test_killed_at_random_times(
    node: RunningNode, second_node: ServerProcess, fresh_topic: Callable[[str], str], whole_matrix: bool
) -> None:
    """Mirrors are killed when the target's log has grown by a random number of offsets. Each record is copied once."""
    if not whole_matrix:
        pytest.skip("runs only in make test-mirror")
    topic = fresh_topic("random")
    fill(node.bootstrap, topic)
    rng = random.Random(int(os.environ.get("MIRROR_SEED", "1")))
    words = ["--topic", topic, "--name", topic, "--transaction-records", "10", "--no-acls"]
    assert mirror(node.bootstrap, second_node.bootstrap, *words, killed_at=("begin", 2)) == -9
    kills = 0
    with running_mirror(node.bootstrap, second_node.bootstrap, topic, words) as start:
        for _ in range(60):
            process, ends = start()
            wanted = ends() + rng.randrange(40)
            while process.poll() is None and ends() < wanted:
                pass
            kills += process.poll() is None
            process.kill()
            process.wait()
    assert kills >= 15
    assert mirror(node.bootstrap, second_node.bootstrap, *words) == 0
    assert rows_of(records_of(second_node.bootstrap, topic)) == rows_of(records_of(node.bootstrap, topic))
    check_map(node.bootstrap, second_node.bootstrap, topic, topic)


def test_the_target_dies(
    node: RunningNode, tmp_path: Path, fresh_topic: Callable[[str], str], whole_matrix: bool
) -> None:
    """While the target is down, the mirror waits. It then begins a new session, and each record is copied once."""
    if not whole_matrix:
        pytest.skip("runs only in make test-mirror")
    topic = fresh_topic("away")
    fill(node.bootstrap, topic)
    words = ["--topic", topic, "--name", topic, "--transaction-records", "2", "--no-acls"]
    properties = prepare_odradek(tmp_path)
    target = launch_odradek(properties)
    try:
        assert mirror(node.bootstrap, target.bootstrap, *words, killed_at=("begin", 2)) == -9
        with running_mirror(node.bootstrap, target.bootstrap, topic, words) as start:
            process, ends = start()
            for _ in range(3):
                wanted = ends() + 100
                while process.poll() is None and ends() < wanted:
                    pass
                assert process.poll() is None
                target.kill()
                target = launch_odradek(properties)
            assert process.wait(TIMEOUT_SECONDS) == 0
        assert rows_of(records_of(target.bootstrap, topic)) == rows_of(records_of(node.bootstrap, topic))
        check_map(node.bootstrap, target.bootstrap, topic, topic)
    finally:
        target.stop()
