"""A stub broker with only the attributes that its registration uses."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from odradek.data_plane.newest_image import NewestImage
from odradek.data_plane.replication.hosted_topics import HostedTopics
from odradek.data_plane.replication.leaderless_replicas import LeaderlessReplicas
from odradek.data_plane.replication.peer_silence import PeerSilence
from odradek.env.ports import Env
from odradek.metadata_quorum.features import THIS_RELEASE
from odradek.metadata_quorum.image.metadata_image import MetadataImage


def registering_broker(env: Env, controller: Any, log_dirs: Sequence[Any] = ()) -> Any:
    """Make a broker, without logs, for `BrokerLifecycle`."""
    return SimpleNamespace(
        env=env,
        clock=env.clock,
        controller=controller,
        log_dirs=log_dirs,
        image=SimpleNamespace(offset=0, brokers={}),
        placement=SimpleNamespace(cordoned=[]),
        troubles=SimpleNamespace(given_up=lambda: (), full=()),
        replication=SimpleNamespace(
            registered=lambda epoch: None, silence=PeerSilence(0, 500, lambda broker_id: False)
        ),
        release_leadership=lambda: None,
        leaderless=LeaderlessReplicas(1, NewestImage(MetadataImage()), HostedTopics(), controller),
        settings=SimpleNamespace(node_id=1, cluster_id="c", request_timeout_ms=30_000, release=THIS_RELEASE),
    )
