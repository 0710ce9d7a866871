"""Topics, records, configurations and `log dump` on the command line, against our own node, as text and as JSON."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import Outcome, command, environment, odradek, odradek_here, words_of
from tests.node_process import RunningNode

pytestmark = pytest.mark.xdist_group("cli")


@pytest.fixture
def run(node: RunningNode) -> Callable[..., Outcome]:
    """Run a command against the node, in this process. Tests that need a separate process start one themselves."""
    return lambda *words, stdin=b"": odradek_here(*words, bootstrap=node.bootstrap, stdin=stdin)


@pytest.fixture
def topic(run: Callable[..., Outcome], fresh_topic: Callable[[str], str]) -> str:
    """A topic with two partitions."""
    name = fresh_topic("cli")
    assert run("topic", "create", name, "--partitions", "2", "--config", "retention.ms=7200000").code == 0
    return name


def test_a_topics_life_for_people(run: Callable[..., Outcome], fresh_topic: Callable[[str], str]) -> None:
    """Topics are created, listed, described and deleted. Tables look as in README and quickstart."""
    name = fresh_topic("life")
    assert (
        run("topic", "create", name, "--partitions", "3").out
        == f"topic {name} created: 3 partitions, 1 replica\n"
    )
    assert "TOPIC_ALREADY_EXISTS" in run("topic", "create", name).refusal()
    assert run("topic", "create", name, "--if-not-exists").out == f"topic {name} exists already\n"
    rows = words_of(run("topic", "list").out)
    assert rows[0] == ["TOPIC", "PARTITIONS", "REPLICAS", "INTERNAL"]
    assert [name, "3", "1", "no"] in rows
    text = run("topic", "describe", name, "--offsets").out
    assert re.search(r"^partitions +3$", text, re.MULTILINE)
    table = words_of(text[text.index("PARTITION  ") :])
    assert table[0] == ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END"]
    assert [row[0] for row in table[1:]] == ["0", "1", "2"]
    assert run("topic", "delete", name).out == f"topic {name} deleted\n"
    # Topics of other tests may have similar names, which the message then suggests.
    said = run("topic", "describe", name).refusal()
    assert said.partition(";")[0] == f"topic {name} does not exist (UNKNOWN_TOPIC_OR_PARTITION)"
    assert run("topic", "delete", name, "--if-exists").code == 0
    assert (
        run("topic", "delete", name, "no-1", "no-2")
        .refusal()
        .endswith("; for the same reason not done: no-1, no-2")
    )
    assert (
        run("group", "delete", "no-1", "no-2", "no-3")
        .refusal()
        .endswith("; for the same reason not done: no-2, no-3")
    )


def test_a_topics_life_for_scripts(run: Callable[..., Outcome], fresh_topic: Callable[[str], str]) -> None:
    """Keys of JSON documents may be added, but never renamed."""
    name = fresh_topic("life")
    created = run(
        "topic", "create", name, "--partitions", "2", "--config", "segment.bytes=2097152", "--json"
    ).json()
    assert created == {
        "topic": name,
        "created": True,
        "topic_id": created["topic_id"],
        "partitions": 2,
        "replication_factor": 1,
    }
    (listed,) = (t for t in run("topic", "list", "--json").json()["topics"] if t["topic"] == name)
    summary = {
        "topic": name,
        "topic_id": created["topic_id"],
        "partitions": 2,
        "replication_factor": 1,
        "internal": False,
    }
    assert listed == summary
    (described,) = run("topic", "describe", name, "--offsets", "--json").json()["topics"]
    assert described["configs"] == {"segment.bytes": "2097152"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1]
    assert described["partitions"][0] == {
        "partition": 0,
        "leader": 1,
        "leader_epoch": 0,
        "replicas": [1],
        "isr": [1],
        "offline_replicas": [],
        "start_offset": 0,
        "end_offset": 0,
    }
    assert run("topic", "delete", name, "--json").json() == {"deleted": [name]}


def test_validate_only_creates_nothing(
    run: Callable[..., Outcome], fresh_topic: Callable[[str], str]
) -> None:
    """--validate-only checks what the broker checks and creates nothing. Errors in settings have the broker's words."""
    name = fresh_topic("dry")
    assert "would be created" in run("topic", "create", name, "--validate-only").out
    assert name not in run("topic", "list").out
    assert "retention.ms" in run("topic", "create", name, "--config", "retention.ms=soon").refusal()
    assert "INVALID_REPLICATION_FACTOR" in run("topic", "create", name, "--replication-factor", "9").refusal()


