"""`odradek console` shows any cluster, and refuses what would be open to everybody."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from testkit.odradek_server import ODRADEK
from testkit.processes import free_ports
from tests.node_process import RunningNode


def test_the_command_serves_until_it_is_interrupted(node: RunningNode) -> None:
    """It prints its address once it serves, and Ctrl-C ends it cleanly."""
    (port,) = free_ports(1)
    words = [
        ODRADEK,
        "console",
        "--json",
        f"--listen=127.0.0.1:{port}",
        f"--bootstrap-server={node.bootstrap}",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"console": f"http://127.0.0.1:{port}/"}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/overview") as answer:
            assert json.load(answer)["judgement"] in ("ok", "warning", "critical")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("words", "keys", "sentence"),
    [
        (["--listen=:{port}"], "", "without encryption"),
        (["--listen=0.0.0.0:{port}", "--certificate={file}"], "", "no login"),
        (
            ["--listen=127.0.0.1:{port}"],
            "sasl.jaas.config=secret-x",
            "takes no credentials (sasl.jaas.config)",
        ),
        (["--listen=127.0.0.1:{port}"], "odradek.sasl.password=secret-x", "takes no credentials"),
        (["--listen=127.0.0.1:{port}", "--certificate={file}"], "", "certificate cannot be used"),
        (["--listen=127.0.0.1:{port}", "--certificate={file}.not"], "", "cannot be read"),
        (["--listen=127.0.0.1"], "", "is not HOST:PORT"),
    ],
)
def test_what_must_not_be_served_is_refused(
    tmp_path: Path, words: list[str], keys: str, sentence: str
) -> None:
    """The reason is one sentence, without secrets, and the exit status is 2."""
    (port,) = free_ports(1)
    file = tmp_path / "client.properties"
    file.write_text(keys)
    typed = [each.format(port=port, file=file) for each in words]
    done = subprocess.run(
        [ODRADEK, "console", f"--command-config={file}", *typed], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert "secret-x" not in done.stderr
