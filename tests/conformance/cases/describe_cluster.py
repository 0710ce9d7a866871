"""DescribeCluster: brokers, types of endpoints, authorized operations."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.describe_cluster import DescribeClusterRequest
from tests.conformance.asking.talk import Talk, case


def _cluster_without_id(response: object) -> object:
    response.cluster_id = "CLUSTER"  # type: ignore[attr-defined]  # any version's response
    return response


def _describe_cluster(talk: Talk, *, version: int, endpoint: int = 1, operations: bool = False) -> None:
    fenced = version >= 2
    talk.ask(DescribeClusterRequest(operations, endpoint, fenced), version, _cluster_without_id)


for _version in range(3):
    case(f"describe_cluster v{_version}")(partial(_describe_cluster, version=_version))
    case(f"describe_cluster v{_version} with operations")(
        partial(_describe_cluster, version=_version, operations=True)
    )
for _version, _endpoint in ((1, 0), (1, 2), (2, 2), (2, 9), (1, -1)):
    case(f"describe_cluster v{_version} at endpoint type {_endpoint}")(
        partial(_describe_cluster, version=_version, endpoint=_endpoint)
    )
