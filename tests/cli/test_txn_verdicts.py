"""`odradek txn` for transactions that a coordinator knows: prepared ones, and ones whose markers are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odradek import Producer
from odradek.cli.__main__ import main
from odradek.client.shells.blocking import Client
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess
from tests.cli.running import Outcome
from tests.client.producer.hanging_producers import leave_open, on_trust, write_marker, write_unknown

pytestmark = pytest.mark.long
Run = Callable[..., Outcome]
TOPIC, ID = "orders", "an id"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A node that allows producers to prepare transactions."""
    settings = {"transaction.two.phase.commit.enable": "true", "transaction.state.log.num.partitions": "3"}
    started = start_odradek(tmp_path / "node", settings=settings)
    yield started
    assert started.stop() == 0, started.log_tail()


@pytest.fixture
def run(server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Create the topic and return a function that runs commands against the node, in this process."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", server.bootstrap)
    assert main(("topic", "create", TOPIC)) == 0
    capsys.readouterr()
    return lambda *words: Outcome(main(words), *capsys.readouterr())


FIND = ("txn", "find-hanging", "--topic", TOPIC, "--max-transaction-timeout", "0")
ABORT_HERE = ("txn", "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0")


def test_a_prepared_transaction_is_another_systems_to_end(server: ServerProcess, run: Run) -> None:
    """`find-hanging` shows that a transaction is prepared (KIP-939). Aborting it on one partition needs --force."""
    with Producer(
        bootstrap_servers=server.bootstrap,
        transactional_id=ID,
        transaction_two_phase_commit_enable=True,
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"held")
        producer.prepare()
        (found,) = run(*FIND, "--json").json()["transactions"]
        assert (found["prospect"], found["transaction_state"]) == ("prepared", "Ongoing")
        assert found["command"] == f"odradek txn abort --transactional-id '{ID}'"
        sentence = run(*FIND).out.splitlines()[-1]
        assert (
            f"Transactional id {ID} has prepared the transaction, which has no timeout. Let its transaction manager commit or abort it."
            in sentence
        )

        told = run(*ABORT_HERE).refusal()
        assert told.startswith(
            f"the transaction on {TOPIC}-0 belongs to transactional id {ID}, in the state Ongoing: `odradek txn abort "
        )
        assert "With --force it is aborted on this partition alone" in told
        assert run(*FIND, "--json").json()["transactions"] == [
            {**found, "idle_ms": pytest.approx(0, abs=60_000)}
        ]
        assert "is aborted" in run(*ABORT_HERE, "--force").out
        assert run(*FIND, "--json").json()["transactions"] == []
        assert (
            "its prepared transaction on 1 partition is aborted"
            in run("txn", "abort", "--transactional-id", ID).out
        )


def test_a_partition_that_refuses_a_marker_is_named(server: ServerProcess, run: Run) -> None:
    """If a coordinator stays in PrepareAbort because a marker is refused, commands say where, why, and what to do."""
    leave_open(server.bootstrap, ID, TOPIC)
    (described,) = run("txn", "describe", ID, "--json").json()["transactions"]
    epoch = described["producer_epoch"]
    with Client(server.bootstrap) as client, on_trust(client):
        write_unknown(client, TOPIC, described["producer_id"], epoch + 9)
    assert run(*FIND, "--json").json()["refused_markers"] == []

    told = run("txn", "abort", "--transactional-id", ID, "--timeout", "3").refusal()
    assert told.startswith(
        f"transactional id {ID}: its transaction's outcome is decided and its producer fenced, but "
    )
    assert "(CONCURRENT_TRANSACTIONS)" in told
    assert f"`odradek txn describe '{ID}'` names the partitions" in told

    document = run(*FIND, "--json").json()
    assert [each["prospect"] for each in document["transactions"]] == ["ending"]
    (refused,) = document["refused_markers"]
    assert (refused["topic"], refused["partition"], refused["transactional_id"]) == (TOPIC, 0, ID)
    assert (refused["error"], refused["transaction_state"]) == ("INVALID_PRODUCER_EPOCH", "PrepareAbort")
    assert (refused["marker_epoch"], refused["partition_epoch"]) == (epoch + 1, epoch + 9)
    command = f"odradek txn abort --topic {TOPIC} --partition 0 --start-offset 0 --force"
    assert run(*FIND).out.splitlines()[-1] == (
        f"{TOPIC}-0 refuses the marker of transactional id {ID}, which stays in PrepareAbort: the partition knows producer epoch "
        f"{epoch + 9}, above the marker's {epoch + 1}. Give its producer another transactional id. To release "
        f"read_committed consumers, abort the transaction in this partition, although it may be committed elsewhere: {command}"
    )
    assert "in the state PrepareAbort: wait for its markers" in run(*ABORT_HERE).refusal()
    assert "is aborted" in run(*command.split()[1:]).out
    # No transaction is open now, but the coordinator's marker is still refused.
    assert "Give its producer another transactional id" in run("txn", "find-hanging").out
    assert run("consume", TOPIC, "--isolation", "read_committed").err == ""


def test_a_partition_that_knows_a_newer_coordinator_is_named(server: ServerProcess, run: Run) -> None:
    """A forged marker with a high coordinator epoch makes a partition refuse the real coordinator; `find-hanging` names
    it."""
    leave_open(server.bootstrap, ID, TOPIC)
    (described,) = run("txn", "describe", ID, "--json").json()["transactions"]
    with Client(server.bootstrap) as client:
        write_marker(
            client, TOPIC, described["producer_id"], described["producer_epoch"], coordinator_epoch=77
        )
    assert run("txn", "abort", "--transactional-id", ID, "--timeout", "3").code == 1
    (refused,) = run(*FIND, "--json").json()["refused_markers"]
    assert refused["error"] == "TRANSACTION_COORDINATOR_FENCED"
    assert (refused["marker_coordinator_epoch"], refused["partition_coordinator_epoch"]) == (0, 77)
    assert "the partition has a marker of coordinator epoch 77, above 0" in run(*FIND).out
