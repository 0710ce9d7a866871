"""The log cleaner's state in `log clean-status`, `disk list` and `topic describe`, on a separate node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from odradek.cli.__main__ import main
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess
from tests.cli.running import Outcome, words_of

KEYS, ROUNDS, VALUE_BYTES = 50, 60, 1000
SEGMENT_BYTES = 1 << 20
WAIT_SECONDS = 60.0
CONFIGS = (
    f"segment.bytes={SEGMENT_BYTES}",
    "cleanup.policy=compact",
    "min.cleanable.dirty.ratio=0.01",
    "compression.type=uncompressed",
)
Run = Callable[..., Outcome]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A node whose cleaner checks its logs once, and then not again for an hour."""
    server = start_odradek(tmp_path, settings={"log.cleaner.backoff.ms": "3600000"})
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def run(server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the node, in this process."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", server.bootstrap)
    return lambda *words: Outcome(main(words), *capsys.readouterr())


def load(bootstrap: str, topic: str) -> None:
    """Write several rounds of updates to a few keys, more than two segments in all."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(KEYS * ROUNDS):
        producer.produce(topic, f"{number:0{VALUE_BYTES}}", f"key-{number % KEYS}")
    assert producer.flush(WAIT_SECONDS) == 0


def clean_now(run: Run) -> None:
    """Change the cleaner's configuration, which makes it check its logs at once."""
    assert run("config", "set", "broker", "1", "log.cleaner.backoff.ms=3599999").code == 0


def wait_for(run: Run, topic: str, done: Callable[[dict[str, object]], bool]) -> dict[str, object]:
    """Poll `log clean-status` until `done` accepts the topic's state; return this state."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        (state,) = run("log", "clean-status", topic, "--json").json()["logs"]
        if done(state):
            return dict(state)
        time.sleep(0.1)
    raise AssertionError(f"the log of {topic} still has this state after {WAIT_SECONDS:g} s: {state}")


def test_before_and_after_a_pass(run: Run, server: ServerProcess) -> None:
    """A compacted log is dirty at first, then clean, with the bytes saved. Other topics are not listed."""
    assert run("log", "clean-status").out == "no replica of a compacted topic was found\n"
    assert run("topic", "create", "plain").code == 0
    assert (
        run("topic", "create", "table", *(word for each in CONFIGS for word in ("--config", each))).code == 0
    )
    load(server.bootstrap, "table")
    (before,) = run("log", "clean-status", "--json").json()["logs"]
    assert (before["topic"], before["dirty_ratio"], before["last_pass_ms"]) == ("table", 1.0, None)
    header, row = words_of(run("log", "clean-status").out)
    assert header[:4] == ["BROKER", "TOPIC", "PARTITION", "STATE"]
    assert row[:5] == ["1", "table", "0", "waiting", "100%"]
    clean_now(run)
    after = wait_for(run, "table", lambda state: state["last_pass_ms"] is not None)
    assert int(str(after["first_dirty_offset"])) > 0
    assert after["dirty_bytes"] == 0
    assert int(str(after["size"])) < before["size"]
    assert words_of(run("log", "clean-status", "table").out)[1][:5] == ["1", "table", "0", "clean", "0%"]
    (replica,) = [
        replica
        for directory in run("disk", "list", "--json").json()["brokers"][0]["directories"]
        for replica in directory["replicas"]
        if replica["topic"] == "table"
    ]
    assert replica["cleaning"]["last_pass_ms"] == after["last_pass_ms"]
    assert "nosuch" in run("log", "clean-status", "nosuch").refusal()


def test_a_log_that_cannot_be_cleaned_is_named_with_its_reason(
    run: Run, server: ServerProcess, tmp_path: Path
) -> None:
    """A damaged log is reported as uncleanable by three commands, with the reason, and is not truncated."""
    assert (
        run("topic", "create", "table", *(word for each in CONFIGS for word in ("--config", each))).code == 0
    )
    load(server.bootstrap, "table")
    (segment, *_) = sorted((tmp_path / "data").glob("table-0/*.log"))
    size = segment.stat().st_size
    with segment.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * 16)
    clean_now(run)
    state = wait_for(run, "table", lambda state: state["uncleanable_reason"] is not None)
    text = f"table-0 in {tmp_path / 'data'} until the broker restarts: {state['uncleanable_reason']}"
    status = run("log", "clean-status")
    assert words_of(status.out)[1][3] == "UNCLEANABLE"
    for said in (status.out, run("disk", "list").out, run("topic", "describe", "table").out):
        assert text in said
    assert segment.stat().st_size == size
