"""The purpose of each configuration key in one sentence. `config_docs.tsv` has the sentences, by key or by a
pattern for several keys.

For a broker key that is the default of a topic's key, the sentence is derived from that key. So are those of
the limits and defaults of groups.
"""

from __future__ import annotations

import functools
import pkgutil
from fnmatch import fnmatchcase

from odradek.metadata_quorum.config.config_defs import group_defs, topic_defs, topic_synonyms


def config_doc(scope: str, name: str) -> str | None:
    """Return the sentence that describes a key; None for an unknown key.

    `scope` is broker, topic, group or client-metrics.
    """
    exact, patterns = _table()[scope]
    text = exact.get(name)
    if text is None and scope == "broker":
        text = _topic_default(name) or _group_value(name)
    if text is None:
        text = next((each for pattern, each in patterns.items() if fnmatchcase(name, pattern)), None)
    return text


@functools.cache
def _table() -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    data = pkgutil.get_data("odradek.metadata_quorum.config", "config_docs.tsv")
    assert data is not None, "the file config_docs.tsv is missing from the package"
    scopes: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
    for line in data.decode().splitlines()[1:]:
        scope, key, text = line.split("\t")
        scopes.setdefault(scope, ({}, {}))["*" in key][key] = text
    return scopes


@functools.cache
def _topics_behind() -> dict[str, str]:
    """Return topic keys by the broker keys from which they take their defaults."""
    return {synonym.name: name for name in topic_defs() for synonym in topic_synonyms(name)}


def _topic_default(name: str) -> str | None:
    topic_key = _topics_behind().get(name)
    return (
        None
        if topic_key is None
        else f"Default of the topic key {topic_key}. {config_doc('topic', topic_key)}"
    )


def _group_value(name: str) -> str | None:
    for limit, words in ((".min.", "Lowest"), (".max.", "Highest")):
        if limit in name:
            key = name.removeprefix("group.").replace(limit, ".", 1)
            key = key.replace("streams.standby", "streams.num.standby")
            if key in group_defs():
                return f"{words} value of the group key {key}. {config_doc('group', key)}"
    key = name.removeprefix("group.")
    return f"Default of the group key {key}. {config_doc('group', key)}" if key in group_defs() else None
