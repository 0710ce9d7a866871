"""Mutants of moves between the disks of a broker."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MOVES = "data_plane.disks.replica_moves:ReplicaMoves."
FUTURE = "data_plane.log.directory.future_logs:"

MUTANTS_OF_MOVES: tuple[Mutant, ...] = (
    Mutant(
        "swapped-before-caught-up",
        "KIP-113: the copy takes the place of the log although the last records are missing from it.",
        MOVES + "_step",
        "not self._copy_rest(current, future)",
        "False",
        "moves",
        30,
        also=((FUTURE + "Swap.open_moved", "log.log_end_offset != current.log_end_offset", "False"),),
        aimed_only="moves between disks are one of many duties of a campaign's operators",
    ),
)
