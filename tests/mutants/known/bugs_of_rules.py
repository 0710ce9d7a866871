"""Mutants of the controller's decisions and of the client's requests for them.

They were written from the product's code and from Kafka's history, without knowledge of the checkers.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CONTROLLER = "odradek.metadata_quorum.controller."
CLIENT = "odradek.client."

MUTANTS_OF_RULES: tuple[Mutant, ...] = (
    Mutant(
        "older-partition-epoch-is-taken",
        "KIP-497: an ISR that was proposed before the last change of the partition takes its place.",
        CONTROLLER + "partitions.alter_partition:_check",
        """
        - if data.partition_epoch < partition.partition_epoch:
        -     return ErrorCode.INVALID_UPDATE_VERSION
        """,
        "cluster",
        60,
        unseen="what the older proposal contains is checked against the newest registrations, too",
    ),
    Mutant(
        "anybody-leads-where-nobody-is-in-sync",
        "KIP-106: an unclean election that the topic's configuration forbids.",
        CONTROLLER + "partitions.partition_change:_least_loss",
        """
        - at_once = election is Election.UNCLEAN
        + at_once = election is not None
        """,
        "power",
        60,
    ),
    Mutant(
        "leader-from-outside-the-isr",
        "KIP-966: a leader has all that is committed, so it was in sync or eligible.",
        CONTROLLER + "partitions.partition_change:_elect",
        """
        - qualified = [each for each in order if each in candidates and acceptable(partition, each)]
        + qualified = [each for each in order if acceptable(partition, each)]
        """,
        "power",
        60,
    ),
    Mutant(
        "unfenced-broker-leads-nothing",
        "KIP-631: when a broker is unfenced, the partitions that wait for it get their leader.",
        CONTROLLER + "brokers.broker_registration:unfence",
        """
        - , *_elect_where_nobody_leads(image, basis, also=broker.broker_id)
        +
        """,
        "power",
        60,
    ),
    Mutant(
        "producer-ids-given-twice",
        "KIP-730: each block of producer ids is handed out once. Here each broker gets the first one.",
        CONTROLLER + "producer_ids:allocate_producer_ids",
        """
        - record = ProducerIdsRecord(request.broker_id, request.broker_epoch, start + PRODUCER_ID_BLOCK_SIZE)
        + record = ProducerIdsRecord(request.broker_id, request.broker_epoch, start)
        """,
        "varied",
        60,
    ),
    Mutant(
        "older-registration-joins-the-isr",
        "KIP-903: the leader saw the follower before it restarted without what it had.",
        CONTROLLER + "partitions.alter_partition:_is_eligible",
        """
        - return state.broker_epoch in (UNKNOWN_BROKER_EPOCH, broker.epoch)
        + return True
        """,
        "power",
        60,
        unseen="the proposal would have to cross a restart that loses power, within one round trip",
    ),
    Mutant(
        "eligible-after-an-unclean-restart",
        "KIP-966: a broker that comes back without its page cache stays eligible.",
        CONTROLLER + "partitions.partition_change:_keep_eligible",
        """
        - candidates.discard(-1 if lost is None else lost)
        """,
        "power",
        60,
        unseen="a loss of power has to meet an eligible replica outside of the ISR, and no other replica may come back",
    ),
    Mutant(
        "repetition-under-new-numbers",
        "KIP-98: a batch keeps its sequence number through all repetitions. Here each attempt takes the next ones.",
        CLIENT + "producer.sender:Sender._encode",
        """
        - if self._identity.needed and batch.base_sequence < 0:
        + if self._identity.needed:
        """,
        "varied",
        60,
    ),
    Mutant(
        "lane-goes-on-beside-its-repetition",
        "KAFKA-5494's neighbourhood: batches behind one that has to be repeated are sent meanwhile.",
        CLIENT + "producer.sender:Sender._ready_at",
        """
        - if not lane.batches or (lane.in_flight and (lane.repeating or lane.rebase is not None)):
        + if not lane.batches or (lane.in_flight and lane.rebase is not None):
        """,
        "varied",
        60,
    ),
    Mutant(
        "reset-to-the-end",
        "KIP-320's neighbourhood: a consumer that is to begin at the earliest record begins behind the latest.",
        CLIENT + "consumer.positions:Positions._list",
        """
        - wanted[state.key] = EARLIEST if policy == 'earliest' else LATEST
        + wanted[state.key] = LATEST
        """,
        "crowd",
        60,
    ),
    Mutant(
        "answer-from-before-a-seek",
        "KAFKA-2168's neighbourhood: what was fetched before the application has sought is handed out after it.",
        CLIENT + "consumer.fetch_loop:Fetching._take",
        """
        - state and state.serial == serial and (state.fetch_offset == offset)
        + state
        """,
        "crowd",
        60,
    ),
    Mutant(
        "position-ahead-of-the-application",
        "KAFKA-3339's neighbourhood: a commit says what was fetched, not what the application has had.",
        CLIENT + "consumer.consumer_machine:ConsumerMachine.positions",
        """
        - found[key] = OffsetAndMetadata(state.position, state.position_epoch)
        + found[key] = OffsetAndMetadata(max(state.position, state.fetch_offset or 0), state.position_epoch)
        """,
        "crowd",
        60,
    ),
)
