"""Hosts that are gone, re-imaged, or without an address: a playbook leads on."""

from __future__ import annotations

from collections.abc import Callable

from tests.deploy.life import Life

STEPS: tuple[Callable[[Life], None], ...] = ()
