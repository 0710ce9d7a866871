"""Messages of the command line to a user who made a mistake, or whose request no node answers."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from odradek.cli.__main__ import build_parser, main
from odradek.node.main import NEEDS_OPERATOR
from tests.cli.running import ROOT, command, environment, odradek, odradek_here
from tests.client.fake_broker import LoopbackBroker

LEAVES = [
    ("dev",),
    ("server",),
    ("storage", "format"),
    ("storage", "info"),
    ("storage", "check-config"),
    ("storage", "random-uuid"),
    ("topic", "list"),
    ("topic", "create"),
    ("topic", "describe"),
    ("topic", "alter"),
    ("topic", "purge"),
    ("topic", "clone"),
    ("topic", "delete"),
    ("produce",),
    ("consume",),
    ("group", "list"),
    ("group", "describe"),
    ("group", "reset"),
    ("group", "delete"),
    *(("txn", each) for each in ("list", "describe", "describe-producers", "abort", "find-hanging")),
    ("config", "get"),
    ("config", "set"),
    ("config", "unset"),
    ("cluster", "health"),
    ("cluster", "doctor"),
    ("cluster", "status"),
    ("cluster", "events"),
    *(("broker", each) for each in ("list", "add", "drain", "remove")),
    *(("partition", each) for each in ("list", "move", "balance", "elect")),
    *(("quorum", each) for each in ("status", "add", "remove")),
    ("disk", "list"),
    ("log", "dump"),
    ("generate", "prometheus-rules"),
    ("generate", "grafana-dashboard"),
    *(("acl", each) for each in ("list", "add", "remove", "check")),
    *(("user", each) for each in ("list", "add", "password", "remove")),
    *(("token", each) for each in ("create", "list", "renew", "expire")),
    *(("quota", each) for each in ("list", "set", "remove", "explain")),
    ("client", "list"),
    ("client", "describe"),
    ("completion",),
    ("generate", "man"),
    ("top",),
]


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_help_and_json(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Each command has `--help` and `--json`."""
    assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: odradek {' '.join(words)}" in text
    assert "--json" in text


def test_the_commands_are_those_of_this_version() -> None:
    """The help lists exactly the commands of this version."""
    text = build_parser().format_help()
    offered = [line.split()[0] for line in text.splitlines() if line.startswith("    ") and line[4] != " "]
    assert offered == [
        *("dev", "server", "storage", "topic", "produce", "consume"),
        *(
            "group",
            "txn",
            "config",
            "acl",
            "user",
            "token",
            "quota",
            "client",
            "cluster",
            "broker",
            "partition",
            "quorum",
            "metadata",
            "disk",
            "log",
            "top",
            "console",
            "completion",
            "generate",
            "mirror",
            "spark",
        ),
    ]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nonsense",),
        ("topic",),
        ("topic", "alter", "t"),
        ("topic", "alter", "t", "--set", "a=1", "--unset", "a"),
        ("topic", "purge", "t", "--before", "yesterday"),
        ("topic", "alter", "t", "--partitions", "0"),
        ("group",),
        ("group", "describe"),
        ("group", "reset", "g"),
        ("group", "reset", "g", "--to-latest", "--to-earliest"),
        ("group", "reset", "g", "--to-time", "soon"),
        ("group", "reset", "g", "--by", "long"),
        ("group", "reset", "g", "--to-latest", "--topic", ":1"),
        ("config", "set", "topic", "t"),
        ("config", "set", "topic", "t", "a=1", "--unset", "a"),
        ("config", "set", "topic", "t", "novalue"),
        ("disk", "list", "--broker", "one"),
        ("topic", "create", "t", "--partitions", "0"),
        ("topic", "create", "t", "--config", "novalue"),
        ("topic", "list", "--timeout", "-1"),
        ("produce", "t", "--compression", "rar"),
        ("produce", "t", "--acks", "2"),
        ("produce", "t", "--key-separator", ""),
        ("produce", "t", "--input", "json", "--key-separator", ":"),
        ("consume", "t", "--from", "1", "--from-beginning"),
        ("consume", "t", "--from", "yesterday"),
        ("consume", "t", "--format", "%x"),
        ("consume", "t", "--format", "%v", "--key-separator", ":"),
        ("config", "get", "cluster", "x"),
        ("config", "get", "broker", "one"),
        ("dev", "--port", "99999"),
        ("dev", "--nodes", "0"),
        ("partition", "move", "t"),
        ("partition", "move", "--to", "1"),
        ("partition", "move", "t", "--to", "1,1"),
        ("partition", "move", "t:x", "--to", "1"),
        ("partition", "move", "t:3-1", "--to", "1"),
        ("partition", "move", "t", "--to", "1", "--throttle", "fast"),
        ("partition", "balance", "--tolerance", "101"),
        ("partition", "elect", "--unclean"),
        ("broker", "drain"),
        ("quorum", "add", "4", "--endpoint", "localhost"),
        ("quorum", "remove", "4", "--directory-id", "x"),
        ("cluster", "events", "--since", "soon"),
        ("cluster", "events", "--broker", "-1"),
        ("topic", "list", "--bootstrap-server", "nocolon"),
    ],
    ids=lambda words: " ".join(words) or "nothing",
)
def test_wrong_usage_is_exit_code_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage ends with status 2, an empty stdout, and one line on stderr that does not repeat the usage."""
    assert main(list(words)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("odradek: ")
    assert "usage:" not in line


def test_where_help_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the command whose help to read, also for a misspelt option."""
    assert main(["topic", "list", "--bogus"]) == 2
    said = capsys.readouterr().err
    assert (
        said == "odradek: the option --bogus does not exist: `odradek topic list --help` shows the options\n"
    )
    assert main(["topic", "create"]) == 2
    said = capsys.readouterr().err
    assert said == "odradek: TOPIC is missing: `odradek topic create --help` shows the options\n"


