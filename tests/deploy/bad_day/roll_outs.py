"""Roll-outs that are interrupted, refused, or meet a node that is down."""

from __future__ import annotations

from collections.abc import Callable

from tests.deploy.life import Life

STEPS: tuple[Callable[[Life], None], ...] = ()
