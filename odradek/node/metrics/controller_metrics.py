"""The metrics of the metadata quorum and, on the active controller, of the whole cluster. PURE.

As in Kafka, the cluster's figures are 0 on all nodes except the active controller, so that their sum is right. They
are counted from the committed image when the page is requested.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from odradek.metadata_quorum.controller.decision_figures import DecisionFigures
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.image.unreadable_configs import MetadataErrors
from odradek.metadata_quorum.replica.raft_quorum import RaftQuorum
from odradek.node.metrics.hosted_figures import Slices
from odradek.node.metrics.image_figures import ImageCounter, ImageFigures
from odradek.node.metrics.metrics_text import MetricsText

__all__ = ["ClusterFigures", "Metadata", "cluster_figures", "controller_metrics"]


class Metadata(Protocol):
    """The part of `MetadataService` that this module uses."""

    @property
    def is_active(self) -> bool: ...

    @property
    def committed_image(self) -> MetadataImage: ...

    @property
    def lag_records(self) -> int: ...

    @property
    def errors(self) -> MetadataErrors: ...

    @property
    def quorum(self) -> RaftQuorum: ...

    @property
    def decided(self) -> DecisionFigures: ...


@attrs.frozen
class ClusterFigures:
    """Counts over all partitions and brokers of an image."""

    active_brokers: int = 0
    fenced_brokers: int = 0
    topics: int = 0
    partitions: int = 0
    offline_partitions: int = 0
    imbalanced_partitions: int = 0


def cluster_figures(image: MetadataImage, counted: ImageFigures) -> ClusterFigures:
    """Count the brokers and topics of an image. As in Kafka, brokers in controlled shutdown count as active."""
    fenced = sum(broker.fenced for broker in image.brokers.values())
    return ClusterFigures(
        len(image.brokers) - fenced,
        fenced,
        len(image.topics),
        counted.partitions,
        counted.offline,
        counted.imbalanced,
    )


def controller_metrics(
    page: MetricsText, metadata: Metadata, counter: ImageCounter
) -> Slices[ClusterFigures]:
    """Add two groups of metrics to the page: the quorum as this node knows it, and the figures of the
    cluster. Returns the latter.
    """
    figures = ClusterFigures()
    if metadata.is_active:
        image = metadata.committed_image
        figures = cluster_figures(image, (yield from counter.count(image)))
    quorum = metadata.quorum
    page.gauge("odradek_quorum_epoch", "Epoch of the metadata quorum: it rises with every election.")
    page.one(quorum.leader_epoch)
    page.gauge("odradek_quorum_leader", "Node id of the quorum's leader; -1 if this node knows none.")
    page.one(-1 if quorum.leader_id is None else quorum.leader_id)
    page.gauge("odradek_quorum_high_watermark", "End of the committed part of the metadata log.")
    page.one(quorum.decisions.high_watermark)
    page.gauge("odradek_quorum_log_end_offset", "End offset of this node's metadata log.")
    page.one(quorum.decisions.log_end_offset)
    page.gauge("odradek_quorum_lag_records", "Committed metadata records that this node has not applied yet.")
    page.one(metadata.lag_records)
    page.counter(
        "odradek_metadata_errors_total",
        "Values in the metadata log that this node cannot read, so that it uses older ones.",
    )
    page.one(metadata.errors.count)
    page.gauge("odradek_active_controller", "1 on the active controller, 0 on every other node.")
    page.one(int(metadata.is_active))
    page.gauge(
        "odradek_quorum_voter_silent_seconds",
        "Time since the last fetch of another voter, or since this node became the leader. Reported by the leader.",
    )
    for node_id, seconds in sorted(quorum.silent_seconds().items()):
        page.sample(seconds, voter=node_id)
    page.counter("odradek_quorum_elections_total", "Elections in which this node was a candidate.")
    page.one(quorum.elections)
    page.counter(
        "odradek_quorum_election_seconds_total",
        "Total time of these elections, from the first request for votes until this node knew the new leader.",
    )
    page.one(quorum.election_seconds)
    _decided(page, metadata.decided)
    for number, name, described in (
        (figures.active_brokers, "brokers", "Registered brokers that are not fenced."),
        (figures.fenced_brokers, "fenced_brokers", "Registered brokers that are fenced."),
        (figures.topics, "topics", "Topics of the cluster."),
        (figures.partitions, "partitions", "Partitions of the cluster."),
        (figures.offline_partitions, "offline_partitions", "Partitions without a leader."),
        (figures.imbalanced_partitions, "imbalanced_partitions", "Partitions not led by their preferred replica."),
    ):  # fmt: skip
        page.gauge(f"odradek_cluster_{name}", f"{described} Reported by the active controller, else 0.")
        page.one(number)
    return figures


def _decided(page: MetricsText, decided: DecisionFigures) -> None:
    """Add figures about this node's decisions as the active controller to the page."""
    for number, name, described in (
        (decided.decisions, "decisions", "Decisions of this node as the active controller: requests, parts of long requests, and timers."),
        (decided.decision_seconds, "decision_seconds", "Time that the event loop has spent on these decisions."),
        (decided.commits, "commits", "Decisions of this node that wrote records, and are committed."),
        (decided.commit_seconds, "commit_seconds", "Total time from these decisions to their commits."),
        (decided.unclean_elections, "unclean_elections", "Elections of a leader that may lack records."),
        (decided.eligible_elections, "eligible_elections", "Elections of an eligible replica while no replica was in sync."),
        (decided.fenced_at_death, "brokers_found_dead", "Brokers fenced because their processes had ended."),
        (decided.fenced_by_silence, "brokers_found_silent", "Brokers fenced because neither the controller nor another broker heard them."),
        (decided.fenced_by_timeout, "brokers_timed_out", "Brokers fenced because their sessions had ended."),
    ):  # fmt: skip
        page.counter(f"odradek_active_controller_{name}_total", described)
        page.one(number)
