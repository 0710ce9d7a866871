"""`odradek disk balance --over-hosts`: move replicas between the disks of several brokers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from odradek.cli.moves.plans import carry_out, name_directories
from odradek.cli.output import bytes_text, counted, print_json, print_table, say

if TYPE_CHECKING:
    from odradek.client.admin.moves.disk_plans import Disk
    from odradek.client.admin.moves.host_plans import HostMove
    from odradek.client.shells.blocking import Client

__all__ = ["balance_over_hosts"]

MOVES_AT_ONCE = 50
NOTHING = "there is nothing to move: the brokers use equal shares of their disks"


def balance_over_hosts(args: argparse.Namespace, client: Client, disks: Mapping[int, Sequence[Disk]]) -> int:
    """Show the plan for these brokers, or execute it. The directories are sent before the reassignments, as
    Kafka's tool does.
    """
    from odradek.client.admin.moves.host_plans import plan_balance_over_hosts

    survey = client.admin.survey_cluster()
    found = plan_balance_over_hosts(disks, survey.sites, survey.placements)
    if args.dry_run:
        if args.json:
            print_json({"moves": [_document(each) for each in found]})
        else:
            _print_moves(found)
        return 0
    if not args.json and found:
        _print_moves(found)
    args.execute, args.execute_option, args.no_wait, args.at_once = True, "", False, MOVES_AT_ONCE
    name_directories(
        client, {(each.move.topic, each.move.partition, each.target): each.target_path for each in found}
    )
    return carry_out(args, client, [each.move for each in found], survey, NOTHING, is_shown=True)


def _print_moves(found: Sequence[HostMove]) -> None:
    if not found:
        say(NOTHING)
        return
    rows = [
        (
            f"{each.move.topic}-{each.move.partition}",
            bytes_text(each.move.size),
            f"{each.source}:{each.source_path}",
            f"{each.target}:{each.target_path}",
        )
        for each in found
    ]
    print_table(("REPLICA", "BYTES", "FROM", "TO"), rows)
    total = sum(each.move.size for each in found)
    say(f"{counted(len(found), 'replica')}, {bytes_text(total)} to copy between brokers")


def _document(each: HostMove) -> dict[str, Any]:
    return {
        "topic": each.move.topic,
        "partition": each.move.partition,
        "from": {"broker": each.source, "directory": each.source_path},
        "to": {"broker": each.target, "directory": each.target_path},
        "bytes": each.move.size,
    }
