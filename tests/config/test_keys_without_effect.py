"""The table of keys without effect agrees with the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs

from odradek.data_plane.log.log_config import LogConfig
from odradek.metadata_quorum.config.config_defs import (
    broker_defs,
    group_defs,
    group_synonym,
    topic_defs,
    topic_synonyms,
)
from odradek.metadata_quorum.config.group_configs import limit_keys
from odradek.node.configuration.keys_without_effect import KEYS_WITHOUT_EFFECT
from odradek.node.configuration.node_config import NodeConfig
from testkit.lone_node import SETTINGS

ROOT = Path(__file__).parents[2]
SERVER = ("metadata_quorum", "data_plane", "odradek/node")
NO_READERS = frozenset(
    (
        "config_defs.py",
        "config_docs.py",
        "config_values.py",
        "effective_config.py",
        "log_config.py",
        "dynamic_broker_config.py",
        "keys_without_effect.py",
    )
)
"""Modules that only define, check or describe keys. A key's name in one of them does not count as a reader of the
key."""


@cache
def _trees() -> tuple[tuple[str, ast.Module], ...]:
    return tuple(
        (path.name, ast.parse(path.read_text()))
        for root in SERVER
        for path in sorted((ROOT / root).rglob("*.py"))
        if path.name not in NO_READERS
    )


def _named() -> Iterator[str]:
    """Yield every string constant in the server's code."""
    for _, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _used_fields() -> set[str]:
    """Return every attribute name that the server's code uses, except inside the classes that define configurations."""
    return {
        node.attr
        for name, tree in _trees()
        if name not in ("log_config.py", "node_config.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
    } | {"segment_bytes"}


def _read_topic_keys(named: set[str]) -> set[str]:
    """Return the topic keys that are read by name or as a field of `LogConfig`, also through a derived field."""
    fields = {field.name for field in attrs.fields(LogConfig)} & _used_fields()
    derived = {
        "is_compacted": ("cleanup_policy",),
        "deletes_by_retention": ("cleanup_policy",),
        "uses_append_time": ("message_timestamp_type",),
        "codec": ("compression_type",),
        "codec_level": ("compression_gzip_level", "compression_lz4_level", "compression_zstd_level"),
        "roll_ms": ("segment_ms", "max_compaction_lag_ms"),
        "offset_index_entries_max": ("segment_index_bytes",),
    }
    for name, sources in derived.items():
        if name in fields:
            fields.update(sources)
    return {name for name in topic_defs() if name in named or name.replace(".", "_") in fields}


def read_keys() -> set[str]:
    """Return the keys of a properties file that have an effect."""
    named = set(_named())
    read = set(broker_defs()) & named
    for topic_key in _read_topic_keys(named):
        read.update(synonym.name for synonym in topic_synonyms(topic_key))
    for group_key in group_defs():
        read.update(key for key in (group_synonym(group_key), *limit_keys(group_key)) if key in broker_defs())
    return read


def test_the_table_names_each_key_without_a_reader_and_no_other() -> None:
    """The table lists exactly the keys that no code reads, so the warning at a start is true."""
    unread = sorted(set(broker_defs()) - read_keys())
    assert sorted(KEYS_WITHOUT_EFFECT) == unread


def test_the_document_lists_them_with_their_reasons() -> None:
    """docs/configuration.md lists the same keys with the same reasons, word for word."""
    section = (ROOT / "docs" / "configuration.md").read_text()
    section = section.partition("\n## Keys of the properties file that do nothing\n")[2].partition("\n## ")[0]
    for key, reason in KEYS_WITHOUT_EFFECT.items():
        family = next((row for row in section.splitlines() if f"`{key}`" in row and row.startswith("| ")), "")
        assert family.endswith(f"| {reason} |"), key
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named - KEYS_WITHOUT_EFFECT.keys() == set(), "has an effect: its row must go"


def test_a_start_names_those_that_the_file_sets_in_one_warning() -> None:
    """If a file sets keys without effect, the start logs one warning that names them."""
    given = {"num.io.threads": "16", "metadata.log.segment.ms": "5", "log.retention.ms": "5"}
    (warning,) = NodeConfig.from_properties(SETTINGS | given).warnings
    assert warning.startswith("these keys have no effect here: num.io.threads, metadata.log.segment.ms.")


def test_a_file_without_them_warns_of_nothing() -> None:
    """A file whose keys all have an effect causes no warning."""
    assert NodeConfig.from_properties(SETTINGS).warnings == ()
