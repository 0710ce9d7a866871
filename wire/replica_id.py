"""What names a replica of this broker: the partition's topic id and number."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Replica"]

Replica: TypeAlias = "tuple[bytes, int]"
"""Topic id and partition."""
