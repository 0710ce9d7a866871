"""The table of all knobs: constants of the product that a run may change, each with the range of drawn values. PURE.

The largest drawn values are so low that the data of a run reach them. The product's own values are larger.
`draw_knobs` draws the knobs of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

import attrs

__all__ = ["KNOBS", "Knob", "draw_knobs"]

TURNED_PROBABILITY = 0.5
"""The probability that a run has any knobs."""
MANY_PROBABILITY = 0.4
"""The probability that a run with knobs has many of them."""
MANY_SHARE = 0.4
"""The probability of each knob in a run that has many knobs."""
FEW_MAX = 5
LOWEST_PROBABILITY = 0.3
"""The probability that a drawn knob gets its lowest value."""


@attrs.frozen
class Knob:
    """An integer constant of the module `odradek.MODULE`, or of a class in it (`CLASS.NAME`). Runs draw its value from
    `low` to `high`.
    """

    module: str
    name: str
    low: int
    high: int

    @property
    def path(self) -> str:
        """The knob's name in the options of a run."""
        return f"{self.module}.{self.name}"


_LOGS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "data_plane.coordination.decision_log": {"READ_BYTES": (1, 5_000), "BATCH_BYTES": (1, 5_000)},
    "data_plane.disks.log_making": {"INLINE_LOGS_MAX": (0, 3), "LOGS_PER_STEP": (1, 4)},
    "data_plane.disks.replica_moves": {"CHUNK_BYTES": (200, 5_000), "LAST_BYTES_MAX": (1, 5_000)},
    "data_plane.disks.replica_placement": {"PREFERRED_MAX": (1, 4)},
    "data_plane.log.batch_work": {"RATION": (1, 20_000), "SMALL_BYTES_MAX": (1, 5_000)},
    "data_plane.log.cleaning.key_hash": {"_AT_ONCE_BYTES": (1, 2_000)},
    "data_plane.log.cleaning.plan": {"GROUP_SEGMENTS_MAX": (1, 4)},
    "data_plane.log.cleaning.record_loop": {"_GROUP_BYTES": (1, 5_000)},
    "data_plane.log.directory.log_loader": {"_LOGS_PER_LOAD": (1, 4)},
    "data_plane.log.directory.scrub": {"CHUNK_BYTES": (100, 5_000)},
    "data_plane.log.parts.splitting": {"_COPY_BYTES": (100, 2_000)},
    "data_plane.log.parts.verification": {"GUARDS_MAX": (1, 4)},
    "data_plane.log.salvage": {"_CHUNK_BYTES": (100, 2_000)},
    "data_plane.log.segments.recent_places": {"PLACES_MAX": (2, 8), "PLACES_KEPT": (1, 8)},
    "data_plane.log.segments.scan": {"RECOVERY_CHUNK_BYTES": (61, 3_000), "HEADER_CHUNK_BYTES": (61, 1_000)},
    "data_plane.log.segments.segment": {"_HOP_BYTES": (27, 500)},
    "data_plane.log.segments.walked_times": {"CHUNK_BYTES": (100, 5_000), "BLOCK_BYTES": (1, 2_000)},
    "data_plane.metadata_snapshots": {"_FIRST_BATCH_BYTES_MAX": (100, 2_000)},
    "data_plane.topic_configs": {"SHARED_LOG_CONFIGS_MAX": (1, 3)},
}
_BROKER: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "data_plane.disks.directory_assignments": {"ASSIGNMENTS_PER_REQUEST": (1, 4)},
    "data_plane.fetch_sessions": {"UNKNOWN_MAX": (0, 4), "SESSIONS_PER_REPLICA_MAX": (1, 4)},
    "data_plane.groups.consumers.consumer_membership": {"MARKS_MAX": (0, 3)},
    "data_plane.groups.consumers.patterns": {"NAMES_PER_PAUSE": (1, 5)},
    "data_plane.groups.consumers.target_runs": {"INLINE_UNITS_MAX": (0, 12), "PART_UNITS": (1, 6)},
    "data_plane.groups.consumers.topic_hashes": {"KEPT_MAX": (0, 3), "INLINE_UNITS_MAX": (0, 6)},
    "data_plane.handlers.administration.alter_configs": {"THINGS_PER_TURN": (1, 5)},
    "data_plane.handlers.fetching.cold_pages": {
        "WARM_CHUNK_BYTES": (256, 4_000),
        "INLINE_BYTES_MAX": (0, 2_000),
    },
    "data_plane.handlers.fetching.empty_batches": {"_READS_MAX": (1, 4)},
    "data_plane.handlers.fetching.fetch": {"PARTITIONS_AT_ONCE": (1, 6)},
    "data_plane.handlers.fetching.fetch_job": {"CHUNK": (1, 4)},
    "data_plane.handlers.grouping.group_offsets": {"PARTITIONS_PER_DECISION": (1, 4)},
    "data_plane.handlers.producing.batches_left": {
        "PARTITIONS_PER_TURN": (1, 4),
        "TURNS_AT_ONCE": (1, 2),
        "SLICE_BYTES": (1, 2_000),
    },
    "data_plane.handlers.producing.recompression_on_append": {"QUICK_BYTES_MAX": (0, 500)},
    "data_plane.quotas.address_rates": {"ADDRESSES_MAX": (1, 4)},
    "data_plane.replication.following.fetcher": {"APPEND_BYTES_PER_TURN": (1, 5_000)},
    "data_plane.replication.following.follower_fetch_session": {"PARTITIONS_MAX": (4, 16)},
    "data_plane.replication.isr_changes": {"PARTITIONS_PER_REQUEST": (1, 4)},
    "data_plane.replication.following.leader_connection": {
        "RECEIVE_BYTES": (1_024, 8_000),
        "LOW_WATER_BYTES_MAX": (256, 4_000),
    },
    "data_plane.replication.leaderless_replicas": {"REPORTS_PER_HEARTBEAT_MAX": (1, 3)},
    "data_plane.transactions.coordinator": {"IDS_PER_TURN": (1, 3)},
    "data_plane.transactions.machine": {
        "HELD_MAX": (1, 3),
        "CHECKED_MAX": (1, 3),
        "CHECKED_BYTES_MAX": (1, 500),
    },
    "data_plane.transactions.markers": {
        "PARTITIONS_PER_REQUEST": (1, 4),
        "PARTITIONS_PER_TURN": (1, 4),
        "STARTS_PER_TURN": (1, 3),
        "ENDS_PER_TURN": (1, 3),
        "REQUESTS_UNDER_WAY_MAX": (1, 2),
    },
    "data_plane.transactions.verifier": {"TRANSACTIONS_PER_REQUEST": (1, 3)},
}
_QUORUM: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "metadata_quorum.controller.access.tokens": {"EXPIRED_PER_TURN_MAX": (1, 3)},
    "metadata_quorum.controller.limits": {"ELECTIONS_PER_TURN_MAX": (1, 4)},
    "metadata_quorum.controller.parts": {"PART_WEIGHT_MAX": (20, 100)},
    "metadata_quorum.controller.producer_ids": {"PRODUCER_ID_BLOCK_SIZE": (1, 5)},
    "metadata_quorum.controller_channel": {"LONG_BYTES": (0, 500), "LONG_ELEMENTS": (1, 20)},
    "metadata_quorum.image.image_builder": {"Interned._LIMIT": (1, 8)},
    "metadata_quorum.quotas.mutation_quotas": {"BUCKETS_MAX": (1, 4)},
    "metadata_quorum.replica.checkpoint_files": {"SNAPSHOT_BATCH_RECORDS_MAX": (1, 20)},
    "metadata_quorum.replica.log_reading": {"READ_BYTES": (1, 5_000)},
    "metadata_quorum.replica.peers": {"RECEIVE_BYTES": (512, 4_000), "RECEIVES_MAX": (1, 4)},
    "metadata_quorum.replica.publisher": {"READ_BYTES": (1, 5_000)},
    "metadata_quorum.replica.quorum_leader": {"BATCH_BYTES_MAX": (0, 2_000)},
    "metadata_quorum.replica.quorum_requests": {"FETCH_BYTES_MAX": (1, 4_000), "READERS_MAX": (0, 2)},
    "metadata_quorum.replica.snapshot_transfer": {"CHUNK_BYTES_MAX": (200, 4_000)},
    "metadata_quorum.state_machine": {"RECORDS_PER_BATCH_MAX": (50, 500)},
}
_CONNECTIONS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "node.connections.answer_queue": {"SEND_QUEUE_BYTES_MAX": (1, 20_000)},
    "node.connections.answers": {
        "SLOTS_MAX": (2, 16),
        "PARKED_MAX": (1, 3),
        "HELD_BYTES_MAX": (1, 5_000),
        "HELD_SHARE_BYTES": (1, 2_000),
    },
    "node.connections.buffers": {
        # The buffer must hold a partial frame, whose size may be as large as the usual value of
        # `LARGE_FRAME_BYTES`.
        "SHARED_BYTES": (66_000, 100_000),
        "SCANT_BYTES": (512, 2_048),
        "SMALLEST_BYTES": (16, 512),
        "KEPT_BYTES_MIN": (1, 512),
    },
    "node.connections.connection_loop": {
        "FRAMES_PER_TURN": (1, 8),
        "FRAMES_PER_LOOK": (1, 4),
        "LARGE_FRAME_BYTES": (64, 2_000),
        "GROWN_BYTES_MIN": (16, 500),
    },
    "node.connections.send_queue": {
        "SENDFILE_BYTES_MAX": (500, 8_000),
        "FLUSH_BYTES_MAX": (500, 8_000),
        "GATHER_CHUNKS_MAX": (1, 4),
    },
    "node.connections.server": {"LOOKS_MAX": (1, 4)},
    "security.acls.acl_index": {"ANSWERS_MAX": (1, 5)},
    "security.doors.door": {"DECISIONS_AT_ONCE": (2, 20)},
    "serving.layered_map": {"_OVERLAY_MIN": (0, 4)},
    "serving.steps": {"SLICE_UNITS": (2, 50), "SCANT_UNITS": (1, 10)},
    # A request with more elements is decoded by a worker, which may be slow. So these values exceed the number of
    # elements of all requests between nodes.
    "wire.codec": {"ELEMENTS_AT_ONCE": (100, 400)},
    "wire.batches.compression": {"CHUNK_BYTES": (64, 2_000), "_GZIP_INPUT_BYTES": (16, 2_000)},
    "wire.framing.connection": {"_LARGE_BYTES": (64, 2_000)},
    "wire.framing.frame_pool": {"_BUFFERS_MAX": (0, 1), "_KEPT_BYTES_MAX": (0, 2_000)},
}
_CLIENTS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "client.consumer.consumer_records": {"_LOOK_AGAIN_RECORDS": (1, 8)},
    "client.consumer.delivery": {"_PIECE_RECORDS": (1, 10)},
    "client.consumer.fetch_loop": {"_CHUNKS_AHEAD": (1, 2)},
    "client.consumer.record_runs": {"RUN_MIN": (1, 8), "_KNOWN_MAX": (1, 2)},
    "client.core.known_cluster": {"_IDS_KEPT_MAX": (1, 4)},
    "client.core.requests": {"PARTITIONS_MAX": (1, 4)},
    "client.producer.sender": {"_FAILED_KEPT_MAX": (1, 4)},
    "client.shells.aio": {"_RECEIVE_BYTES": (512, 8_000)},
    "wire.batches.record_columns": {"_RUN_MIN": (2, 16)},
}


