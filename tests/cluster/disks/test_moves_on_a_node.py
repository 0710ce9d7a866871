"""Replicas move between disks of a real node. Producer state and cleaner checkpoints move too, and survive kill -9."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from testkit.odradek_server import launch_odradek, prepare_odradek
from tests.cli.running import odradek_here
from tests.cluster.test_real_nodes import PATIENCE_SECONDS, until

pytestmark = pytest.mark.xdist_group("cluster")

COMPACTED = ("cleanup.policy=compact", "segment.ms=100", "min.cleanable.dirty.ratio=0.01")
SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.segment.delete.delay.ms": "500",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


def first_dirty(directory: Path) -> int | None:
    """Return the offset up to which the compacted log is clean, by the directory's checkpoint; None if it has no entry."""
    checkpoint = directory / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
    found = [int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("kept 0 ")]
    return found[0] if found and found[0] > 0 else None


def test_transactions_and_compaction_move_along(tmp_path: Path) -> None:
    """After a move, aborted transactions stay hidden, an open one can be committed even after a crash, and clean
    segments are not cleaned again (KIP-113)."""
    paths = [tmp_path / name for name in "ab"]
    properties = prepare_odradek(
        tmp_path / "node", settings={**SETTINGS, "log.dirs": ",".join(map(str, paths))}
    )
    with ExitStack() as stack:
        server = launch_odradek(properties)
        stack.callback(server.kill)

        def run(*words: str) -> str:
            done = odradek_here(*words, bootstrap=server.bootstrap)
            assert done.code == 0, done.err
            return done.out

        def home(topic: str) -> Path:
            (found,) = (path for path in paths if (path / f"{topic}-0").exists())
            return found

        run("topic", "create", "paid", "--partitions", "1")
        settings = [word for each in COMPACTED for word in ("--config", each)]
        run("topic", "create", "kept", "--partitions", "1", *settings)
        plain = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0})
        for turn in range(30):
            plain.produce("kept", key=b"key", value=b"value-%d" % turn)
            plain.flush(PATIENCE_SECONDS)
        clean = until(
            "a clean log",
            lambda: (
                (plain.produce("kept", key=b"key", value=b"last"), plain.flush(PATIENCE_SECONDS))
                and first_dirty(home("kept"))
            ),
        )
        paying = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "payer"})
        paying.init_transactions(PATIENCE_SECONDS)
        for value in (b"aborted", b"paid"):
            paying.begin_transaction()
            paying.produce("paid", value=value)
            paying.flush(PATIENCE_SECONDS)
            if value == b"aborted":
                paying.abort_transaction(PATIENCE_SECONDS)

        targets = {topic: next(path for path in paths if path != home(topic)) for topic in ("paid", "kept")}
        for topic, target in targets.items():
            run("partition", "move", f"{topic}:0", "--to", f"1:{target}", "--execute")
        for topic, target in targets.items():
            until(topic, lambda topic=topic, target=target: (target / f"{topic}-0").exists() or None)
        assert (first_dirty(targets["kept"]) or 0) >= clean
        assert any(each.stat().st_size for each in (targets["paid"] / "paid-0").glob("*.txnindex"))
        server.kill()
        server = launch_odradek(properties)
        stack.callback(server.kill)
        assert {topic: home(topic) for topic in targets} == targets
        committed = ("consume", "paid", "--isolation", "read_committed")
        assert run(*committed) == ""
        paying.commit_transaction(PATIENCE_SECONDS)
        # The marker is written shortly after EndTxn is answered.
        until("the committed record", lambda: run(*committed).split() == ["paid"] or None)
        assert (first_dirty(targets["kept"]) or 0) >= clean
        assert run("consume", "kept").split()[-1] == "last"
