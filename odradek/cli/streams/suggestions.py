"""Suggestions for mistyped words: commands, options, and names of topics and groups that do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.client.shells.blocking import Client

__all__ = ["closest", "did_you_mean", "names_in_cluster", "with_closest_names"]

_SUGGESTED_MAX = 3
_NAMES_MAX = 10_000
"""The maximum number of names that are compared, so that a suggestion in a huge cluster takes no second."""
_ASK_SECONDS = 2.0
_LIKENESS, _NAME_LIKENESS = 0.6, 0.75
"""How similar a word must be: a command or an option, and a name in the cluster. 1 means equal."""
_SYNONYMS = {
    "ls": ("list",),
    "rm": ("delete", "remove"),
    "remove": ("delete",),
    "delete": ("remove",),
    "del": ("delete", "remove"),
    "new": ("create", "add"),
    "add": ("create",),
    "create": ("add",),
    "show": ("describe", "status", "list"),
    "get": ("describe", "list"),
    "info": ("describe", "status"),
    "seek": ("reset",),
    "trim-prefix": ("purge",),
    "topics": ("topic",),
    "security": ("acl", "user"),
    "cp": ("clone",),
}
"""Names of commands in other programs, each with names that mean the same here."""
_UNKNOWN_KEY = re.compile(r"Unknown topic config name: (\S{1,300})")
_MISSING = re.compile(r"(?:^|[ :])(topic|group) (\S{1,300}) does not exist")


def closest(
    word: str, names: Iterable[str], most: int = _SUGGESTED_MAX, likeness: float = _LIKENESS
) -> list[str]:
    """Find the names that look most like `word`, at most `most`, the best first."""
    known = list(names)
    for synonym in _SYNONYMS.get(word, ()):
        if synonym in known:
            return [synonym]
    from difflib import get_close_matches

    by_small = {name.lower(): name for name in known}
    found = get_close_matches(word[:300].lower(), list(by_small), most, likeness)
    return [by_small[name] for name in found]


def did_you_mean(
    word: str, names: Iterable[str], most: int = _SUGGESTED_MAX, likeness: float = _LIKENESS
) -> str:
    """Make the end of an error message: `; did you mean topic?`. It is empty if no name is similar."""
    found = closest(word, names, most, likeness)
    if not found:
        return ""
    *others, last = found
    return f"; did you mean {', '.join(others)} or {last}?" if others else f"; did you mean {last}?"


def names_in_cluster(client: Client, kind: str, seconds: float = _ASK_SECONDS) -> Sequence[str]:
    """List the names of all topics or groups. `kind` is "topic" or "group". Raises `KafkaError` and `ClientError`."""
    if kind == "topic":
        return [topic.name for topic in client.admin.describe_topics(timeout=seconds)]
    return [group.group_id for group in client.admin.list_groups(timeout=seconds)]


def with_closest_names(client: Client, text: str) -> str:
    """Add the most similar names of the cluster to a message that a topic or group does not exist. To a message about an
    unknown key of a topic, add similar keys. Return any other message as it is, and also one for which the cluster gives
    no names now.
    """
    unknown = _UNKNOWN_KEY.search(text)
    if unknown is not None:
        from odradek.metadata_quorum.config.config_defs import topic_defs

        return text + did_you_mean(unknown[1], topic_defs(), likeness=_NAME_LIKENESS)
    found = _MISSING.search(text)
    if found is None or "did you mean" in text:
        return text
    from odradek.client.errors import ClientError
    from odradek.wire.errors import KafkaError

    kind, name = found.groups()
    try:
        names = names_in_cluster(client, kind)[:_NAMES_MAX]
    except (KafkaError, ClientError):
        return text
    others = (each for each in names if each != name)
    return text + did_you_mean(name, others, likeness=_NAME_LIKENESS)
