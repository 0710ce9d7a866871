"""Deliberate differences of our answers about consumer groups from Kafka's, each with its reason."""

from __future__ import annotations

__all__ = ["DELIBERATE"]

DELIBERATE: tuple[str, ...] = ()
