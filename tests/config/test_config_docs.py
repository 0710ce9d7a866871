"""Every configuration key has a sentence that says what it is for."""

from __future__ import annotations

import pkgutil
from fnmatch import fnmatchcase

from odradek.metadata_quorum.config.config_defs import (
    THROTTLE_DEFS,
    broker_defs,
    client_metrics_defs,
    group_defs,
    topic_defs,
)
from odradek.metadata_quorum.config.config_docs import config_doc

KEYS = {
    "broker": [name for name, each in broker_defs().items() if not each.internal] + list(THROTTLE_DEFS),
    "topic": list(topic_defs()),
    "group": list(group_defs()),
    "client-metrics": list(client_metrics_defs()),
}


def test_every_key_is_told_of() -> None:
    """DescribeConfigs with include_documentation returns a text for each key (KIP-569)."""
    missing = [
        (scope, name) for scope, names in KEYS.items() for name in names if not config_doc(scope, name)
    ]
    assert missing == []


def test_no_sentence_is_about_nothing() -> None:
    """Each sentence belongs to a key that exists, so a removed key loses its sentence, too."""
    data = pkgutil.get_data("odradek.metadata_quorum.config", "config_docs.tsv")
    assert data is not None
    for line in data.decode().splitlines()[1:]:
        scope, key, text = line.split("\t")
        assert any(fnmatchcase(name, key) for name in KEYS[scope]), (scope, key)
        assert text.endswith("."), key


def test_a_default_is_told_of_as_one() -> None:
    """Some broker keys are defaults of a topic or group key. The sentence about such a broker key names this other
    key."""
    assert config_doc("broker", "log.segment.bytes") == (
        "Default of the topic key segment.bytes. The size at which a log begins a new file."
    )
    assert str(config_doc("broker", "group.streams.max.standby.replicas")).startswith(
        "Highest value of the group key streams.num.standby.replicas."
    )
    assert config_doc("broker", "nonsense") is None
