"""The eight levels of precedence of a quota (KIP-55)."""

from __future__ import annotations

import pytest

from odradek.metadata_quorum.quotas.quota_levels import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    Entity,
    holding_quota,
    text_of,
)

LEVELS: list[tuple[Entity, tuple[str, str]]] = [
    ((("client-id", "app"), ("user", "ann")), ("ann", "app")),
    ((("client-id", None), ("user", "ann")), ("ann", "app")),
    ((("user", "ann"),), ("ann", "")),
    ((("client-id", "app"), ("user", None)), ("ann", "app")),
    ((("client-id", None), ("user", None)), ("ann", "app")),
    ((("user", None),), ("ann", "")),
    ((("client-id", "app"),), ("", "app")),
    ((("client-id", None),), ("", "app")),
]


@pytest.mark.parametrize("level", range(1, 9))
def test_the_most_specific_level_with_a_value_decides(level: int) -> None:
    """KIP-55: user and client id come before user, user before client id, and a name before a default."""
    quotas = {
        (entity, PRODUCER_BYTE_RATE): float(at) for at, (entity, _) in enumerate(LEVELS, 1) if at >= level
    }
    holding = holding_quota(quotas, PRODUCER_BYTE_RATE, "ann", "app")
    assert holding is not None
    assert (holding.level, holding.value) == (level, level)
    assert (holding.entity, holding.sharers) == LEVELS[level - 1]


def test_each_key_is_looked_up_by_itself() -> None:
    """A level that has a quota for another key does not hide the levels below it."""
    quotas = {(LEVELS[0][0], PRODUCER_BYTE_RATE): 1.0, (LEVELS[7][0], CONSUMER_BYTE_RATE): 8.0}
    holding = holding_quota(quotas, CONSUMER_BYTE_RATE, "ann", "app")
    assert holding is not None
    assert holding.level == 8


def test_a_client_without_an_id_has_no_part_in_quotas_of_client_ids() -> None:
    """As in Kafka, levels with a client id do not apply if the client id is empty."""
    quotas = {(entity, PRODUCER_BYTE_RATE): float(at) for at, (entity, _) in enumerate(LEVELS, 1) if at != 3}
    holding = holding_quota(quotas, PRODUCER_BYTE_RATE, "ann", "")
    assert holding is not None
    assert holding.level == 6


def test_others_are_not_concerned() -> None:
    """A quota of a named user does not apply to other users."""
    quotas = {(LEVELS[0][0], PRODUCER_BYTE_RATE): 1.0, (LEVELS[2][0], PRODUCER_BYTE_RATE): 1.0}
    assert holding_quota(quotas, PRODUCER_BYTE_RATE, "bob", "app") is None


def test_an_entity_reads_aloud() -> None:
    """The command line shows an entity with the user first, and a default as `<default>`."""
    assert text_of(LEVELS[1][0]) == "user=ann, client-id=<default>"
