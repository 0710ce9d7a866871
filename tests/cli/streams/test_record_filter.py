"""The filters of `odradek consume`: by key, value and header, with a limit, and for a group."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.running import Outcome, odradek_here
from tests.node_process import RunningNode

pytestmark = pytest.mark.xdist_group("cli")
Run = Callable[..., Outcome]


@pytest.fixture
def run(node: RunningNode) -> Run:
    """Run a command against the node, in this process."""
    return lambda *words, stdin=b"": odradek_here(*words, bootstrap=node.bootstrap, stdin=stdin)


@pytest.fixture
def topic(run: Run, fresh_topic: Callable[[str], str]) -> str:
    """A topic with records of different keys, values, headers and times."""
    name = fresh_topic("filter")
    assert run("topic", "create", name, "--partitions", "1", "--config", "retention.ms=-1").code == 0
    records = [
        {
            "key": "a",
            "value": "order 1 paid",
            "timestamp": 1_000,
            "headers": [{"key": "from", "value": "web"}],
        },
        {"key": "b", "value": "order 2 open", "timestamp": 2_000_000},
        {"key": "a", "value": None, "timestamp": 2_000_000},
        {
            "key": "a",
            "value": "order 33 paid",
            "timestamp": 3_000_000,
            "headers": [{"key": "from", "value": "app"}],
        },
        {
            "key": None,
            "value": "nothing",
            "timestamp": 4_000_000,
            "headers": [{"key": "from", "value": "web"}],
        },
    ]
    lines = "\n".join(map(json.dumps, records)).encode()
    assert run("produce", name, "--input", "json", stdin=lines).code == 0
    return name


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (("--key", "a"), [0, 2, 3]),
        (("--key", ""), []),
        (("--match", "paid$"), [0, 3]),
        (("--match", r"order \d\d"), [3]),
        (("--match", "(?i)ORDER"), [0, 1, 3]),
        (("--header", "from=web"), [0, 4]),
        (("--header", "from=web", "--header", "from=app"), []),
        (("--header", "from=web", "--match", "paid"), [0]),
        (("--key", "a", "--limit", "2"), [0, 2]),
        (("--match", "order", "--limit", "1", "--from", "@1500000"), [1]),
        (("--max-messages", "2"), [0, 1]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_filters(run: Run, topic: str, options: tuple[str, ...], offsets: list[int]) -> None:
    """A record is printed if all filters fit. The limit counts printed records."""
    done = run("consume", topic, "--json", *options)
    assert [each["offset"] for each in done.json_lines()] == offsets


def test_a_group_has_read_what_a_filter_drops(run: Run, topic: str) -> None:
    """Records that a filter drops count as read. A limit stops the group at the record after the last printed one."""
    group = f"{topic}-g"
    words = ("consume", topic, "--group", group, "--match", "order", "--format", "%o\\n")
    assert run(*words, "--limit", "2").out == "0\n1\n"
    (shown,) = run("group", "describe", group, "--json").json()["groups"]
    assert shown["partitions"][0]["committed"] == 2
    assert run(*words).out == "3\n"
    (shown,) = run("group", "describe", group, "--json").json()["groups"]
    assert shown["partitions"][0]["committed"] == 5


@pytest.mark.parametrize("regex", ["(", "a(?=b)", "x{1000}{1000}"])
def test_patterns_that_are_refused(regex: str) -> None:
    """A pattern that RE2 cannot read is refused before any connection, in one line that says why."""
    done = odradek_here("consume", "t", "--match", regex, bootstrap="127.0.0.1:1")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert "is not a regular expression of RE2: " in line
