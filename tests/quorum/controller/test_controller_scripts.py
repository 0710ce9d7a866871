"""Scripts of a controller: commands, the records that it decides, and its answers.

`pytest tests/quorum --rewrite` writes the expected output anew; review the difference. Error codes and messages were
compared with the answers of Apache Kafka 4.3 to the same requests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quorum.controller.controller_script import run_script

SCRIPTS = sorted((Path(__file__).parent / "scripts").rglob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, rewrite: bool) -> None:
    """Each command of the script gives the output that follows it."""
    text = path.read_text()
    actual = run_script(text)
    if rewrite:
        path.write_text(actual)
    assert actual == text


def test_scripts_exist() -> None:
    """The folder has scripts. If it were empty, the test above would prove nothing."""
    assert len(SCRIPTS) >= 6
