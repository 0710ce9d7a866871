"""`odradek topic`: topics with their partitions, configurations and records."""

from __future__ import annotations

from odradek.cli.commands.topic.topics import register

__all__ = ["register"]
