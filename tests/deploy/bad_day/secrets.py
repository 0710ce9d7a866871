"""Secrets are planted, then looked for on the hosts and on the control machine."""

from __future__ import annotations

from collections.abc import Callable

from tests.deploy.life import Life

STEPS: tuple[Callable[[Life], None], ...] = ()
