"""The part of a broker that its registration uses: who it is, its directories, and its controller."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from odradek.env.ports import Env
from odradek.metadata_quorum.features import THIS_RELEASE


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
        replication=SimpleNamespace(registered=lambda epoch: None),
        settings=SimpleNamespace(node_id=1, cluster_id="c", request_timeout_ms=30_000, release=THIS_RELEASE),
    )
