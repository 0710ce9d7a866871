"""docs/client.md: every example runs against our node, in the order of the page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from odradek.client.admin.admin_methods import AsyncAdminMethods, BlockingAdminMethods
from tests.cli.running import ROOT, environment
from tests.docs.markdown import Block, blocks
from tests.node_process import RunningNode

TIMEOUT_SECONDS = 60.0
EXAMPLES = blocks("docs/client.md", "python")


def test_every_example_prints_what_the_page_says(node: RunningNode, tmp_path: Path) -> None:
    """Each example runs as a program of its own and prints what the page shows."""
    assert len(EXAMPLES) == 8
    run(EXAMPLES, node.bootstrap, tmp_path)


def run(examples: list[Block], bootstrap: str, tmp_path: Path) -> None:
    """Run the examples in order, and compare their output with the page."""
    for block in examples:
        program = tmp_path / "example.py"
        program.write_text(block.code.replace("127.0.0.1:9092", bootstrap))
        done = subprocess.run(
            [sys.executable, program],
            capture_output=True,
            text=True,
            env=environment() | {"PYTHONPATH": str(ROOT)},
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        place = f"docs/client.md:{block.line}"
        assert (done.returncode, done.stderr) == (0, ""), place
        assert done.stdout == block.output, place


def test_the_table_of_calls_is_complete() -> None:
    """The blocking and the trio client have the same calls, and the page names them all."""
    calls = {name for name in vars(BlockingAdminMethods) if not name.startswith("_")}
    assert calls == {name for name in vars(AsyncAdminMethods) if not name.startswith("_")}
    page = (ROOT / "docs/client.md").read_text()
    table = page[page.index("All calls, ") : page.index("## On trio")]
    named = {
        word.strip("`")
        for line in table.splitlines()
        if line.startswith("|")
        for word in line.split()
        if "`" in word
    }
    assert named == calls