def test_nobody_answers() -> None:
    """If nothing listens, one line gives the address, the system's reason and the option to check."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = odradek_here("topic", "list", bootstrap=address).refusal()
    assert f"cannot connect to {address}: Connection refused" in line
    assert "--bootstrap-server" in line


def test_the_option_wins_over_the_environment() -> None:
    """--bootstrap-server overrides ODRADEK_BOOTSTRAP."""
    line = odradek_here(
        "topic", "list", "--bootstrap-server", "127.0.0.1:2", bootstrap="127.0.0.1:1"
    ).refusal()
    assert "127.0.0.1:2" in line


def test_somebody_who_says_nothing() -> None:
    """If a port is open but no broker answers, the command ends after --timeout and names the address."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        line = odradek_here("topic", "list", "--timeout", "0.2", bootstrap=address).refusal()
    assert address in line


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """A missing file is reported with its path and the reason."""
    missing = tmp_path / "missing"
    assert odradek_here("log", "dump", missing).refusal() == f"{missing} does not exist"
    assert (
        odradek_here("storage", "info", missing).refusal()
        == f"cannot read {missing}: No such file or directory"
    )
    assert str(tmp_path) in odradek_here("log", "dump", tmp_path).refusal()
    (tmp_path / "notes.txt").write_text("x")
    assert "not a file of a partition" in odradek_here("log", "dump", tmp_path / "notes.txt").refusal()


def test_version() -> None:
    """`--version` prints the version from the distribution's metadata, and the commit of this checkout."""
    import odradek as package

    known = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    asked = ["git", "tag", "--points-at", "HEAD", "--list", f"v{package.__version__}"]
    tags = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    tag = f"tag {tags[0]}, " if tags else ""
    commit = f" ({tag}commit {known.stdout.strip()})" if known.returncode == 0 else ""
    assert odradek("--version").out == f"odradek {package.__version__}{commit}\n"


def test_a_reader_that_leaves_is_no_traceback() -> None:
    """If the reader of the pipe has closed it, the command ends silently with status 1."""
    with LoopbackBroker() as server:
        process = subprocess.Popen(
            command("topic", "list"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(server.bootstrap),
            cwd=ROOT,
        )
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate()
    assert (process.returncode, err) == (1, b"")


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "create", "t", "--partitions", "2147483648"),
        ("topic", "create", "t", "--replication-factor", "32768"),
        ("group", "reset", "g", "--to-offset", "9223372036854775808"),
        ("group", "reset", "g", "--to-time", "@9223372036854775808"),
        ("group", "reset", "g", "--by", "9" * 400 + "d"),
    ],
    ids=" ".join,
)
def test_numbers_that_no_request_can_hold(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers too large for a request are refused as wrong usage, before any connection."""
    assert main(words) == 2
    assert f"odradek: argument {words[-2]}: '{words[-1]}' is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">&-", 0, ""),
        (">/dev/full", 1, "odradek: the output cannot be written: the device has no space left\n"),
    ],
)
def test_output_that_goes_nowhere(redirection: str, code: int, said: str) -> None:
    """With a closed stdout the command succeeds. With a full device it fails with one line."""
    if redirection.endswith("full") and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command("--version")],
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_a_server_without_its_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`server` without its file ends with one line: the file, the system's reason, and what to do."""
    missing = tmp_path / "none.properties"
    assert main(["server", str(missing)]) == NEEDS_OPERATOR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"odradek: cannot read {missing}: No such file or directory. ")
    assert "odradek storage format" in line


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("topic create t --set a=b", "--config"),
        ("topic create t --topic-config=a=b", "--config"),
        ("topic alter t --delete-config a", "--unset"),
        ("topic list --brokers h:1", "--bootstrap-server"),
        ("topic list --set a=b", ""),
    ],
)
def test_an_option_of_another_program_is_named_by_its_name_here(words: str, name: str) -> None:
    """If a user gives an option of Kafka's tools or of rpk, the error names our equivalent, if the command has one."""
    said = odradek_here(*words.split()).err
    assert "does not exist" in said
    assert said.partition("; the right name is ")[2].partition(":")[0] == name
