"""Mutants of transactions: in partitions, in coordinators, and in offsets that wait for the end of a transaction."""

from __future__ import annotations

from tests.mutants.mutant import CAMPAIGN, Mutant

MUTANTS_OF_TRANSACTIONS: tuple[Mutant, ...] = (
    Mutant(
        "stable-over-an-open-transaction",
        "KIP-98: readers of committed records stop at the first open transaction.",
        "odradek.data_plane.log.parts.lazy_producers:_stable_offset",
        """
        - return min(high_watermark, max(state.first_unstable_offset(high_watermark), log_start_offset))
        + return high_watermark
        """,
        CAMPAIGN,
        40,
    ),
    Mutant(
        "prepared-at-a-failover-is-forgotten",
        "KIP-98: a new coordinator completes what it finds in PrepareCommit and PrepareAbort.",
        "odradek.data_plane.transactions.coordinator:TransactionShard._complete_earlier",
        """
        - if transaction.status.is_ending:
        + if transaction.status.is_ending and transaction.start_ms < 0:
        """,
        CAMPAIGN,
        40,
    ),
    Mutant(
        "markers-sent-only-once",
        "KIP-98: a marker that a partition has refused, since its leader moved, is sent again.",
        "odradek.data_plane.transactions.markers:MarkerSender._answered",
        """
        - again.append(partition)
        + ending.left.discard(partition)
        """,
        CAMPAIGN,
        40,
    ),
    Mutant(
        "pending-offsets-count-at-once",
        "KIP-98: offsets of a transaction count when it commits.",
        "odradek.data_plane.groups.state:GroupsState.replay",
        """
        - if first is not None and first.producer is not None:
        + if first is not None and first.producer is not None and (not records):
        """,
        CAMPAIGN,
        40,
    ),
    Mutant(
        "pending-offsets-forgotten-at-failover",
        "KIP-98: a group's new coordinator finds the offsets of open transactions in its log.",
        "odradek.data_plane.groups.state:state_of",
        """
        - LayeredMap(_pending(latest, skipped))
        + LayeredMap({})
        """,
        CAMPAIGN,
        40,
    ),
    Mutant(
        "pending-offsets-told-as-stable",
        "KIP-447: who asks for stable offsets is told to wait while an open transaction may change one.",
        "odradek.data_plane.groups.offsets:OffsetStore.fetch",
        """
        - pending = turn.state.pending_of(request.group_id) if turn.state.pending else NONE_PENDING
        + pending = NONE_PENDING
        """,
        "copy",
        40,
    ),
    Mutant(
        "offsets-of-a-fenced-member-taken",
        "KIP-447: a member of an older generation must not commit, whatever transactional id it has.",
        "odradek.data_plane.groups.offsets:OffsetStore._may_commit_in_transaction",
        """
        + return ErrorCode.NONE
          code = group.validate_member(request.member_id, request.group_instance_id)
        """,
        "copy",
        40,
        aimed_only="a member has to be frozen in the middle of a transaction, while its group has others",
    ),
    Mutant(
        "marker-of-an-older-coordinator-taken",
        "KIP-98: a coordinator that has been replaced ends transactions with the epoch that it had.",
        "odradek.data_plane.log.parts.producer_state:ProducerState.check_marker",
        """
        - if coordinator_epoch < known_coordinator_epoch:
        + if coordinator_epoch < -1:
        """,
        "transactions",
        400,
    ),
    Mutant(
        "timeout-aborts-a-committed-transaction",
        "KIP-98: what is prepared to be committed has no timeout any more.",
        "odradek.data_plane.transactions.state:TransactionsState.replay",
        """
        - elif transactional_id in self.open:
        + elif transactional_id in self.open and transaction is None:
        """,
        "copy",
        40,
        aimed_only="the default storms have copiers in a third of the runs, and time-outs have to be looked for often",
    ),
    Mutant(
        "batches-are-not-verified",
        "KIP-890, part 1: a batch comes so late that its producer has aborted, and no marker will ever end it.",
        "odradek.data_plane.handlers.producing.transactional_batches:TransactionalBatches.collect",
        """
        - if not (self.adds or log.config.verifies_transactions):
        + if not self.adds:
        """,
        "copy",
        40,
        aimed_only="a batch has to lie in a link for longer than its producer's patience",
        also=(
            (
                "odradek.data_plane.log.transaction_rules:check_transaction",
                """
            - if config.verifies_transactions and (not is_open) and (valid is None):
            + if False:
            """,
            ),
        ),
    ),
    Mutant(
        "open-transaction-takes-any-transactional-id",
        "Ours (2026): a batch under another transactional id joins the open transaction of the producer id that it names.",
        "odradek.data_plane.log.parts.lazy_producers:LazyProducers.verify",
        """
        - verifications.verified.get(producer_id) == name
        + verifications.verified
        """,
        "transactions",
        400,
    ),
    Mutant(
        "aborted-index-kept-behind-a-cut",
        "KIP-98: a log that is cut forgets the aborted transactions whose markers are gone.",
        "odradek.data_plane.log.segments.aborted_index:AbortedIndex.truncate",
        """
        - del self._fields[self._first_ending_at(offset) * _FIELDS:]
        + return
        """,
        "copy",
        40,
        aimed_only="a log has to be cut below an abort marker, in the third of the runs that have copiers",
    ),
    Mutant(
        "search-for-aborted-transactions-ends-early",
        "KIP-98: a transaction that ends later may have begun earlier.",
        "odradek.data_plane.log.segments.aborted_index:AbortedIndex.collect",
        """
        - if entry.last_stable_offset >= end_offset:
        + if entry.last_offset >= end_offset:
        """,
        "copy",
        40,
        aimed_only="the default storms have copiers in a third of the runs, and aborts have to overlap",
    ),
    Mutant(
        "late-end-of-the-transaction-before",
        "KIP-890, part 2: an EndTxn that was sent again comes late, and ends the next transaction.",
        "odradek.data_plane.transactions.endings:may_end",
        """
          else:
        -     is_valid = request.producer_epoch == epoch
        +     is_valid = request.producer_epoch == epoch or _is_retry(transaction, request)
        """,
        "copy",
        30,
        aimed_only="the default storms have copiers in a third of the runs",
    ),
    Mutant(
        "open-transactions-not-in-the-snapshot",
        "KIP-98: the snapshot of a log's producers has the first offset of each open transaction.",
        "odradek.data_plane.log.parts.producer_state:ProducerState.decode",
        """
        - begin = max(txn_first, NO_BEGIN)
        + begin = NO_BEGIN
        """,
        "copy",
        40,
    ),
    Mutant(
        "begin-of-a-transaction-lost-at-a-cut",
        "KIP-98: a follower that cuts its log, and is then elected, reads again which transactions are open.",
        "odradek.data_plane.log.parts.lazy_producers:LazyProducers.truncate",
        """
        - self.read_at_need(offset, high_watermark, is_settled=False)
        + self.read_at_need(offset, high_watermark, is_settled=True)
        """,
        "copy",
        30,
        unseen="a leader that has cut its log reads it again for the first batch of any producer, and readers seldom come before",
    ),
    Mutant(
        "promise-above-the-high-watermark",
        "Ours (2026): a coordinator that begins sends markers of a decision that is lost with it, and the next one aborts.",
        "odradek.data_plane.transactions.coordinator:TransactionShard._begin_earlier",
        """
        - if state is not None and high_watermark >= self._loaded_end:
        + if state is not None:
        """,
        "transactions",
        3000,
        aimed_only="once in some thousands of schedules: the first replica has to die between markers and followers' fetches",
    ),
    Mutant(
        "markers-of-the-next-transaction-forgotten",
        "Ours (2026): the end of one transaction takes the markers of the next one with it, which it has just begun.",
        "odradek.data_plane.transactions.markers:MarkerSender._complete",
        """
        - if not self._is_over(ending):
        + if True:
        """,
        "transactions",
        400,
    ),
    Mutant(
        "marker-skipped-while-nobody-leads",
        "KIP-98: a partition without a leader gets its marker from the next one.",
        "odradek.data_plane.transactions.markers:MarkerSender._route",
        """
        - homeless.append((topic, index))
        + ending.left.discard((topic, index))
        """,
        "transactions",
        30,
    ),
    Mutant(
        "stable-over-an-uncommitted-marker",
        "KIP-98: a transaction is decided for readers when its marker is below the high watermark.",
        "odradek.data_plane.log.parts.producer_state:ProducerState.first_unstable_offset",
        """
        - if self.ended:
        + if not self.entries:
        """,
        "copy",
        40,
    ),
    Mutant(
        "older-producer-ends-the-transaction",
        "KIP-98: a producer that another one has replaced is fenced.",
        "odradek.data_plane.transactions.endings:may_end",
        """
          if request.client_version < EPOCHS_GROW_LEVEL:
        -     is_valid = request.producer_epoch == epoch
        +     is_valid = request.producer_epoch <= epoch
        """,
        "copy",
        40,
        aimed_only="a zombie without the newer protocol has to end its transaction after its successor has begun one",
    ),
    Mutant(
        "sequences-forgotten-by-recovery",
        "KAFKA-5793's family: a log that was not closed is read from its snapshot on; here the snapshot is all.",
        "odradek.data_plane.log.parts.producer_recovery:rebuild_producers",
        """
        - replay(segments, state, offset, end_offset, index_interval_bytes)
        """,
        "copy",
        40,
        aimed_only="the default storms have copiers in a third of the runs",
    ),
)
