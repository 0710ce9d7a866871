"""The finalized features in ApiVersions, which `kafka-features describe` shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from odradek.metadata_quorum.features import SUPPORTED_FEATURES
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.serving.api_versions import ApiVersionsHandler
from odradek.serving.contract import Context
from odradek.wire.api import ApiKey
from odradek.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from sim.machine.world import World
from testkit.lone_node import play, request
from testkit.virtual import Client

REQUEST = ApiVersionsRequest("test", "1")


def levels(answer: ApiVersionsResponse) -> dict[str, tuple[int, int]]:
    return {each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features}


@pytest.mark.parametrize("port", [9092, 9093])
def test_the_quorums_own_level_is_told_on_every_listener(port: int) -> None:
    """Like Kafka 4.3, each listener reports `kraft.version` 1 if the voters are in the log (KIP-853)."""

    async def script(world: World, _: Callable[[], Awaitable[Client]]) -> None:
        connection = await world.node_env("client").network.connect("server", port)
        found = levels(await request(Client(connection), REQUEST, 4))
        assert found["kraft.version"] == (1, 1)
        assert found["metadata.version"] == (30, 30)

    play(script)


@pytest.mark.parametrize(("level", "told"), [(0, {}), (1, {"kraft.version": (1, 1)})])
def test_a_level_of_zero_is_not_finalized(level: int, told: dict[str, tuple[int, int]]) -> None:
    """A feature at level 0, such as `kraft.version` with static voters, is not reported, as in Kafka."""
    handler = ApiVersionsHandler(
        {ApiKey.API_VERSIONS: (0, 4)},
        SUPPORTED_FEATURES,
        lambda: MetadataImage.empty("c"),
        lambda: {"kraft.version": level},
    )
    context = Context("PLAINTEXT", "127.0.0.1")
    context.api_version = 4
    answer = handler.handle(context, REQUEST)
    assert isinstance(answer, ApiVersionsResponse)
    assert levels(answer) == told
