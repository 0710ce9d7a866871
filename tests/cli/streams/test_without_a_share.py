"""`consume --group` with more members than partitions. A member without partitions ends, or waits if it has `--follow`."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek import Admin
from tests.cli.running import command, environment, odradek_here
from tests.node_process import RunningNode

pytestmark = [pytest.mark.xdist_group("cli"), pytest.mark.parametrize("protocol", ["classic", "consumer"])]
PATIENCE_SECONDS = 60.0
ENDS = "--timeout", "40"


@contextmanager
def following(node: RunningNode, topic: str, config: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a member with `--follow`, in a group named like the topic, until the block ends."""
    words = command("consume", topic, "--group", topic, "--follow", "--command-config", config)
    member = subprocess.Popen(words, stdout=subprocess.PIPE, env=environment(node.bootstrap), text=True)
    try:
        yield member
    finally:
        member.kill()
        member.wait()
        assert member.stdout is not None
        member.stdout.close()


def line_of(member: subprocess.Popen[str]) -> str:
    """Wait for the next line that the member prints."""
    assert member.stdout is not None
    return member.stdout.readline()


@pytest.fixture
def topic(node: RunningNode, fresh_topic: Callable[[str], str]) -> str:
    """A topic of one partition with one record."""
    name = fresh_topic("single")
    odradek_here("topic", "create", name, "--partitions", "1", bootstrap=node.bootstrap)
    odradek_here("produce", name, bootstrap=node.bootstrap, stdin=b"first\n")
    return name


@pytest.fixture
def config(protocol: str, tmp_path: Path) -> Path:
    """A configuration file that sets the group protocol."""
    path = tmp_path / "client.properties"
    path.write_text(f"group.protocol={protocol}\n")
    return path


def test_a_member_without_a_share_ends(node: RunningNode, topic: str, config: Path) -> None:
    """A member gets no partitions and has an option to stop at the end of the log. It ends with status 0 in both group
    protocols."""
    with following(node, topic, config) as first:
        assert line_of(first) == "first\n"
        words = ("consume", topic, "--group", topic, "--command-config", config, *ENDS)
        done = odradek_here(*words, bootstrap=node.bootstrap)
        assert (done.code, done.out) == (0, ""), done.err


def test_a_member_that_follows_takes_over(node: RunningNode, topic: str, config: Path) -> None:
    """A member without partitions waits. When the other member leaves, it continues at the committed offset."""
    with following(node, topic, config) as first:
        assert line_of(first) == "first\n"
        with following(node, topic, config) as second:
            wait_for_members(node, topic, 2)
            first.send_signal(signal.SIGINT)
            first.wait(PATIENCE_SECONDS)
            odradek_here("produce", topic, bootstrap=node.bootstrap, stdin=b"second\n")
            assert line_of(second) == "second\n"


def wait_for_members(node: RunningNode, group: str, count: int) -> None:
    """Wait until the group has `count` members and is stable."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        while True:
            (found,) = admin.describe_groups([group])
            if len(found.members) == count and found.state == "Stable":
                return
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
