"""`odradek metadata rebuild`: a metadata log without any copy of the old one."""

from __future__ import annotations

from odradek.cli.parsing import Groups
from odradek.cli.recovering.recover import register_rebuild

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the group."""
    register_rebuild(
        groups.add_parser(
            "metadata", help="rebuild the metadata log from what is on the disks"
        ).add_subparsers(metavar="COMMAND", required=True)
    )
