"""The transaction coordinator, tested by readable scripts: requests go in, records and answers come out.

`pytest tests/transactions --rewrite` regenerates the expected output, to be reviewed as a difference. The answers to the
same requests are compared with Apache Kafka 4.3's (`tests/conformance`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transactions.transaction_script import run_script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, rewrite: bool) -> None:
    """Each command of a script leads to the records and answers that are written below it."""
    actual = run_script(path.read_text())
    if rewrite:
        path.write_text(actual)
    assert actual == path.read_text()


def test_scripts_exist() -> None:
    """The folder has scripts. If it were empty, the test above would prove nothing."""
    assert len(SCRIPTS) >= 10