def test_lines_become_records_and_records_lines(run: Callable[..., Outcome], topic: str) -> None:
    """Each line becomes one record. The last line needs no newline, and an empty line is an empty value."""
    assert (
        run("produce", topic, "--partition", "1", stdin=b"one\n\nthree").out
        == f"3 records written to {topic}\n"
    )
    assert run("consume", topic).out == "one\n\nthree\n"
    assert run("consume", topic, "--partition", "0").out == ""
    assert run("consume", topic, "--max-messages", "1").out == "one\n"
    assert run("consume", topic, "--from", "2", "--partition", "1").out == "three\n"
    assert "no offset 9" in run("consume", topic, "--from", "9", "--partition", "1").refusal()
    assert "no partition 7" in run("consume", topic, "--partition", "7").refusal()


def test_keys_headers_and_other_bytes(run: Callable[..., Outcome], topic: str) -> None:
    """Keys, headers and raw bytes come back. Bytes that are not UTF-8 are base64 in JSON and unchanged in text."""
    written = run(
        "produce",
        topic,
        "--key-separator",
        ":",
        "--header",
        "source=test",
        "--json",
        stdin=b"k:v:w\nk:\xff\n",
    ).json()
    assert (written["topic"], written["records"], written["bytes"]) == (topic, 2, 8)
    first, second = run("consume", topic, "--json").json_lines()
    assert first == {
        "topic": topic,
        "partition": first["partition"],
        "offset": 0,
        "timestamp": first["timestamp"],
        "key": "k",
        "value": "v:w",
        "headers": [{"key": "source", "value": "test"}],
    }
    assert written["records_by_partition"] == {str(first["partition"]): 2}
    assert (second["offset"], second["value_base64"]) == (1, "/w==")
    assert "value" not in second
    assert run("consume", topic, "--key-separator", "\\t", "--max-messages", "1").out == "k\tv:w\n"
    assert run("produce", topic, "--key-separator", ":", stdin=b"a:b\nnothing\n").refusal() == (
        "line 2 lacks the key separator ':': 1 line is written: go on from line 2"
    )


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_from_a_file(run: Callable[..., Outcome], topic: str, tmp_path: Path, codec: str) -> None:
    """With --file and each codec, thousands of lines are written and come back in order."""
    lines = [f"line {number} {'x' * (number % 90)}" for number in range(5000)]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines) + "\n")
    report = run(
        "produce", topic, "--file", path, "--compression", codec, "--partition", "0", "--json"
    ).json()
    assert report["records"] == 5000
    assert run("consume", topic).out.splitlines() == lines


def test_acks(run: Callable[..., Outcome], topic: str) -> None:
    """Records sent with acks=0 get no response, but the next request of the connection sees them."""
    assert run("produce", topic, "--acks", "1", "--partition", "0", stdin=b"a\n").code == 0
    assert run("produce", topic, "--acks", "0", "--partition", "0", stdin=b"b\n").code == 0
    assert (
        run("consume", topic, "--partition", "0", "--follow", "--from-beginning", "--max-messages", "2").out
        == "a\nb\n"
    )


def test_a_start_by_time(run: Callable[..., Outcome], topic: str) -> None:
    """--from takes milliseconds, ISO 8601, or a span before now. A time after the last record means the end."""
    run("produce", topic, "--partition", "0", stdin=b"a\n")
    (record,) = run("consume", topic, "--json").json_lines()
    assert run("consume", topic, "--from", f"@{record['timestamp']}").out == "a\n"
    assert run("consume", topic, "--from", f"@{record['timestamp'] + 1}").out == ""
    assert run("consume", topic, "--from", "2020-01-31T12:00:00+00:00").out == "a\n"
    assert run("consume", topic, "--from", "1h").out == "a\n"


def test_follow_prints_records_as_they_come(
    run: Callable[..., Outcome], node: RunningNode, topic: str
) -> None:
    """--follow first prints existing records, then each new one at once, without waiting for a full buffer."""
    run("produce", topic, "--partition", "0", stdin=b"early\n")
    follower = subprocess.Popen(
        command("consume", topic, "--follow", "--from-beginning"),
        stdout=subprocess.PIPE,
        env=environment(node.bootstrap),
    )
    try:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"early\n"
        run("produce", topic, "--partition", "0", stdin=b"late\n")
        assert follower.stdout.readline() == b"late\n"
    finally:
        follower.terminate()
        follower.communicate()


def test_a_record_that_is_too_large(run: Callable[..., Outcome], fresh_topic: Callable[[str], str]) -> None:
    """The refusal names the line and the broker's reason. The records before it are written."""
    name = fresh_topic("small")
    run("topic", "create", name, "--config", "max.message.bytes=500")
    refusal = run("produce", name, stdin=b"fits\n" + b"x" * 600 + b"\n").refusal()
    assert refusal.startswith("line 2: ")
    assert "MESSAGE_TOO_LARGE" in refusal
    assert run("consume", name).out == "fits\n"


