"""README.md: its first commands and its program run against a node started as on the page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from testkit.processes import base_port
from tests.cli.running import ROOT, environment, start
from tests.docs.markdown import blocks

TIMEOUT_SECONDS = 120.0
BYTES_MAX = 9_000


def test_first_commands_and_the_program_work(tmp_path: Path) -> None:
    """With the commands and the program of the page, a reader gets records, a group without lag, and the cluster's
    nodes."""
    (commands,) = blocks("README.md", "sh")
    (program,) = blocks("README.md", "python")
    port = base_port(1)
    where = environment(f"127.0.0.1:{port}")
    node = start(["dev", "--port", str(port), "--data", tmp_path / "data"], stdout=subprocess.PIPE)
    try:
        assert node.stdout is not None
        while (line := node.stdout.readline()) != b"ready\n":
            assert line, "the node ended"
        printed = [
            run(["bash", "-e", "-o", "pipefail", "-c", line], where, tmp_path)
            for line in commands.code.replace(".venv/bin", str(Path(sys.executable).parent)).splitlines()
        ]
        assert sorted(printed[2].splitlines()) == ["hello", "world"]
        assert "readers" in printed[3]
        assert "brokers" in printed[4]
        code = program.code.replace(":9092", f":{port}")
        assert run([sys.executable, "-c", code], where, tmp_path) in ("b'hello'\n", "b'world'\n")
    finally:
        node.terminate()
        node.communicate(timeout=TIMEOUT_SECONDS)
    assert node.returncode == 0


def run(command: list[str], where: dict[str, str], folder: Path) -> str:
    """Run one command to its end. It must succeed and print nothing on stderr."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=where, cwd=folder, timeout=TIMEOUT_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), command
    return done.stdout


def test_the_page_is_short() -> None:
    """README.md says what Odradek is; the rest is in docs."""
    assert len((ROOT / "README.md").read_bytes()) <= BYTES_MAX
