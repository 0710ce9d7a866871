"""Disks that die under running nodes."""

from __future__ import annotations

from collections.abc import Callable

from tests.deploy.life import Life

STEPS: tuple[Callable[[Life], None], ...] = ()