def test_configurations(run: Callable[..., Outcome], topic: str) -> None:
    """`config get` prints the value of one key, or a table of all keys. JSON includes the sources."""
    assert run("config", "get", "topic", topic, "retention.ms").out == "7200000\n"
    assert run("config", "get", "broker", "1", "node.id").out == "1\n"
    rows = words_of(run("config", "get", "topic", topic, "--set-only").out)
    assert rows[0] == ["KEY", "SOURCE", "VALUE"]
    assert ["retention.ms", "topic", "7200000"] in rows
    document = run("config", "get", "topic", topic, "--json").json()
    assert (document["kind"], document["name"]) == ("topic", topic)
    (entry,) = (each for each in document["configs"] if each["key"] == "retention.ms")
    assert entry == {
        "key": "retention.ms",
        "value": "7200000",
        "source": "topic_config",
        "read_only": False,
        "sensitive": False,
        "type": "long",
    }
    assert "no configuration key nonsense" in run("config", "get", "topic", topic, "nonsense").refusal()
    assert "there is no broker 9" in run("config", "get", "broker", "9").refusal()
    assert "does not exist" in run("config", "get", "topic", "no-such-topic").refusal()


def test_cluster_status(run: Callable[..., Outcome], node: RunningNode, topic: str) -> None:
    """`cluster status` shows brokers with their load, and partitions that need attention."""
    document = run("cluster", "status", "--json").json()
    host, _, port = node.bootstrap.partition(":")
    (broker,) = document["brokers"]
    assert (broker["broker"], broker["host"], broker["port"]) == (1, host, int(port))
    assert broker["leaders"] == broker["replicas"] == document["partitions"] >= 2
    assert document["offline_partitions"] == document["under_replicated_partitions"] == []
    text = run("cluster", "status").out
    assert document["cluster_id"] in text
    # On a busy machine, the disk may be called slow in a line of its own.
    text = "".join(line for line in text.splitlines(keepends=True) if "is slow: a sync takes" not in line)
    row = words_of(text)[-1]
    assert (row[:3], row[-1]) == (["1", "online", "leads"], node.bootstrap)
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_a_line_at_a_terminal_is_sent_at_once(
    run: Callable[..., Outcome], node: RunningNode, topic: str
) -> None:
    """`produce` writes each line at once, although its input stays open."""
    writer = subprocess.Popen(
        command("produce", topic, "--partition", "0"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment(node.bootstrap),
    )
    try:
        assert writer.stdin is not None
        writer.stdin.write(b"now\n")
        writer.stdin.flush()
        assert run("consume", topic, "--follow", "--from-beginning", "--max-messages", "1").out == "now\n"
    finally:
        writer.communicate()
    assert writer.returncode == 0


def test_log_dump_of_a_partition_that_is_served(
    run: Callable[..., Outcome], node: RunningNode, topic: str
) -> None:
    """`log dump` reads the files of a running node, with batches and records."""
    if node.process is None:
        pytest.skip("the environment names the server, and the test reads only files of its own")
    run(
        "produce",
        topic,
        "--partition",
        "0",
        "--key-separator",
        "=",
        "--compression",
        "lz4",
        stdin=b"k=v\nk=w\n",
    )
    directory = node.process.log_path.parent / "data" / f"{topic}-0"
    items = odradek("log", "dump", directory, "--records", "--json").json_lines()
    assert [item["kind"] for item in items] == ["batch", "record", "record"]
    assert items[0]["compression"] == "lz4"
    assert items[0]["record_count"] == 2
    assert [(item["key"], item["value"]) for item in items[1:]] == [("k", "v"), ("k", "w")]
    text = odradek("log", "dump", directory / items[0]["file"]).out
    assert text.startswith("batch position=0 size=")
    assert odradek("log", "dump", directory, "--verify").out == f"{directory}: no damage\n"


def test_log_dump_names_damage(
    run: Callable[..., Outcome], node: RunningNode, topic: str, tmp_path: Path
) -> None:
    """`log dump` of a file with a flipped bit ends with status 1 and names the file and the position."""
    if node.process is None:
        pytest.skip("the environment names the server, and the test reads only files of its own")
    run("produce", topic, "--partition", "0", stdin=b"value\n")
    source = node.process.log_path.parent / "data" / f"{topic}-0" / f"{0:020}.log"
    copy = tmp_path / source.name
    data = bytearray(source.read_bytes().rstrip(b"\0"))
    data[-3] ^= 0x10
    copy.write_bytes(data)
    outcome = odradek("log", "dump", copy, "--verify", "--json")
    assert outcome.code == 1
    damage = json.loads(outcome.out.splitlines()[0])
    assert (damage["kind"], damage["file"], damage["position"]) == ("damage", copy.name, 0)
    assert "1 place is damaged" in outcome.err
