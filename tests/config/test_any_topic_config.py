"""A node can work with every configuration that it accepts: a log is made with it, and DescribeConfigs shows it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.data_plane.log.log_config import log_config
from odradek.metadata_quorum.config.config_defs import (
    ConfigError,
    broker_defs,
    topic_defs,
    validate_topic_configs,
)
from odradek.metadata_quorum.config.dynamic_broker_config import check_broker_change
from odradek.metadata_quorum.config.effective_config import (
    BrokerConfigLayers,
    broker_value,
    describe_broker_config,
    describe_topic_config,
)
from odradek.wire.errors import KafkaError

WORDS = st.sampled_from(
    [
        *(
            "",
            " ",
            ",",
            ",,",
            "0",
            "-0",
            "+1",
            " 77 ",
            "1e3",
            "0.5d",
            ".5f",
            "1.",
            "NaN",
            "-Infinity",
            "0x10",
            "1_0",
        ),
        *("٣", "\u3000" + "5", "\x00", "TRUE", " false", "gzip ", "GZIP", "delete , compact", "delete,", "*"),
        *("-1", "-2", "1048576", "2147483647", "9223372036854775807", "9223372036854775808", "1" * 100),
        *("0:1", "0:1,", "LogAppendTime", "producer", "uncompressed", "1E-400", "1e400"),
    ]
)
VALUES = WORDS | st.text(max_size=8) | st.integers(-(1 << 64), 1 << 64).map(str) | st.floats().map(repr)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(topic_defs())), VALUES, min_size=1, max_size=3))
def test_an_accepted_topic_config_can_be_used_and_described(configs: dict[str, str]) -> None:
    """Every accepted topic configuration makes a log's settings and is described; otherwise the node would end at each
    start."""
    try:
        validate_topic_configs(configs)
    except ConfigError:
        return
    config = log_config(configs, BrokerConfigLayers({}))
    assert isinstance(config.retention_ms, int)
    entries = {entry.name: entry for entry in describe_topic_config(configs, BrokerConfigLayers({}))}
    for name in configs:
        definition = topic_defs()[name]
        shown = entries[name].value
        assert shown is None or repr(definition.parse(shown)) == repr(definition.parse(configs[name]))


DYNAMIC = sorted(name for name, each in broker_defs().items() if each.dynamic)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(DYNAMIC), VALUES, min_size=1, max_size=3))
def test_an_accepted_broker_config_can_be_used_and_described(configs: dict[str, str]) -> None:
    """Every accepted change of a broker's configuration makes settings and is described."""
    try:
        check_broker_change(configs, BrokerConfigLayers({}), per_broker=True, log_dirs=["/data"])
    except KafkaError:
        return
    layers = BrokerConfigLayers({}, configs)
    log_config({}, layers)
    for name in configs:
        broker_value(name, layers)
    assert len(describe_broker_config(layers)) >= 300
    assert describe_topic_config({}, layers)
