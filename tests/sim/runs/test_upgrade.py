"""Nodes of the previous release work with others, and no feature is raised above the levels that all nodes support."""

from __future__ import annotations

import attrs
import pytest

from odradek.client.admin.admin_quorum import update_features
from odradek.metadata_quorum.features import ELIGIBLE_LEADER_REPLICAS, THIS_RELEASE
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.errors import ErrorCode, KafkaError
from sim.machine.cluster_members import Cluster, Shape
from sim.machine.releases import OLDER_RELEASE
from sim.machine.world import World
from sim.options import RunOptions
from sim.run import RunResult, run
from sim.storm.upgrade import NEW_LEVELS, level_must_be_decided

REFUSED = ErrorCode.INVALID_UPDATE_VERSION


def _run(seed: int, older: int, kinds: tuple[str, ...], seconds: float) -> tuple[RunResult, list[str]]:
    drawn = RunOptions.draw(seed, "lite", seconds=seconds)
    options = attrs.evolve(
        drawn,
        shape=attrs.evolve(drawn.shape, older=older),
        storm=attrs.evolve(drawn.storm, kinds=kinds),
    )
    lines: list[str] = []
    result = run(seed, options, trace=lambda _, line: lines.append(line))
    return result, [line for line in lines if " storm log " in line]


def test_the_release_before_ends_one_version_earlier() -> None:
    """The previous release advertises one Fetch version less (KIP-35), and does not support the new feature."""
    first, last = api_versions(ApiKey.FETCH)
    assert THIS_RELEASE.client_versions(ApiKey.FETCH) == (first, last)
    assert OLDER_RELEASE.client_versions(ApiKey.FETCH) == (first, last - 1)
    assert OLDER_RELEASE.features[ELIGIBLE_LEADER_REPLICAS] == (0, 0)


def test_some_seeds_have_nodes_that_are_behind() -> None:
    """Some seeds of the default profile have nodes of the previous release, even all of them. The profile `perf` has
    none."""
    older = [RunOptions.draw(seed).shape.older for seed in range(60)]
    assert 5 < sum(count > 0 for count in older) < 40
    assert max(older) > 3, "some cluster must have only older nodes"
    assert all(RunOptions.draw(seed, "perf").shape.older == 0 for seed in range(60))


def test_a_cluster_is_upgraded_node_by_node_while_clients_work() -> None:
    """A cluster of old nodes is upgraded node by node under load. All promises hold, and the new level is finalized."""
    result, storm = _run(1, older=6, kinds=("upgrade",) * 3, seconds=20.0)
    assert result.verdict == "ok", result.message
    assert result.statistics["upgrades"] >= 3
    assert any("log upgrade" in line for line in storm)


def test_a_level_is_refused_as_long_as_a_node_is_behind() -> None:
    """While a broker does not support a level, raising it is refused with INVALID_UPDATE_VERSION (KIP-584)."""
    world = World(5)
    cluster = Cluster(world, Shape(3, 0, older=1))
    codes: list[ErrorCode] = []

    async def main() -> None:
        cluster.format()
        for member in cluster.members:
            member.launch()
        assert await cluster.wait_until_whole(60.0) is None
        await level_must_be_decided(cluster)
        client = cluster.observer
        try:
            await client.run(update_features(client.core, NEW_LEVELS))
        except KafkaError as error:
            codes.append(error.code)
        (behind,) = [member for member in cluster.members if member.release is not THIS_RELEASE]
        await behind.kill("all")
        behind.release = THIS_RELEASE
        await behind.start()
        await level_must_be_decided(cluster)
        assert behind.node is not None
        assert behind.node.metadata is not None
        while behind.node.metadata.committed_image.features.get(ELIGIBLE_LEADER_REPLICAS) != 1:
            await world.sleep(0.1)

    world.run(main)
    assert codes == [REFUSED]


@pytest.mark.parametrize("seed", [2, 3])
def test_nodes_may_stay_behind(seed: int) -> None:
    """A run may end while some nodes are still on the previous release."""
    result, _ = _run(seed, older=2, kinds=("deaths",), seconds=4.0)
    assert result.verdict == "ok", result.message