def _listed() -> Iterator[Knob]:
    for group in (_LOGS, _BROKER, _QUORUM, _CONNECTIONS, _CLIENTS):
        for module, names in group.items():
            for name, (low, high) in names.items():
                yield Knob(module, name, low, high)


KNOBS: Mapping[str, Knob] = {knob.path: knob for knob in _listed()}
"""All knobs by their paths."""


def draw_knobs(random: Random, *, may_be_many: bool = True) -> dict[str, int]:
    """Draw the knobs of a run. Return the values by path: none in half of the runs, and a few in the others. With
    `may_be_many` some runs have many.

    Many small limits slow down every step of a cluster, so that it exceeds the bounds of outages without a bug.
    """
    if random.random() >= TURNED_PROBABILITY:
        return {}
    if random.random() < MANY_PROBABILITY and may_be_many:
        chosen = [knob for knob in KNOBS.values() if random.random() < MANY_SHARE]
    else:
        few = random.sample(tuple(KNOBS), random.randint(1, FEW_MAX))
        chosen = [knob for knob in KNOBS.values() if knob.path in few]
    return {knob.path: _draw_value(random, knob) for knob in chosen}


def _draw_value(random: Random, knob: Knob) -> int:
    """Draw a value from the knob's range. The values are distributed about evenly on a logarithmic scale, but the
    lowest value is the most frequent.
    """
    if random.random() < LOWEST_PROBABILITY:
        return knob.low
    return knob.low - 1 + int((knob.high - knob.low + 2) ** random.random())
