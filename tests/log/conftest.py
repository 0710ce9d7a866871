"""Fixtures of the tests of logs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from odradek.env.real_dirs import RealDir


@pytest.fixture(autouse=True)
def unlocked_directories(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unlock the real directories that a test has locked. Otherwise the file of the lock is left to the collector of
    garbage, which warns."""
    locked: list[RealDir] = []
    lock = RealDir.lock

    def lock_and_note(directory: RealDir) -> None:
        lock(directory)
        locked.append(directory)

    monkeypatch.setattr(RealDir, "lock", lock_and_note)
    yield
    for each in locked:
        each.unlock()
