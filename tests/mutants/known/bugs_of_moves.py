"""Mutants of moves between the disks of a broker."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MOVES = "odradek.data_plane.disks.replica_moves:ReplicaMoves."
FUTURE = "odradek.data_plane.log.directory.future_logs:"

MUTANTS_OF_MOVES: tuple[Mutant, ...] = (
    Mutant(
        "swapped-before-caught-up",
        "KIP-113: the copy takes the place of the log although the last records are missing from it.",
        MOVES + "_step",
        """
        - if not self._copy_rest(current, future):
        + if False:
        """,
        "moves",
        30,
        also=(
            (
                FUTURE + "Swap.open_moved",
                """
            - if log.log_end_offset != current.log_end_offset:
            + if False:
            """,
            ),
        ),
        aimed_only="moves between disks are one of many duties of a campaign's operators",
    ),
    Mutant(
        "retire-forgets-a-replica",
        "The plan of a retirement leaves out the last replica of the directory, which would go with the disk.",
        "odradek.client.admin.moves.disk_plans:plan_disk_retirement",
        """
        - disks[path].replicas, key=lambd
        + disks[path].replicas[1:], key=lambd
        """,
        "retirements",
        10,
        aimed_only="retirements are one of many duties of a campaign's operators",
    ),
    Mutant(
        "moved-without-its-checkpoints",
        "KIP-113: the log start of a moved replica stays behind in the old directory: deleted records are there again.",
        FUTURE + "Swap.save_checkpoints",
        """
        - current.log_start_offset > self.future.segment_list.base_offset
        + False
        """,
        "move_and_die",
        3,
        aimed_only="a campaign's brokers write all checkpoints before they die so soon after a move",
    ),
)
