"""`pytest tests/quorum --rewrite` writes what the scripts print into them; review the difference."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the scripts' output as the expected one")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether to rewrite; the option exists only when pytest was given this folder."""
    return bool(request.config.getoption("--rewrite", default=False))
