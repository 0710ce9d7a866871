"""Mutants of the cleaner. Each breaks one guarantee of compaction."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CLEANING = "odradek.data_plane.log.cleaning."

MUTANTS_OF_CLEANING: tuple[Mutant, ...] = (
    Mutant(
        "cleaned-above-the-high-watermark",
        "What is not committed takes the place of a committed record; then it is cut, and the key has no record.",
        "odradek.data_plane.log.cleaning_pass:_bound",
        """
        - return min(log.high_watermark, log.last_stable_offset, log.active.base_offset, log.recovery_point)
        + return min(log.active.base_offset, log.recovery_point)
        """,
        "keyed",
        60,
        also=(
            (
                CLEANING + "log_views:view_of",
                """
            - committed = min(log.high_watermark, log.last_stable_offset)
            + committed = log.log_end_offset
            """,
            ),
        ),
        aimed_only="the default storms have the keyed workload in three runs of ten",
    ),
    Mutant(
        "tombstone-dropped-at-the-first-pass",
        "KIP-534: a tombstone stays until its delete horizon, so that readers learn of it.",
        CLEANING + "record_loop:RecordLoop._judge",
        """
        - each.has_delete_horizon and each.base_timestamp <= rules.earliest_ms
        + True
        """,
        "keyed",
        20,
    ),
    Mutant(
        "delete-horizon-at-once",
        "KIP-534: the horizon is `delete.retention.ms` away from the first pass.",
        CLEANING + "record_loop:RecordLoop._dated",
        """
        - horizon_ms = min(self._rules.latest_ms + self._rules.delete_retention_ms, LONG_MAX)
        + horizon_ms = min(self._rules.latest_ms, LONG_MAX)
        """,
        "keyed",
        40,
    ),
    Mutant(
        "swap-forgotten-at-start",
        "A crash between the removal of the sources and the last rename: the start takes the swapped files for litter.",
        "odradek.data_plane.log.parts.swap_files:put_in_order",
        """
        - directory.rename(name, name.removesuffix(SWAP_SUFFIX))
        + remove_if_present(directory, name)
        """,
        "compacted_log",
        5,
        aimed_only="a process that dies leaves a swap whole, and a replica that lost a segment begins anew",
    ),
    Mutant(
        "last-batch-of-a-producer-dropped",
        "The empty batch that the next sequence number hangs on is dropped, and the producer is forgotten by a restart.",
        CLEANING + "pass_values:PassRules.stays_empty",
        """
        - return header.producer_id >= 0 and self.last_batches.has(header)
        + return False
        """,
        "keyed",
        20,
    ),
    Mutant(
        "full-map-taken-for-whole",
        "A map that is full holds the begin of the dirty part alone: what is behind it is neither mapped nor clean.",
        CLEANING + "record_loop:RecordLoop._map_group",
        """
        - if not len(group) or self._put(group, from_offset, mapped):
        + if not len(group) or self._put(group, from_offset, mapped) or self._known.size:
        """,
        "compacted_log",
        5,
        aimed_only="a record that stays too long breaks no promise that a cluster is held to",
    ),
    Mutant(
        "newest-record-of-a-key-dropped",
        "The record whose offset the map has is the one that stays.",
        CLEANING + "record_loop:RecordLoop._judge",
        """
        - keep[keyed] = offsets[keyed] >= latest
        + keep[keyed] = offsets[keyed] > latest
        """,
        "keyed",
        20,
    ),
    Mutant(
        "young-records-cleaned",
        "`min.compaction.lag.ms` keeps what is younger.",
        CLEANING + "plan:_end",
        """
        - if lag_ms > 0 and after.base_offset > dirty and (segment.max_timestamp_ms > now_ms - lag_ms):
        + if lag_ms < 0 and after.base_offset > dirty and (segment.max_timestamp_ms > now_ms - lag_ms):
        """,
        "keyed",
        60,
    ),
    Mutant(
        "map-begins-behind-the-first-dirty-record",
        "KAFKA-3587 and its kin: the first dirty offset is off by one, so a value is never mapped.",
        CLEANING + "record_loop:RecordLoop._put",
        """
        - wanted = offsets >= from_offset
        + wanted = offsets > from_offset
        """,
        "compacted_log",
        5,
        aimed_only="a record that stays too long breaks no promise that a cluster is held to",
    ),
    Mutant(
        "thinned-batch-ends-early",
        "A batch keeps its last offset when its last records go: else the log has a hole that followers fall into.",
        CLEANING + "record_loop:_rebuilt",
        """
        - =verdict.kept[index], crc=0)
        + =verdict.kept[index], last_offset_delta=max(0, header.last_offset_delta - 1), crc=0)
        """,
        "keyed",
        20,
    ),
)
