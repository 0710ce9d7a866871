"""Mutants of the controller's decisions, and of the image into which they are replayed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CONTROLLER = "odradek.metadata_quorum.controller."
PARTITIONS = CONTROLLER + "partitions."
BROKERS = CONTROLLER + "brokers."
IMAGE = "odradek.metadata_quorum.image."

BUGS_OF_THE_CONTROLLER: tuple[Mutant, ...] = (
    Mutant(
        "new-disk-counts-as-in-sync",
        "A replica that begins anew on another disk stays in the ISR: an empty log leads, and acknowledged records are gone.",
        BROKERS + "directories:_assign",
        """
        - begun_anew=broker.broker_id if anew or is_given_up else None
        + begun_anew=broker.broker_id if is_given_up else None
        """,
    ),
    Mutant(
        "unfenced-before-it-has-caught-up",
        "A broker serves before it has replayed its own registration: it answers by the metadata of yesterday.",
        BROKERS + "broker_registration:heartbeat",
        """
        - caught_up = request.current_metadata_offset >= broker.epoch
        + caught_up = request.current_metadata_offset >= 0
        """,
    ),
    Mutant(
        "reassignment-ends-with-the-first",
        "A move ends when any new replica is in sync: the old ones go, and the partition has one copy.",
        PARTITIONS + "partition_change:_complete_reassignment",
        """
        - if isr and replicas and (set(replicas) <= set(isr)):
        + if isr and replicas:
        """,
    ),
    Mutant(
        "recovery-takes-the-longest-log",
        "Unclean recovery prefers a long log to a newer epoch: records that were acknowledged last are cut away.",
        CONTROLLER + "unclean_recovery:Recovery.elect",
        """
        - return (info.last_written_leader_epoch, info.log_end_offset, -order.index(broker_id))
        + return (info.log_end_offset, info.last_written_leader_epoch, -order.index(broker_id))
        """,
    ),
    Mutant(
        "recovery-believes-an-earlier-life",
        "Unclean recovery takes the report of a broker that has lost its tail since: records are lost without need.",
        CONTROLLER + "unclean_recovery:Recovery.elect",
        """
        - self.brokers[broker_id].epoch == info.broker_epoch and may_lead(broker_id)
        + may_lead(broker_id)
        """,
    ),
    Mutant(
        "new-controller-fences-all",
        "A new controller knows no broker's session and finds all of them expired: the cluster stands still.",
        CONTROLLER + "broker_sessions:BrokerSessions.start",
        """
        - self._contacts = {broker.broker_id: _Contact(now_ms) for broker in image.brokers.values() if not broker.fenced}
        + self._contacts = {}
        """,
    ),
    Mutant(
        "blocks-of-producer-ids-overlap",
        "Off by one: the next block begins with the last id of this one, and two producers share an id.",
        CONTROLLER + "producer_ids:allocate_producer_ids",
        """
        - start + PRODUCER_ID_BLOCK_SIZE
        + start + PRODUCER_ID_BLOCK_SIZE - 1
        """,
    ),
    Mutant(
        "config-of-a-deleted-topic-stays",
        "A topic that is created again has the configuration of the deleted one: its records may expire at once.",
        IMAGE + "image_builder:ImageBuilder._remove_topic",
        """
        - self._changes.configs[RESOURCE_TOPIC, change.name] = {}
        """,
    ),
    Mutant(
        "snapshot-lacks-the-next-producer-id",
        "Ids of producers begin at zero after a snapshot: a new producer's records are taken for an old one's duplicates.",
        IMAGE + "image_records:records_of",
        """
        - if image.next_producer_id:
        -     yield ProducerIdsRecord(NOBODY, NOBODY, image.next_producer_id)
        """,
    ),
    Mutant(
        "snapshot-swaps-adding-and-removing",
        "A move that is under way when a snapshot is loaded ends with the wrong replicas: the new copies are thrown away.",
        IMAGE + "image_records:_partition",
        """
        - removing_replicas=list(partition.removing_replicas), adding_replicas=list(partition.adding_replicas)
        + removing_replicas=list(partition.adding_replicas), adding_replicas=list(partition.removing_replicas)
        """,
    ),
    Mutant(
        "snapshot-lacks-delegation-tokens",
        "Clients that log in with a token are refused once the brokers have loaded a snapshot.",
        IMAGE + "access_image:AccessImage.records",
        """
        - for token_id in sorted(self.delegation_tokens):
        + for token_id in ():
        """,
    ),
    Mutant(
        "replicas-share-a-rack",
        "Placement forgets racks, and a whole partition is lost with one of them.",
        PARTITIONS + "placement:_replicas",
        """
        - (not place.active, racks[place.rack], hosts[place.rack, place.host])
        + (not place.active, hosts[place.rack, place.host])
        """,
    ),
    Mutant(
        "unregistered-broker-stays-in-sync",
        "A broker that was unregistered stays in the ISRs, so its partitions have no leader or wait for it.",
        BROKERS + "unregistration:unregister_broker",
        """
        - records: list[Message] = leave_isrs(image, {broker.broker_id: AT_ONCE}, basis)
        + records: list[Message] = []
        """,
    ),
    Mutant(
        "elr-emptied-with-one-in-sync",
        "Eligible leaders are forgotten while fewer than min.insync.replicas are in sync: the last disk to die takes all.",
        PARTITIONS + "partition_change:_is_sufficient",
        """
        - min(rules.min_isr, len(target.replicas)) if rules.eligible_replicas else 1
        + 1
        """,
    ),
    Mutant(
        "one-broker-two-directories-offline",
        "Only the first directory that a broker reports offline counts: replicas on the second lead on, and answer nothing.",
        BROKERS + "broker_registration:_directories_offline",
        """
        - newly_offline = [directory for directory in broker.log_dirs if directory in offline]
        + newly_offline = [directory for directory in broker.log_dirs if directory in offline][:1]
        """,
    ),
)
