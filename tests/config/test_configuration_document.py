"""docs/configuration.md says, for every key that can change, what a change does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from odradek.metadata_quorum.config.config_defs import THROTTLE_DEFS, ConfigDef, broker_defs, topic_defs
from odradek.metadata_quorum.config.dynamic_broker_config import check_broker_change
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.wire.errors import KafkaError

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
_ROW = re.compile(r"\| `([^|]+)` \| (.+) \|")
NO_CHANGE = BrokerConfigLayers({})


def _rows(heading: str) -> dict[str, str]:
    section = DOCUMENT.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {name: effect for names, effect in _ROW.findall(section) for name in names.split("`, `")}


def _dynamic(definitions: Mapping[str, ConfigDef]) -> list[str]:
    return [name for name, each in definitions.items() if each.dynamic]


def test_every_topic_key_is_told_of() -> None:
    """The page has a row for every topic key, since all of them can be altered."""
    assert sorted(_rows("Topic keys")) == sorted(topic_defs())


def test_every_broker_key_that_can_change_is_told_of() -> None:
    """The page has a row for every dynamic broker key. Security keys share rows, since all have the same effect."""
    plain = [name for name in _dynamic(broker_defs()) if not name.startswith(("ssl.", "sasl."))]
    told = [name for name in _rows("Broker keys") if not name.startswith(("ssl.", "sasl."))]
    assert sorted(told) == sorted([*plain, *THROTTLE_DEFS])


@pytest.mark.parametrize("heading", ["Topic keys", "Broker keys"])
def test_every_effect_has_one_of_four_kinds(heading: str) -> None:
    """Each effect begins with one of four words: at once, next segment, stored, refused."""
    kinds = re.compile("at once|next segment|stored: |refused")
    assert [row for row in _rows(heading).items() if not kinds.match(row[1])] == []


@pytest.mark.parametrize("name", sorted(_dynamic(broker_defs())))
def test_what_is_said_to_be_refused_is_refused_and_nothing_else(name: str) -> None:
    """A change of a dynamic broker key to a value that Kafka accepts is refused exactly if the page says so."""
    rows = _rows("Broker keys")
    families = [row for row in rows if row.endswith(".*") and name.startswith(row[:-1])]
    effect = rows.get(name) or rows[max(families, key=len)]
    definition = broker_defs()[name]
    text = definition.default if definition.default is not None else "1"
    if name == "metric.reporters":
        text = "a.Reporter"
    try:
        check_broker_change({name: text}, NO_CHANGE, per_broker=True, log_dirs=["1"])
    except KafkaError:
        assert effect.startswith("refused")
    else:
        assert not effect.startswith("refused")
