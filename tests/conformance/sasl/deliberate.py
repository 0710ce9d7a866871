"""Where our answers in the conversations differ from Kafka's on purpose, and why."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DELIBERATE"]

DELIBERATE: Mapping[str, str] = {}
