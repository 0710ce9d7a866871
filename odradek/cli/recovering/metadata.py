"""`odradek metadata rebuild`: makes a new metadata log when every copy of the old log is lost."""

from __future__ import annotations

from odradek.cli.parsing import Groups
from odradek.cli.recovering.recover import register_rebuild

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the command group `metadata` to the parser of the command line."""
    register_rebuild(
        groups.add_parser("metadata", help="make a new metadata log from the disks").add_subparsers(
            metavar="COMMAND", required=True
        )
    )
