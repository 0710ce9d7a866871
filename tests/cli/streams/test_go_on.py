"""A failed `produce` reports how many lines are written and where to go on, so that no line is lost or written twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import Outcome, command, environment, odradek_here
from tests.node_process import RunningNode

pytestmark = pytest.mark.xdist_group("cli")
WAIT_SECONDS = 60.0
LINES = 5000
BAD = 4000


@pytest.fixture
def run(node: RunningNode) -> Callable[..., Outcome]:
    """Run a command against the node, in this process."""
    return lambda *words, stdin=b"": odradek_here(*words, bootstrap=node.bootstrap, stdin=stdin)


@pytest.fixture
def topic(run: Callable[..., Outcome], fresh_topic: Callable[[str], str]) -> str:
    """A topic with three partitions, which refuses records of more than 2000 bytes."""
    name = fresh_topic("go-on")
    words = ("--partitions", "3", "--config", "max.message.bytes=2000")
    assert run("topic", "create", name, *words).code == 0
    return name


def go_on(text: str) -> tuple[int, int]:
    """Extract from a message how many lines are written, and from which line to go on."""
    found = re.search(r"([\d,]+) lines? (?:is|are) written: go on from line (\d+)", text)
    assert found is not None, text
    return int(found[1].replace(",", "")), int(found[2])


def values(run: Callable[..., Outcome], topic: str) -> list[str]:
    """Return the values of all records of the topic, sorted."""
    return sorted(run("consume", topic).out.splitlines())


def form(number: int, kind: str) -> bytes:
    """Return a line in one of the input formats."""
    return {"lines": b"%d", "json": b'{"value":"%d"}', "separator": b"k:%d"}[kind] % number


@pytest.mark.parametrize(
    ("kind", "options", "bad"),
    [
        ("json", ("--input", "json"), b'{"valu":"x"}'),
        ("json", ("--input", "json"), b"\xff"),
        ("separator", ("--key-separator", ":"), b"nothing"),
    ],
)
def test_a_line_that_is_no_record(
    run: Callable[..., Outcome], topic: str, tmp_path: Path, kind: str, options: tuple[str, ...], bad: bytes
) -> None:
    """At an invalid line, only the lines before it are written. Once it is mended, the rest completes the topic."""
    lines = [form(number, kind) for number in range(1, LINES + 1)]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join([*lines[: BAD - 1], bad, *lines[BAD:]]))
    refusal = run("produce", topic, "--file", path, *options).refusal()
    assert refusal.startswith(f"line {BAD} ")
    assert go_on(refusal) == (BAD - 1, BAD)
    assert len(values(run, topic)) == BAD - 1
    assert run("produce", topic, *options, stdin=b"\n".join(lines[BAD - 1 :])).code == 0
    assert values(run, topic) == sorted(str(number) for number in range(1, LINES + 1))


def test_a_record_that_the_broker_refuses(run: Callable[..., Outcome], topic: str) -> None:
    """When the broker refuses a record, later lines may already be written. The message counts them, because a
    repetition would duplicate them."""
    lines = [b"%d" % number for number in range(1, 6)]
    lines[1] = b"x" * 3000
    refusal = run("produce", topic, "--partition", "0", stdin=b"\n".join(lines)).refusal()
    assert refusal.startswith("line 2: ")
    written, line = go_on(refusal)
    assert line == 2
    held = values(run, topic)
    assert written == len(held)
    behind = len([value for value in held if value > "2"])
    assert (f"({behind} of them " in refusal) == (behind > 0)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
@pytest.mark.parametrize("flags", ["blocking", "non-blocking"])
def test_a_signal_while_it_waits_for_input(
    run: Callable[..., Outcome],
    node: RunningNode,
    topic: str,
    number: signal.Signals,
    status: int,
    flags: str,
) -> None:
    """At a signal, the lines read so far are written and counted. An empty non-blocking pipe is not the end of the
    input."""
    reader, writer = os.pipe()
    os.set_blocking(reader, flags == "blocking")
    process = subprocess.Popen(
        command("produce", topic),
        stdin=reader,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(node.bootstrap),
    )
    os.close(reader)
    os.write(writer, b"1\n2\n3\nhalf a li")
    deadline = time.monotonic() + WAIT_SECONDS
    while len(values(run, topic)) < 3:
        assert time.monotonic() < deadline, "the first three lines were not written"
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_SECONDS)
    os.close(writer)
    assert (process.returncode, out) == (status, b"")
    assert err == b"odradek: interrupted: 3 lines are written: go on from line 4\n"
    assert values(run, topic) == ["1", "2", "3"]


def test_a_cluster_that_falls_silent(run: Callable[..., Outcome], node: RunningNode, topic: str) -> None:
    """If the brokers stop answering, the message counts the unanswered lines separately, because they may be
    written."""
    if node.process is None:
        pytest.skip("the environment names the server, and the test may stop only its own")
    process = subprocess.Popen(
        command("produce", topic, "--timeout", "4"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(node.bootstrap),
    )
    assert process.stdin is not None
    process.stdin.write(b"1\n2\n")
    process.stdin.flush()
    deadline = time.monotonic() + WAIT_SECONDS
    while len(values(run, topic)) < 2:
        assert time.monotonic() < deadline, "the first two lines were not written"
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        _, err = process.communicate(b"3\n4\n", timeout=WAIT_SECONDS)
    finally:
        os.kill(node.process.pid, signal.SIGCONT)
    assert process.returncode == 1
    assert go_on(err.decode()) == (2, 3)
    assert err.endswith(b"; 2 lines more may be written, because the brokers did not answer\n")


@pytest.mark.parametrize("redirection", [">/dev/full", "| true"])
def test_a_report_that_nobody_takes(
    run: Callable[..., Outcome], node: RunningNode, topic: str, redirection: str
) -> None:
    """The lines are written although stdout takes no report. Then stderr says how many were written."""
    done = subprocess.run(
        ["sh", "-c", f'(sleep 0; "$@") {redirection}', "sh", *command("produce", topic)],
        input=b"1\n2\n",
        capture_output=True,
        env=environment(node.bootstrap),
        timeout=WAIT_SECONDS,
        check=False,
    )
    if redirection == ">/dev/full":
        assert done.returncode == 1
        assert go_on(done.stderr.decode()) == (2, 3)
    else:
        # `true` may end before or after the report is printed.
        assert done.stderr == b"" or go_on(done.stderr.decode()) == (2, 3)
    assert values(run, topic) == ["1", "2"]


@pytest.mark.parametrize(
    ("redirection", "said"),
    [("<&-", "standard input is closed"), ("0>/dev/null", "cannot read standard input: Bad file descriptor")],
)
def test_an_input_that_cannot_be_read(node: RunningNode, topic: str, redirection: str, said: str) -> None:
    """If stdin cannot be read, the command fails with status 1 and one line with the reason."""
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command("produce", topic)],
        capture_output=True,
        env=environment(node.bootstrap),
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"odradek: {said}")


@pytest.mark.parametrize("line", [b'{"value":"a"}', b'{"value":{"b":[1]},"key":null,"headers":null}'])
def test_json_comes_back(run: Callable[..., Outcome], topic: str, line: bytes) -> None:
    """`consume --json` shows a record that was given as JSON; a value that is an object comes back as text."""
    assert run("produce", topic, "--input", "json", stdin=line).code == 0
    (record,) = run("consume", topic, "--json").json_lines()
    value = json.loads(line)["value"]
    assert record["value"] == (value if isinstance(value, str) else json.dumps(value, separators=(",", ":")))
