"""Mutants of replication between brokers: in-sync replicas, high watermarks, fetches and acknowledgements."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REPLICATION = "odradek.data_plane.replication."
PARTITION = REPLICATION + "partition:Partition."

BUGS_OF_REPLICAS: tuple[Mutant, ...] = (
    Mutant(
        "outdated-change-taken-for-refused",
        "An ISR was decided, and its answer was lost. Asked again, it is taken for refused: its new member may lack acknowledged records.",
        PARTITION + "isr_refused",
        """
        - if code in _NOT_APPLIED:
        + if code in _NOT_APPLIED or code in _OUTDATED:
        """,
    ),
    Mutant(
        "deletion-answered-before-it-is-stored",
        "DeleteRecords is answered when the new start is in memory: after a loss of power the deleted records are back.",
        PARTITION + "low_watermark",
        """
        - lowest = self.log.stored_start_offset
        + lowest = self.log.log_start_offset
        """,
    ),
    Mutant(
        "flush-messages-cached",
        "flush.messages that is set on a living topic has no effect on acknowledgements: they come before the sync.",
        PARTITION + "set_config",
        """
        - self.flushes = config.flush_messages < LONG_MAX
        """,
    ),
    Mutant(
        "min-isr-cached",
        "min.insync.replicas that is raised on a living topic has no effect until the ISR changes: one copy is enough.",
        PARTITION + "set_config",
        """
        - self._weigh_isr()
        """,
    ),
    Mutant(
        "min-isr-of-replicas-that-are-removed",
        "The cap on min.insync.replicas is the ISR instead of the replicas: a record is acknowledged with one copy.",
        PARTITION + "effective_min_isr",
        """
        - replicas = 1 if self.image is None else len(self.image.replicas)
        + replicas = 1 if self.image is None else len(self.image.isr)
        """,
    ),
    Mutant(
        "follower-commits-all-that-it-has",
        "A follower takes all that it has for committed: as the next leader it serves records that are cut away later.",
        PARTITION + "follow",
        """
        - log.advance_high_watermark(min(high_watermark, log.log_end_offset))
        + log.advance_high_watermark(log.log_end_offset)
        """,
    ),
    Mutant(
        "caught-up-once-is-caught-up",
        "A replica that has ever reached the end stays in sync while it fetches at all: a slow disk holds up all producers.",
        REPLICATION + "remote_replica:RemoteReplica.note_fetch",
        """
        - elif offset >= self.last_fetch_leader_end_offset:
        -     caught_up_ms = self.last_fetch_ms
        + elif offset >= self.log_end_offset:
        +     caught_up_ms = now_ms
        """,
    ),
    Mutant(
        "promise-of-the-broker-before",
        "A fetch that a broker sent in its earlier life counts for its new one, which has lost its unsynced tail.",
        PARTITION + "note_fetch",
        """
        - if broker_epoch < max(0, registered):
        + if broker_epoch < 0:
        """,
    ),
    Mutant(
        "answer-for-the-log-before-a-cut",
        "A fetch's answer is appended although the follower was cut and filled again meanwhile: only the offset is compared.",
        REPLICATION + "following.fetcher:LeaderFetcher._take_partition",
        """
        - requested[:3] != followed.wanted()[:3]
        + requested[:1] != followed.wanted()[:1]
        """,
    ),
    Mutant(
        "begins-anew-at-the-leaders-end",
        "A follower whose log lies below the leader's start begins anew at the leader's end: it is in sync, and lacks all.",
        REPLICATION + "following.fetcher:LeaderFetcher._settle_ranges",
        """
        - self._begin_anew(log, start)
        + self._begin_anew(log, end)
        """,
    ),
    Mutant(
        "settled-before-the-high-watermark-is-told",
        "Fetch answers leave out an idle follower before it has the high watermark: after a failover, consumers wait for acknowledged records.",
        "odradek.data_plane.handlers.fetching.fetch_job:FetchJob._may_settle",
        """
        - fetched.sent_high_watermark == log.high_watermark and (fetched.sent_log_start_offset == log.log_start_offset)
        + fetched.sent_log_start_offset == log.log_start_offset
        """,
    ),
    Mutant(
        "throttle-holds-replicas-in-sync",
        "The throttle of a move holds replicas that are in sync, too: they fall out of the ISR, and producers stop.",
        "odradek.data_plane.handlers.fetching.fetch_job:FetchJob._throttle_of",
        """
        - throttle.is_set and self.replica_id not in partition.isr_state.maximal_isr and throttle.applies_to
        + throttle.is_set and throttle.applies_to
        """,
    ),
    Mutant(
        "epoch-without-records-reported",
        "A replica reports the epoch of its last lead, in which it wrote nothing: unclean recovery takes it for the newest log.",
        REPLICATION + "leaderless_replicas:LeaderlessReplicas._info",
        """
        - written = log.epochs.last_written(log.log_end_offset)
        + written = log.latest_epoch
        """,
    ),
)
