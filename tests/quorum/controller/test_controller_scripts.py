"""The controller by scripts that read aloud: commands, the records decided, the answers.

`pytest tests/quorum --rewrite` regenerates the expected output, to be reviewed as a difference. Error codes and
messages were compared with what Apache Kafka 4.3 answers to the same requests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quorum.controller.controller_script import run_script

SCRIPTS = sorted((Path(__file__).parent / "scripts").rglob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, rewrite: bool) -> None:
    """Each command of the script decides and answers what stands below it."""
    text = path.read_text()
    actual = run_script(text)
    if rewrite:
        path.write_text(actual)
    assert actual == text


def test_scripts_exist() -> None:
    """An empty folder would pass every test."""
    assert len(SCRIPTS) >= 6
