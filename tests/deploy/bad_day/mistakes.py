"""Mistakes in the inventory: all are found before anything is changed."""

from __future__ import annotations

from collections.abc import Callable

from tests.deploy.life import Life

STEPS: tuple[Callable[[Life], None], ...] = ()
