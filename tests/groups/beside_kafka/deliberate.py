"""Where answers about consumer groups differ from Kafka's on purpose, each with its reason."""

from __future__ import annotations

__all__ = ["DELIBERATE"]

DELIBERATE: tuple[str, ...] = ()
