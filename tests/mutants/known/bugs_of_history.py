"""Mutants after bugs that logs and quorums have had, each as a change of one function."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RAFT = "odradek.metadata_quorum.raft."
REPLICATION = "odradek.data_plane.replication."

MUTANTS_OF_HISTORY: tuple[Mutant, ...] = (
    Mutant(
        "vote-answered-before-saved",
        "Raft, figure 2: currentTerm and votedFor are 'updated on stable storage before responding to RPCs'.",
        RAFT + "election:on_vote",
        """
          role = core.role
        + _answer_vote(core, request_id, granted=granted)
        ...
          if granted and (not request.pre_vote) and (role.voted is None):
              core.enter(Unattached(role.epoch, request.sender, None, core.random_election_deadline()))
        - _answer_vote(core, request_id, granted=granted)
        """,
        "raft",
        2000,
    ),
    Mutant(
        "metadata-acknowledged-before-sync",
        "KIP-595: the offset of a Fetch is the promise that everything below it has been flushed (KAFKA-13986's family).",
        RAFT + "replication:ask",
        """
        - if core.abstains or core.is_asking(Fetch) or core.log.flushed_offset < core.log.end_offset:
        + if core.abstains or core.is_asking(Fetch):
        """,
        "raft",
        200,
    ),
    Mutant(
        "leader-counts-itself-before-sync",
        "KIP-595: the leader's own copy counts for the high watermark only as far as it has been flushed.",
        RAFT + "replication:count_promises",
        """
        - promised.append(core.log.flushed_offset)
        + promised.append(core.log.end_offset)
        """,
        "raft",
        2000,
    ),
    Mutant(
        "older-term-committed-by-count",
        "Raft, figure 8: an entry of an older term is on a majority, and may still be replaced.",
        RAFT + "replication:count_promises",
        """
        - if offset > role.epoch_start and offset > core.high_watermark:
        + if offset > core.high_watermark:
        """,
        "raft",
        4000,
        aimed_only="three accidents in one order: one schedule of raft in a thousand",
    ),
    Mutant(
        "snapshot-over-newer-entries",
        "KIP-630: a follower whose log goes beyond the snapshot keeps what it has promised.",
        RAFT + "replication:_mismatch",
        """
        - behind = request.offset < log.start_offset
        + behind = request.offset < log.end_offset
        """,
        "raft",
        500,
    ),
    Mutant(
        "vote-for-a-shorter-log",
        "Raft 5.4.1: a voter denies its vote if its own log is more up-to-date (KAFKA-16164's neighbourhood).",
        RAFT + "election:on_vote",
        """
        - up_to_date = (request.log_end.epoch, request.log_end.offset) >= (mine.epoch, mine.offset)
        + up_to_date = request.log_end.offset >= mine.offset
        """,
        "raft",
        2000,
    ),
    Mutant(
        "two-votes-in-an-epoch",
        "Raft 5.2: each server votes for at most one candidate in a given term.",
        RAFT + "election:_may_vote",
        """
        - if role.voted is not None:
        -     return role.voted == candidate
        """,
        "raft",
        2000,
    ),
    Mutant(
        "voters-changed-twice-at-once",
        "KIP-853: one change of voters at a time, or two majorities need not overlap.",
        RAFT + "membership:refusal",
        """
        - if not core.has_committed_in_epoch or core.log.voters_offset >= core.high_watermark:
        + if not core.has_committed_in_epoch:
        """,
        "voters",
        300,
        aimed_only="the drawn schedules change voters seldom",
    ),
    Mutant(
        "truncation-by-high-watermark",
        "KIP-101, scenario 1: a follower cuts its log at its own high watermark, which is late, and is then elected.",
        REPLICATION + "partition:Partition.apply",
        """
        +     if begins:
        +         self.log.truncate_to(self.log.high_watermark)
          self._weigh_isr()
        """,
        "replication",
        500,
    ),
    Mutant(
        "fast-double-failover",
        "KIP-279: after two failovers in a row the leader does not know the follower's epoch; its own end is taken.",
        REPLICATION + "truncation:truncation_offset",
        """
        - if epoch != leader_epoch:
        -     return min(end_offset, log_end_offset)
        - return min(end_offset, leader_end_offset, log_end_offset)
        + return min(leader_end_offset, log_end_offset)
        """,
        "replication",
        3000,
    ),
    Mutant(
        "isr-joined-before-the-epoch-start",
        "KAFKA-7021's neighbourhood: a replica joins that has the high watermark, not what the leader began with.",
        REPLICATION + "partition:Partition._may_expand",
        """
        - (replica.log_end_offset >= self.epoch_start_offset) and self.followers.is_eligible
        + self.followers.is_eligible
        """,
        "replication",
        3000,
        aimed_only="one schedule of replication in five hundred",
    ),
    Mutant(
        "stale-leader-acknowledges",
        "A leader that the controller has fenced takes its own proposal for decided, and acknowledges alone.",
        REPLICATION + "partition:Partition.isr_refused",
        """
        - return code not in _OUTDATED
        + if code in _OUTDATED:
        +     self.isr_state = CommittedIsr(proposal.proposed)
        +     self.look_again()
        + return False
        """,
        "replication",
        2000,
    ),
    Mutant(
        "high-watermark-over-a-removed-replica",
        "KIP-497: until the controller has answered, a replica that shall leave the ISR counts.",
        REPLICATION + "isr_state:PendingShrinkIsr.maximal_isr",
        """
        - return self.committed.isr
        + return self.proposed
        """,
        "replication",
        2000,
    ),
    Mutant(
        "producer-state-lost-at-leader-change",
        "KAFKA-5793's family: followers keep no sequences, so a new leader takes what it has a second time.",
        "odradek.data_plane.log.replica_append:ReplicaAppend._write_run",
        """
        - if header.producer_id >= 0:
        + if header.producer_id < -1:
        """,
        "replication",
        500,
    ),
    Mutant(
        "fetch-session-serves-a-truncated-offset",
        "KIP-227: the session remembers a larger offset than the follower, who has cut its log, asks from.",
        "odradek.data_plane.fetch_sessions:FetchSessions._update",
        """
        - fetched.fetch_offset = asked.fetch_offset
        + fetched.fetch_offset = max(fetched.fetch_offset, asked.fetch_offset)
        """,
        "replication",
        500,
    ),
    Mutant(
        "high-watermark-below-min-isr",
        "KIP-966: with fewer than min.insync.replicas in sync the high watermark must not move.",
        REPLICATION + "partition:Partition._raise_high_watermark",
        """
        - if not self.has_min_isr:
        -     return False
        """,
        "replication",
        500,
    ),
    Mutant(
        "waiting-writes-acknowledged-at-leader-change",
        "A leader that steps down tells those who wait that all is well.",
        REPLICATION + "waiting_requests:WaitingRequests.lose_leadership",
        """
        - waiter.leadership_lost()
        + waiter.acknowledged(ErrorCode.NONE)
        """,
        "replication",
        500,
    ),
    Mutant(
        "older-epoch-not-fenced",
        "KIP-320: a leader answers a follower that follows another term of its.",
        REPLICATION + "partition:Partition.epoch_error",
        """
        - return ErrorCode.FENCED_LEADER_EPOCH
        + return ErrorCode.NONE
        """,
        "replication",
        3000,
    ),
    Mutant(
        "checkpoint-taken-for-the-high-watermark",
        "KIP-392: a follower serves consumers by its checkpoint, before its leader has agreed with its log.",
        REPLICATION + "partition:Partition.reader_error",
        """
        - if not code and (not self.knows_high_watermark):
        + if not code and False:
        """,
        "replication",
        4000,
    ),
    Mutant(
        "lost-directory-sync-at-segment-roll",
        "A new segment's file is synced without its entry in the directory: after a loss of power it is gone.",
        "odradek.data_plane.log.parts.segment_list:SegmentList.sync_entry",
        """
        - self.home.directory.sync()
        """,
        "replication",
        500,
    ),
    Mutant(
        "unclean-restart-stays-in-sync",
        "KAFKA-15586: a broker that comes back from a loss of power, before its session ends, stays in its ISRs.",
        "odradek.metadata_quorum.controller.brokers.broker_registration:register_broker",
        """
        - records += leave_isrs(image, lea
        + records += [] if not clean else leave_isrs(image, lea
        """,
        "power",
        60,
    ),
    Mutant(
        "answers-out-of-order",
        "Kafka's protocol: a connection's answers come in the order of its requests.",
        "odradek.node.connections.answer_queue:AnswerQueue._move_answers",
        """
        - while slots and slots[0].is_answered:
        -     slot = slots.popleft()
        + while slots and slots[-1].is_answered:
        +     slot = slots.pop()
        """,
        "order",
        20,
        aimed_only="a client closes the connection at a wrong correlation id and asks again: no promise breaks",
    ),
    Mutant(
        "log-closed-under-a-worker",
        "A topic is deleted while retention reads its indexes in a worker: what that meets passes for a failed disk.",
        "odradek.data_plane.log.directory.log_dir_background:Background._apply_retention",
        """
        - except (DiskRefused, FileClosed):
        + except DiskRefused:
        """,
        "churn",
        100,
        aimed_only="a topic has to go while a worker reads its indexes; campaigns delete topics seldom",
    ),
    Mutant(
        "replaced-disk-is-elected",
        "KIP-966: the last known leader is elected when it is back, though its log is on a new, empty disk (as in Kafka).",
        "odradek.metadata_quorum.controller.brokers.directories:begins_anew",
        """
        - return before not in broker.log_dirs
        + return False
        """,
        "replaced",
        60,
        aimed_only="a disk has to be replaced while no other replica is in sync",
    ),
    Mutant(
        "partition-given-before-it-is-given-up",
        "KIP-429: a partition that changes hands is in no assignment until its owner has revoked it.",
        "odradek.client.consumer.assignors:CooperativeStickyAssignor.assign",
        """
        - [key for key in keys if owners.get(key, member_id) == member_id]
        + list(keys)
        """,
        "crowd",
        60,
    ),
    Mutant(
        "parts-of-a-batch-change-places",
        "KIP-126's neighbourhood: parts of a batch that was too large come back in another order.",
        "odradek.client.producer.sender:_older",
        """
        - return True
        + return batch.opened_at < other.opened_at
        """,
        "varied",
        60,
        aimed_only="a batch has to be cut in two while its lane begins new numbers",
    ),
    Mutant(
        "produce-acknowledged-at-its-timeout",
        "Kafka's produce purgatory: what is not on all replicas in sync when its time is up is answered with an error.",
        "odradek.data_plane.handlers.producing.delayed_produce:DelayedProduce._time_out",
        """
        - set_error(waiter.answer, ErrorCode.REQUEST_TIMED_OUT, None)
        + set_error(waiter.answer, ErrorCode.NONE, None)
        """,
        "varied",
        60,
    ),
    Mutant(
        "consumer-beyond-high-watermark",
        "Kafka's guarantee: consumers read committed records only. What is not on all replicas in sync may vanish.",
        "odradek.data_plane.handlers.fetching.fetch_job:FetchJob.upper_bound",
        """
        - return log.last_stable_offset if self.committed else log.high_watermark
        + return log.last_stable_offset if self.committed else log.log_end_offset
        """,
        "cluster",
        10,
    ),
    Mutant(
        "latest-before-epoch-commits",
        "KIP-207: a new leader answers by a high watermark that lags behind what the leader before had acknowledged.",
        "odradek.data_plane.handlers.fetching.offsets:find_offset",
        """
        - lags = not to_end and log.high_watermark < partition.epoch_start_offset
        + lags = False
        """,
        "offsets",
        30,
    ),
    Mutant(
        "deleted-records-return",
        "KIP-107: after a restart the log begins at its first segment, and what was deleted within it is back.",
        "odradek.data_plane.log.directory.log_loader:LogLoader._load_one",
        """
        - log_start_offset=known.starts.get(key, -1), first_dirty_off
        + log_start_offset=-1, first_dirty_off
        """,
        "offsets",
        10,
    ),
    Mutant(
        "recovery-point-before-sync",
        "A recovery point says that all below it is on the device. It moves over finished segments that were not synced.",
        "odradek.data_plane.log.parts.durability:Durability.flush",
        """
        - segment.flush(file_name(following.base_offset, SNAPSHOT_SUFFIX))
        + pass
        """,
        "cluster",
        10,
    ),
    Mutant(
        "clean-marker-before-sync",
        "KIP-966: the marker of a clean shutdown vouches for logs that are in the page cache only.",
        "odradek.data_plane.log.partition_log:PartitionLog.close",
        """
        - self.flush()
        """,
        "cluster",
        10,
    ),
    Mutant(
        "index-kept-behind-a-cut",
        "A truncation leaves index entries for offsets that are gone, and that other batches get later.",
        "odradek.data_plane.log.segments.segment_index:SegmentIndex.truncate",
        """
        - del self.offsets[kept:]
        - del self.positions[kept:]
        """,
        "cluster",
        40,
    ),
)
