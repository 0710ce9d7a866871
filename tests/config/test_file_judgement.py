"""A properties file is checked as a whole: all problems are reported at once, in a sentence each, without secrets."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from odradek.cli.__main__ import main
from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.node.configuration.file_judgement import judge_file
from odradek.node.configuration.node_config import NodeConfig

SOUND = """process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs=/data/1
"""


def refused_files(path: str) -> str:
    """Raise the error of a file that does not exist, for any path."""
    raise FileNotFoundError(2, "No such file or directory", path)


def test_a_sound_file() -> None:
    """A file with which a node starts has no problem."""
    judged = judge_file(SOUND, refused_files)
    assert (judged.problems, judged.unknown, judged.warnings) == ((), {}, ())


def test_all_problems_at_once() -> None:
    """Wrong values, contradicting keys and missing features are all reported at once."""
    judged = judge_file(
        SOUND
        + "log.retention.hours=many\nnum.partitions=0\nbroker.heartbeat.interval.ms=9000\nlog.roll.ms=0\n"
        + "config.providers=vault\nauthorizer.class.name=com.example.Own\n",
        refused_files,
    )
    begins = {problem.split(":")[0] for problem in judged.problems}
    assert begins == {
        "Invalid value many for configuration log.retention.hours",
        "Invalid value 0 for configuration num.partitions",
        "Invalid value 9000 for configuration broker.heartbeat.interval.ms",
        "Invalid value 0 for configuration log.roll.ms",
        "Invalid value vault for configuration config.providers",
        "Invalid value com.example.Own for configuration authorizer.class.name",
    }
    assert len(judged.problems) == 6


@pytest.mark.parametrize(
    ("line", "key", "sentence"),
    [
        (
            "log.retention.hour=90",
            "log.retention.hour",
            "unknown key log.retention.hour: did you mean log.retention.hours?",
        ),
        ("zebra.stripes=7", "zebra.stripes", "unknown key zebra.stripes"),
        (
            "listener.name.nobody.ssl.client.auth=required",
            "listener.name.nobody.ssl.client.auth",
            "listener.name.nobody.ssl.client.auth has no effect: the node has no such listener, or a listener has no such setting",
        ),
    ],
)
def test_an_unknown_key(line: str, key: str, sentence: str) -> None:
    """An unknown key is reported with the key that may be meant. A key that the caller allows is not reported."""
    assert dict(judge_file(SOUND + line, refused_files).unknown) == {key: sentence}
    assert judge_file(SOUND + line, refused_files, [key]).unknown == {}


def test_what_all_else_depends_on() -> None:
    """If `process.roles` is wrong or missing, each key is still checked by itself, but not against other keys."""
    judged = judge_file(SOUND.replace("broker,controller", "king") + "num.partitions=-3\n", refused_files)
    assert len(judged.problems) == 2
    assert "process.roles" in judged.problems[1]
    missing = judge_file("num.partitions=1\n", refused_files)
    assert {problem.split('"')[1] for problem in missing.problems} == {
        "process.roles",
        "node.id",
        "controller.listener.names",
    }


def test_listeners_that_contradict_each_other() -> None:
    """Listeners that contradict each other are reported as a problem, since a node would refuse to start with them."""
    judged = judge_file(SOUND.replace("CONTROLLER://", "CONTROL://"), refused_files)
    assert len(judged.problems) == 1
    assert "controller.listener.names" in judged.problems[0]


def test_a_file_that_a_key_names() -> None:
    """If a file that a key names, such as one of passwords, cannot be read, the problem names the file."""
    text = SOUND.replace("PLAINTEXT://", "SASL_PLAINTEXT://") + (
        "security.inter.broker.protocol=SASL_PLAINTEXT\nsasl.mechanism.inter.broker.protocol=PLAIN\n"
        "sasl.enabled.mechanisms=PLAIN\nodradek.sasl.plain.users.file=/etc/nosuch\n"
    )
    problems = judge_file(text, refused_files).problems
    assert any("/etc/nosuch" in problem and "No such file" in problem for problem in problems)


@pytest.mark.parametrize(
    "line", ["sasl.jaas.config=x\\\nssl.keystore.password=hunter2", "log.dir=x\\\nssl.key.password=hunter2"]
)
def test_no_secret_is_shown(line: str) -> None:
    """If a wrong value contains a secret, the problem does not show it."""
    judged = judge_file(SOUND + line, refused_files)
    assert "hunter2" not in repr(judged)


@pytest.mark.parametrize("text", [SOUND + "num.partitions=0\n", SOUND + "log.roll.ms=0\n", "node.id=1"])
def test_it_judges_as_a_start_does(text: str) -> None:
    """If a start would refuse the file with an error, this error is among the reported problems."""
    with pytest.raises(ConfigError) as refusal:
        NodeConfig.from_text(text)
    assert str(refusal.value) in judge_file(text, refused_files).problems


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`odradek storage check-config` prints a line for each problem, and its exit status says whether there is one."""
    path = tmp_path / "node.properties"
    path.write_text(SOUND)
    assert main(["storage", "check-config", str(path)]) == 0
    assert capsys.readouterr().out == ""
    path.write_text(SOUND + "num.partitions=0\nlog.retention.hour=90\nlog.local.retention.ms=5\n")
    assert main(["storage", "check-config", str(path)]) == 1
    shown = capsys.readouterr()
    first, second = shown.out.splitlines()
    assert "num.partitions" in first
    assert second == "unknown key log.retention.hour: did you mean log.retention.hours?"
    assert "log.local.retention.ms" in shown.err
    assert shown.err.splitlines()[-1].endswith("2 lines to correct before a node can start with this file")
    assert main(["storage", "check-config", "--json", str(path)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["key"] for each in document["unknown"]] == ["log.retention.hour"]
    assert document["problems"] == [first]


def test_the_command_reads_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file name `-` the command reads standard input, so a file with secrets need not be written to a disk."""
    text = SOUND + "log.retention.hour=90\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    words = ["storage", "check-config", "--allow-unknown", "log.retention.hour", "-"]
    assert main(words) == 0
    assert capsys.readouterr().out == ""


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the file cannot be read, the command fails with one line."""
    assert main(["storage", "check-config", str(tmp_path / "nosuch")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
