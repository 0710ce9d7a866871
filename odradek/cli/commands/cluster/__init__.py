"""`odradek cluster`: the state of the cluster, and its metadata log as sentences."""

from __future__ import annotations

from odradek.cli.commands.cluster.status import register

__all__ = ["register"]
