"""Mutants of how a broker handles disks that are full or corrupted."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS_OF_DISKS: tuple[Mutant, ...] = (
    Mutant(
        "reserve-ignored-by-retention",
        "Retention waits for room as records do, though it is the way to more room: a full disk stays full.",
        "odradek.data_plane.log.directory.log_dir_background:Background._apply_retention",
        """
        - if log.offline:
        + if log.home.refuses_appends:
        """,
        "fill_up",
        3,
        aimed_only="storms fill whole machines, and give the room back themselves",
    ),
    Mutant(
        "silent-disk-serves-on",
        "A disk that was late with a write is trusted: each further write waits for it again.",
        "odradek.data_plane.log.directory.log_dir:LogDir._suspect",
        """
        - self.set_stalled(True)
        + pass
        """,
        "fall_silent",
        3,
        aimed_only="it costs time, and loses nothing",
    ),
    Mutant(
        "scrub-repairs-from-a-follower-that-lags",
        "A replica that rots is given up although nobody else has all that was acknowledged.",
        "odradek.data_plane.replication.rotten_replicas:RottenReplicas._others_are_in_sync",
        """
        - for broker_id in partition.isr_state.isr:
        + for broker_id in partition.image.replicas:
        """,
        "rot_without_heirs",
        3,
        aimed_only="storms are too short for a scrub",
    ),
)
