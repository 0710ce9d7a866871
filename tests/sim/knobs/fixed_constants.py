"""Numeric constants of the product that are not knobs, in groups with a reason for each."""

from __future__ import annotations

from collections.abc import Mapping

MODULES: Mapping[str, str] = {
    "wire.": "Kafka's formats and its protocol",
    "metadata_quorum.config.": "the kinds and units of Kafka's configurations",
    "metadata_quorum.describing.": "costs of descriptions, and Kafka's numbers",
    "operations.": "a tool for the metadata log, which no node runs",
    "metadata_quorum.recovery.": "a tool for the metadata log, which no node runs",
    "client.admin.": "Kafka's numbers, and commands that plan moves",
    "client.shells.": "clients with threads and real sockets",
    "data_plane.telemetry.": "figures that clients push, which no simulated client does",
    "data_plane.handlers.client_telemetry.": "figures that clients push, which no simulated client does",
    "data_plane.groups.consumers.xxh3.": "a hash that Kafka defines",
    "serving.api_versions.": "names of client libraries, for people",
    "env.": "this machine: real files, sockets and processes",
    "security.audit.": "lines for people",
    "security.oauth.": "logins that the simulator lacks",
    "security.handshakes.": "TLS, which the simulator lacks",
    "security.idle_records.": "TLS, which the simulator lacks",
    "security.tls_conn.": "TLS, which the simulator lacks",
    "security.certificate_validity.": "the format of certificates",
    "security.distinguished_names.": "the format of certificates",
    "security.scram.": "bounds of a login, of which Kafka has some",
    "security.salt_forms.": "bounds of a login, of which Kafka has some",
    "security.dialing.": "versions and bounds of a login",
    "console.": "pages in a browser, by a process of its own that no simulated cluster has",
    "node.supervision.console_door.": "starts the process of the console",
    "node.metrics.": "a page for monitoring, which the simulator does not read",
    "node.supervision.service_manager.": "words for systemd, which only a real process has",
    "node.garbage.": "the interpreter's own memory",
}
"""Modules and packages all of whose constants are fixed, with the reason."""
TIMES = "settings, weather and troubles draw times; bounds of liveness count with these"
"""The reason for all constants whose names end in a unit of time, optionally with `_MIN` or `_MAX`."""
SENTINELS = "stands for no value, or is the end of a type's range"
"""The reason for negative numbers, for names that begin with `NO_`, and for limits of integer types."""
NAMED: Mapping[str, str] = {
    "a number, a version or a size of Kafka's protocol, or of a format on disk": """
        client.consumer.assignors _PROTOCOL_VERSION_MAX
        client.consumer.consumer_membership _PATTERN_VERSION
        client.consumer.delivery _ABORT
        client.consumer.fetch_loop _READ_COMMITTED
        client.consumer.member_machine JOIN_EPOCH
        client.core.coordinator_finder COORDINATOR_LANE BESIDE_JOIN_LANE
        client.consumer.fetch_loop FETCH_LANE
        client.core.scatter _GROUP_KEY _TRANSACTION_KEY
        client.producer.partitioner _SEED _M _MASK
        client.producer.sender _SEQUENCE_END _BATCHES_KNOWN
        client.producer.transactions _IMPLICIT_LEVEL
        node.connections.charging _MS_PER_SECOND
        node.connections.complaints _TLS_HANDSHAKE
        node.connections.connection_loop FRAME_BYTES_MIN
        node.supervision.signals LEFT_BEHIND_STATUS
        serving.authorized_operations BROKERS_ENDPOINT CONTROLLERS_ENDPOINT
        metadata_quorum.controller.access.client_quotas _EPSILON
        metadata_quorum.controller.brokers.broker_registration FENCE IN_CONTROLLED_SHUTDOWN
        metadata_quorum.controller.brokers.leaving_isrs AT_ONCE
        metadata_quorum.controller.features UPGRADE SAFE_DOWNGRADE UNSAFE_DOWNGRADE
        metadata_quorum.controller.partitions.elect_leaders PREFERRED UNCLEAN
        metadata_quorum.features EPOCHS_GROW_LEVEL METADATA_VERSION_4_3 KRAFT_VERSION_LEVEL
        metadata_quorum.image.metadata_image RECOVERED RECOVERING
        metadata_quorum.replica.asking.own_copy NUMBER_BITS
        metadata_quorum.replica.storage_format _RESERVED_DIRECTORY_IDS
        metadata_quorum.topic_names TOPIC_NAME_LENGTH_MAX
        data_plane.fetch_sessions INITIAL_EPOCH
        data_plane.groups.consumers.consumer_group JOINING_EPOCH LEAVING_EPOCH STATIC_LEAVING_EPOCH FIRST_EPOCH
        data_plane.groups.consumers.consumer_group BYTES_PER_WEIGHT TOPIC_OVERHEAD_BYTES WEIGHT_OF_PATTERN
        data_plane.groups.record_sizes DASHED_UUID_BYTES
        data_plane.groups.records GROUP_METADATA_VERSION OFFSET_COMMIT_VERSION OFFSET_COMMIT_VERSION_WITH_EXPIRY
        data_plane.handlers.fetching.fetch_job READ_COMMITTED
        data_plane.log.cleaning.key_hash _PIECE _LANES
        data_plane.log.cleaning.offset_map SLOT_BYTES _SLOTS_MIN _PRIME_GAP_MAX
        data_plane.log.cleaning.pass_values SECRET_BYTES
        data_plane.log.directory.checkpoints _CLEAN_SHUTDOWN_VERSION
        data_plane.log.directory.future_logs NAME_BYTES_MAX
        data_plane.log.directory.log_dir _NAME_BYTES_MAX
        data_plane.log.loading _NAME_DIGITS
        data_plane.log.log_config OFFSET_ENTRY_BYTES TIME_ENTRY_BYTES
        data_plane.log.parts.producer_entry BATCHES_KEPT FIELDS
        data_plane.log.parts.producer_state _SNAPSHOT_VERSION _CRC_END
        data_plane.log.parts.swap_files _NAME_DIGITS
        data_plane.log.segments.aborted_index _FIELDS _VERSION
        data_plane.metadata_log _SEGMENT_BYTES_MAX
        data_plane.replication.following.fetcher FETCH_VERSION LIST_OFFSETS_VERSION
        data_plane.replication.following.follower_fetch_session INITIAL_EPOCH
        data_plane.replication.isr_changes LEADER_RECOVERED
        data_plane.replication.throttle DIGITS_MAX
        data_plane.transactions.state RECORD_VERSION_FLEXIBLE _FIXED_BYTES_MAX _TOPIC_BYTES_MAX _PARTITION_BYTES
        data_plane.transactions.verifier ADDED_BY_BROKERS
    """,
    "a limit beyond which something is refused, or answered less well, as documented": """
        client.consumer.delivery DECOMPRESSED_BYTES_MAX
        client.consumer.record_runs _DELTAS_MAX
        node.configuration.node_config SECRETS_CHARACTERS_MAX
        node.connections.answers HELD_IN_ALL_BYTES_MAX
        node.connections.buffers KEEP_FREE_BYTES SMALL_FRAME_BYTES SMALL_SHARE BYTES_PER_SECOND_MIN
        node.connections.buffers EVICTED_AT_ONCE_MAX
        client.producer.transactions _COORDINATORS_MAX
        node.connections.complaints PEERS_MAX
        node.connections.connection_limits LOGS_SHARE OWN_DESCRIPTORS CLIENT_ROOM_MIN
        node.connections.entrance LARGE_FRAME_BYTES LARGE_BYTES_MAX HALF_OPEN_MAX
        node.connections.listener_settings SEND_BUFFER_BYTES RECEIVE_BYTES_MAX
        node.entrances STRANGERS_OVERHEAD_BYTES_MAX
        security.doors.token_doors RENEWERS_MAX RENEWERS_BYTES_MAX OWNER_BYTES_MAX
        serving.answer_size REPEATED_BYTES_MAX
        metadata_quorum.controller.access.acls COMPARED_PER_REQUEST_MAX
        metadata_quorum.controller.brokers.registration_rules NAME_CHARACTERS_MAX LISTENERS_MAX FEATURES_MAX
        metadata_quorum.controller.brokers.registration_rules LOG_DIRS_MAX
        metadata_quorum.controller.limits RECORDS_PER_REQUEST_MAX NAMED_PER_REQUEST_MAX
        metadata_quorum.raft.core EPOCHS_AHEAD_MAX
        metadata_quorum.raft.recoveries RECOVERY_EPOCHS_MIN
        metadata_quorum.raft.replication REPLICAS_MAX
        metadata_quorum.replica.asking.own_copy QUESTIONS_MAX
        metadata_quorum.replica.meta_properties _SIZE_MAX
        metadata_quorum.replica.metadata_batches DECOMPRESSED_BYTES_MAX
        metadata_quorum.replica.peers UNANSWERED_MAX
        metadata_quorum.replica.quorum_leader WAITING_BYTES_MAX
        metadata_quorum.replica.quorum_state _SIZE_MAX
        data_plane.coordination.decision_log DECOMPRESSED_BYTES_MAX
        data_plane.disks.disk_watch ROOM_BYTES ROOM_SHARE
        data_plane.groups.consumers.assignors BALANCING_ROUNDS_MAX
        data_plane.groups.consumers.migration IMAGE_LAG_MS_MAX
        data_plane.handlers.grouping.consumer_groups TOPIC_NAMES_MAX
        serving.patterns READING_MICROSECONDS_MAX AUTOMATON_BYTES_MAX _REPEATS_MAX
        data_plane.handlers.fetching.offsets TIME_QUERIES_WAITING_MAX WALK_BYTES_MAX
        data_plane.handlers.metadata CREATED_PER_REQUEST_MAX CREATED_AT_ONCE_MAX
        data_plane.handlers.producing.batches_left ANY_SIZE
        data_plane.log.batch_work RATIO_MAX REQUEST_BYTES_MIN REQUEST_RATIO
        data_plane.log.cleaning.log_cleaner _IO_BYTES_MIN
        data_plane.log.cleaning.pass_run ROOM_SPARE_BYTES
        data_plane.log.directory.log_dir_background _WALK_BYTES
        data_plane.log.directory.room RESERVE_BYTES_MAX RESERVE_SHARE _CONFIGURED_SHARE_MAX _RESUME_SHARE _NEAR_FACTOR
        data_plane.log.dump _DECOMPRESSED_BYTES_MAX
        data_plane.log.loading _SMALL_FILE_BYTES
        data_plane.log.record_rules RECORD_ERRORS_MAX RECORDS_PARSED_MAX
        data_plane.log.segments.walked_times UNBOUNDED
        data_plane.metadata_snapshots SNAPSHOT_BYTES_MAX
        data_plane.quotas.client_quotas ACCOUNTS_MAX
        data_plane.transactions.machine APPEND_BYTES_MAX
        data_plane.transactions.marker_senders SENDERS_MAX
    """,
    "a cost, a weight or an estimate of bytes: limits that are knobs are counted in them": """
        client.producer.accumulator _RECORD_OVERHEAD _HEADER_OVERHEAD _ROW_MEMORY _ROW_BYTES _ROWS_MORE _BATCH_MEMORY
        client.producer.sender _REQUEST_OVERHEAD
        node.connections.listeners_charging _UNITS_OF_A_WAIT
        metadata_quorum.controller.access.acls COMPARED_PER_FILTER
        metadata_quorum.controller.parts ACCESS_WEIGHT
        data_plane.coordination.shards DECISION_UNITS
        data_plane.groups.offsets RECORD_OVERHEAD_BYTES
        data_plane.groups.record_sizes GROUP_OVERHEAD_BYTES MEMBER_OVERHEAD_BYTES PROTOCOL_OVERHEAD_BYTES
        data_plane.handlers.fetching.empty_batches _BYTES_MAX
        data_plane.handlers.fetching.fetch_job READ_UNITS
        data_plane.handlers.grouping.find_coordinator KEY_CHARACTERS_PER_UNIT
        data_plane.handlers.grouping.group_offsets PARTITION_BYTES DECIDED_UNITS SIZES_PER_UNIT
        data_plane.handlers.grouping.group_requests GROUP_BYTES LISTED_PER_UNIT
        data_plane.handlers.producing.producers PRODUCER_BYTES
        data_plane.handlers.transacting.descriptions DESCRIBED_BYTES
        data_plane.log.batch_work RECORD_COST RECORD_BYTES
        data_plane.log.segments.walked_times RECORD_COST
        data_plane.transactions.marker_writer APPEND_UNITS
        data_plane.transactions.state CHARACTERS_PER_WEIGHT PARTITIONS_PER_WEIGHT
    """,
    "a number of attempts, or a part of a timeout: liveness hangs on it": """
        client.consumer.group_membership _PROBES_MAX _SYNC_REQUEST_TIMEOUTS
        client.core.broker_connection RENEWED_SHARE
        client.core.known_cluster ANSWERS_IN_A_ROW STALE_TIMES
        node.broker_lifecycle UNANSWERED_MAX DUPLICATE_SESSIONS RIVAL_TIMES HEARTBEATS_PER_SUSPICION
        serving.long_work REST_FACTOR
        metadata_quorum.controller.broker_sessions SLEEPS_PER_TIMEOUT
        metadata_quorum.controller.controller SESSION_CHECKS_PER_TIMEOUT
        metadata_quorum.process_watch LOOKS_PER_SUSPICION COMPARISONS_PER_SUSPICION
        data_plane.handlers.grouping.find_coordinator SHORT_CHARACTERS_MAX
        data_plane.replication.peer_silence FETCH_WAITS_MIN PAUSES_PER_SUSPICION
        metadata_quorum.raft.core_state FIRST_WAIT
        metadata_quorum.raft.election CHECK_QUORUM_FETCH_TIMEOUTS BEGIN_EPOCH_PER_FETCH_TIMEOUT BROKEN_CONNECTION_JITTER
        metadata_quorum.replica.asking.own_copy LOOKS_PER_WINDOW
        metadata_quorum.replica.peers RETRY_JITTER
        metadata_quorum.replica.quorum_leader LATE_PER_FETCH_TIMEOUT
        metadata_quorum.quotas.token_bucket _RATE_MIN
        data_plane.disks.scrubber BYTES_PER_SECOND_MIN _HASTE
        data_plane.log.cleaning.log_cleaner _DOUBLINGS_MAX
        data_plane.log.directory.sync_latency SLOW_FACTOR NORMAL_FACTOR SYNCS_MIN _RECENT _USUAL
        data_plane.produce_workers SMALL_THREADS
    """,
    "what people are shown, in a log or in an error": """
        node.configuration.file_judgement _ALIKE
        client.consumer.rebalances _NAMED_MAX
        node.directories _NAMED_MAX
        metadata_quorum.recovery.evidence _NUMBERS_MAX
        client.core.notes NOTES_MAX KEYS_MAX
        security.acls.authorizer DENIALS_MAX
        metadata_quorum.image.unreadable_configs REASON_LENGTH_MAX
        metadata_quorum.replica.asking.quorum_peers FAILURES_LOGGED_AT_ONCE
        metadata_quorum.state_machine ERROR_LENGTH_MAX
        data_plane.groups.state SHOWN_BYTES
        data_plane.line_budget LINES_MAX
        data_plane.log.record_rules _SHOWN
        data_plane.transactions.state SHOWN_BYTES
        data_plane.log.parts.verification _NAME_LENGTH_MAX
    """,
    "read when its module is loaded, so that a later value has no effect": """
        client.producer.partitioner _REMEMBERED_KEYS_MAX _REMEMBERED_BYTES_MAX
        security.acls.authorizer REMEMBERED_MAX
        security.tokens LOGINS_MAX
    """,
}


def named() -> dict[str, str]:
    """Return the reason of each constant in `NAMED`, by path."""
    found = {}
    for reason, lines in NAMED.items():
        for line in lines.split("\n"):
            module, *names = line.split() or ("",)
            found |= {f"{module}.{name}": reason for name in names}
    return found
