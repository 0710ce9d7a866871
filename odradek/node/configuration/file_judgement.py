"""Finds all problems of a properties file at once. The start of a node reports only the first problem. PURE.

First each key is checked alone. Then the rules between keys are checked, but only with keys whose values are
valid. A mistake in a key on which the rest depends, such as a role, ends the check, because further messages
would be guesses.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping

import attrs

from odradek.metadata_quorum.config.config_defs import ConfigDef, ConfigError, ConfigMissing, broker_defs
from odradek.metadata_quorum.config.java_properties import MalformedProperties, parse_properties
from odradek.node.configuration.keys_without_effect import warning_about
from odradek.node.configuration.listener_security import LISTENER_PREFIX
from odradek.node.configuration.node_config import NodeConfig, about_unknown
from odradek.node.configuration.own_keys import own_and_former_defs
from odradek.wire.secret_fields import is_key_name

__all__ = ["FileJudgement", "judge_file"]

_ALIKE = 0.8


@attrs.frozen
class FileJudgement:
    """The problems and warnings of a properties file, as sentences without secrets."""

    problems: tuple[str, ...]
    """The reasons why a node does not start with the file."""
    unknown: Mapping[str, str]
    """Sentences about unknown keys, by key. Each sentence names the known key that may have been meant."""
    warnings: tuple[str, ...]
    """Warnings that a node would log when it starts with the file, except those about unknown keys."""


def judge_file(text: str, read: Callable[[str], str], allowed: Collection[str] = ()) -> FileJudgement:
    """Check the contents of a properties file. `read` returns the contents of a file that a key names.

    Keys in `allowed` are not reported as unknown.
    """
    try:
        properties = parse_properties(text)
    except MalformedProperties as error:
        return FileJudgement((str(error),), {}, ())
    problems, wrong = _wrong_keys(properties)
    known = _every_key()
    unknown = tuple(name for name in properties if name not in known and not name.startswith(LISTENER_PREFIX))
    if not any(known[name].required for name in wrong):
        try:
            config = NodeConfig.judged(
                {name: value for name, value in properties.items() if name not in wrong}, read
            )
        except ConfigError as error:
            problems.append(str(error))
        else:
            problems += [each for each in config.refusals if each not in problems]
            unknown = config.unknown
    warning = warning_about(properties)
    return FileJudgement(
        tuple(problems),
        {name: _about(name) for name in unknown if name not in allowed},
        () if warning is None else (warning,),
    )


def _every_key() -> dict[str, ConfigDef]:
    return {**broker_defs(), **own_and_former_defs()}


def _wrong_keys(properties: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """Return sentences about keys that are missing or whose value is invalid by itself. Also return the set
    of these keys.
    """
    problems, wrong = [], set()
    for name, definition in _every_key().items():
        try:
            if name in properties:
                definition.parse(properties[name])
            elif definition.required:
                raise ConfigMissing(name)
        except ConfigError as error:
            problems.append(str(error))
            wrong.add(name)
    return problems, wrong


def _about(name: str) -> str:
    """Return a sentence about an unknown key, with the key that may have been meant."""
    if name.startswith(LISTENER_PREFIX) or not is_key_name(name):
        return about_unknown(name)
    close = difflib.get_close_matches(name, _every_key(), n=1, cutoff=_ALIKE)
    return f"unknown key {name}: did you mean {close[0]}?" if close else f"unknown key {name}"
