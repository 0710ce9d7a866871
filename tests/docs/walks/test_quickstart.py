"""docs/quickstart.md, from its first command to its last, against a node started as on the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from testkit.processes import base_port
from tests.cli.running import ROOT, environment, start
from tests.docs.markdown import blocks

TIMEOUT_SECONDS = 120.0
# The age of a record depends on how fast the reader is.
_SPAN = re.compile(r"\b\d+(?: ms|[smh])(?: \d+[smh])?\b")


_EPOCHS = re.compile(r"group \d+, assignment \d+")
"""A group's epoch, which depends on how often members joined and left."""


def plain(text: str) -> list[str]:
    """Remove from lines what may differ: ages, and the widths of their columns."""
    return [" ".join(_EPOCHS.sub("EPOCHS", _SPAN.sub("SPAN", line)).split()) for line in text.splitlines()]


def test_every_command_prints_what_the_page_says(tmp_path: Path) -> None:
    """Each command prints what the page shows."""
    first, second, *rest = blocks("docs/quickstart.md", "sh")
    assert first.code == "make run\n"
    assert "odradek dev --port $(PORT) --data $(DATA)" in (ROOT / "Makefile").read_text()
    assert second.code == "source .venv/bin/activate\n"
    port = base_port(1)
    commands = Path(sys.executable).parent
    where = environment(f"127.0.0.1:{port}") | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    node = start(["dev", "--port", str(port), "--data", tmp_path / "data"], stdout=subprocess.PIPE)
    try:
        assert node.stdout is not None
        while (line := node.stdout.readline()) != b"ready\n":
            assert line, "the node ended"
        for block in rest:
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", block.code.replace(":9092", f":{port}")],
                capture_output=True,
                text=True,
                env=where,
                cwd=tmp_path,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
            place = f"docs/quickstart.md:{block.line}"
            assert (done.returncode, done.stderr) == (0, ""), place
            assert plain(done.stdout) == plain(block.output), place
    finally:
        node.terminate()
        node.communicate(timeout=TIMEOUT_SECONDS)
    assert node.returncode == 0
