"""`odradek txn` against our own node, after producers were killed: output as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from odradek.cli.__main__ import main
from odradek.client.shells.blocking import Client
from tests.cli.running import Outcome, words_of
from tests.client.producer.hanging_producers import leave_open, on_trust, write_unknown
from tests.node_process import RunningNode

pytestmark = pytest.mark.xdist_group("cli")
Run = Callable[..., Outcome]


@pytest.fixture
def run(node: RunningNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the node, in this process."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", node.bootstrap)
    return lambda *words: Outcome(main(words), *capsys.readouterr())


@pytest.fixture
def topic(run: Run, fresh_topic: Callable[[str], str]) -> Iterator[str]:
    """A topic with one partition. It is deleted afterwards, so that no open transaction stays on the shared node."""
    name = fresh_topic("txn")
    assert run("topic", "create", name).code == 0
    yield name
    assert run("topic", "delete", name).code == 0


def test_a_killed_producer_is_found_and_fenced(
    node: RunningNode, run: Run, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """`find-hanging` prints a command that aborts the transaction. If it is run, the abort command reports what it has
    done."""
    name = fresh_topic("id")
    leave_open(node.bootstrap, name, topic)
    rows = words_of(run("txn", "list", "--transactional-id-pattern", f"{name}.*").out)
    assert rows[0] == ["TRANSACTIONAL", "ID", "COORDINATOR", "PRODUCER", "STATE"]
    (row,) = rows[1:]
    assert (row[0], row[1], row[3]) == (name, "1", "Ongoing")
    (listed,) = run("txn", "list", "--producer-id", row[2], "--state", "Ongoing", "--json").json()[
        "transactions"
    ]
    assert listed == {
        "transactional_id": name,
        "coordinator": 1,
        "producer_id": int(row[2]),
        "state": "Ongoing",
    }
    text = run("txn", "describe", name).out
    assert re.search(r"^timeout +10m$", text, re.MULTILINE)
    assert words_of(text)[-1] == [topic, "0"]
    partly = run("txn", "describe", "no-such-id", name, "nor-this")
    assert (partly.code, words_of(partly.out)[0]) == (1, ["transactional", "id", name])
    assert len(partly.out.splitlines()) == len(text.splitlines())
    assert partly.err.splitlines() == [
        f"odradek: transactional id {each} does not exist (TRANSACTIONAL_ID_NOT_FOUND)"
        for each in ("no-such-id", "nor-this")
    ]
    (described,) = run("txn", "describe", name, "--json").json()["transactions"]
    assert described["partitions"] == [{"topic": topic, "partition": 0}]
    assert described["age_ms"] < 600_000

    assert run("txn", "find-hanging", "--topic", topic).out == (
        "no transaction has been open for longer than 15m without a write (1 partition looked at)\n"
    )
    found = run("txn", "find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    sentence = found.out.splitlines()[-1]
    assert sentence.startswith(f"{topic}-0: read_committed consumers wait at offset 0, last write ")
    assert (
        f"Transactional id {name} has the transaction open; its coordinator aborts the transaction in 9m"
        in sentence
    )
    command = sentence.partition(" To abort it at once: odradek ")[2]
    assert command == f"txn abort --transactional-id {name}"
    assert re.fullmatch(
        f"transactional id {name}: its open transaction on 1 partition is aborted; "
        rf"its producer is fenced \(producer id {row[2]}, epoch \d+ now\)\n",
        run(*command.split()).out,
    )
    again = run("txn", "abort", "--transactional-id", name, "--json").json()
    assert (again["state_before"], again["outcome"], again["partitions"]) == ("Empty", None, [])
    assert "it had no open transaction (Empty)" in run("txn", "abort", "--transactional-id", name).out


def test_a_transaction_that_nobody_knows_is_aborted_on_its_partition(
    node: RunningNode, run: Run, topic: str
) -> None:
    """For a transaction that no coordinator knows, `find-hanging` prints an abort command with partition and start
    offset."""
    with Client(node.bootstrap) as client, on_trust(client):
        write_unknown(client, topic, 7_100_001)
    words = ("txn", "find-hanging", "--topic", topic, "--partition", "0", "--max-transaction-timeout", "0")
    (document,) = run(*words, "--json").json()["transactions"]
    command = f"odradek txn abort --topic {topic} --partition 0 --start-offset 0"
    assert (document["prospect"], document["held_back"], document["command"]) == ("hanging", 3, command)
    last = run(*words).out.splitlines()[-1]
    assert last.endswith(
        f"No coordinator knows producer 7100001, so nobody will end this transaction. Run: {command}"
    )
    producers = ("txn", "describe-producers", "--topic", topic, "--partition", "0")
    (producer,) = run(*producers, "--json").json()["producers"]
    assert (producer["producer_id"], producer["transaction_start_offset"]) == (7_100_001, 0)
    assert words_of(run(*producers).out)[1][0] == "7100001"
    wrong = run("txn", "abort", "--topic", topic, "--partition", "0", "--start-offset", "1")
    assert wrong.refusal().startswith(f"{topic}-0 has no open transaction that begins at 1: `odradek txn ")
    assert run(*command.split()[1:]).out == (
        f"{topic}-0: the transaction that began at offset 0 is aborted (producer id 7100001, epoch 0)\n"
    )
    (producer,) = run(*producers, "--json").json()["producers"]
    assert producer["transaction_start_offset"] is None


def test_committed_readers_stop_where_a_transaction_is_open(
    node: RunningNode, run: Run, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """`consume --isolation read_committed` says where and why it stops. Aborted records are not printed."""
    name = fresh_topic("id")
    leave_open(node.bootstrap, name, topic, count=2)
    outcome = run("consume", topic, "--isolation", "read_committed")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith(
        f"odradek: {topic}-0 is read up to offset 0, where an open transaction begins, with 2 offsets behind it"
    )
    assert (
        run("consume", topic).out == run("consume", topic, "--isolation", "read_uncommitted").out == "0\n1\n"
    )
    assert run("txn", "abort", "--transactional-id", name).code == 0
    outcome = run("consume", topic, "--isolation", "read_committed")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


def test_log_dump_decodes_markers_and_coordinators_records(
    node: RunningNode, run: Run, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """`log dump` shows a marker's outcome and coordinator epoch, and decodes the records of `__transaction_state`."""
    if node.process is None:
        pytest.skip("the environment names the server, and the test reads only files of its own")
    name = fresh_topic("id")
    leave_open(node.bootstrap, name, topic)
    assert run("txn", "abort", "--transactional-id", name).code == 0
    data = node.process.log_path.parent / "data"
    _, marker = run("log", "dump", str(data / f"{topic}-0"), "--json").json_lines()
    assert (marker["is_control"], marker["marker"], marker["coordinator_epoch"]) == (True, "abort", 0)
    directories = sorted(str(path) for path in data.glob("__transaction_state-*"))
    records = [
        item
        for path in directories
        for item in run("log", "dump", path, "--records", "--json").json_lines()
        if item["kind"] == "record" and item["decoded_key"] == {"transactional_id": name}
    ]
    assert {item["record"] for item in records} == {"TransactionLog"}
    states = [item["decoded_value"]["transaction_status"] for item in records]
    assert states == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort", "Empty"]
    partitions = records[1]["decoded_value"]["transaction_partitions"]
    assert partitions == [{"topic": topic, "partition_ids": [0]}]
    texts = [run("log", "dump", path, "--records").out for path in directories]
    assert f'record=TransactionLog decoded_key={{"transactional_id":"{name}"}} decoded_value={{' in "".join(
        texts
    )


def test_wrong_usage_is_told_in_one_line(run: Run, topic: str) -> None:
    """A command with a wrong name or option prints one line that names the missing thing or the valid choices."""
    assert run("txn", "describe", "no-such-id").refusal() == (
        "transactional id no-such-id does not exist (TRANSACTIONAL_ID_NOT_FOUND)"
    )
    found = run("txn", "find-hanging", "--max-transaction-timeout", "0", "--topic", topic).out
    assert found.startswith("no transaction has been open for longer than 0 minutes without a write")
    assert "no-such-id does not exist" in run("txn", "abort", "--transactional-id", "no-such-id").refusal()
    assert "'('" in run("txn", "list", "--transactional-id-pattern", "(").refusal()
    assert "there is no broker 77" in run("txn", "find-hanging", "--broker-id", "77").refusal()
    for words, told in (
        (("abort",), "name the transaction by --transactional-id, or by --topic, "),
        (("abort", "--topic", "t", "--transactional-id", "x"), "name the transaction by"),
        (("find-hanging", "--partition", "0"), "--partition needs --topic"),
        (("find-hanging", "--topic", "t", "--broker-id", "1"), "cannot be combined"),
        (("list", "--state", "Open"), "choose from 'Empty', 'Ongoing'"),
    ):
        outcome = run("txn", *words)
        assert (outcome.code, told in outcome.err) == (2, True), outcome
