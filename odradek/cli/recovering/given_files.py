"""Files in JSON by which an operator gives what no disk has: the configurations of topics. All mistakes of a
file are reported at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from odradek.cli.failure import CliError
from odradek.cli.output import counted
from odradek.cli.streams.standard_streams import complain

__all__ = ["GivenJson", "json_in", "refuse_mistakes", "shown_path", "topic_configs_in"]

GivenJson: TypeAlias = "str | int | float | bool | Sequence[GivenJson] | Mapping[str, GivenJson] | None"


def shown_path(path: str) -> str:
    """Return the name of a file for messages; `-` is standard input."""
    return "standard input" if path == "-" else path


def json_in(path: str) -> GivenJson:
    """Read a document in JSON from a file, or from standard input for `-`. Raises `CliError`, whose text has
    nothing of the contents.
    """
    try:
        if path == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                data = file.read()
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        document: GivenJson = json.loads(data.decode())
    except UnicodeDecodeError:
        raise CliError(f"{shown_path(path)} is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise CliError(
            f"{shown_path(path)} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except (ValueError, RecursionError):
        raise CliError(f"{shown_path(path)} has a number or a list that is too large to be read") from None
    return document


def refuse_mistakes(path: str, mistakes: Sequence[str]) -> None:
    """Raise `CliError` if a file has mistakes. If there are several, a line for each is printed before."""
    if not mistakes:
        return
    if len(mistakes) == 1:
        raise CliError(f"{shown_path(path)}: {mistakes[0]}")
    for each in mistakes:
        complain(f"{shown_path(path)}: {each}")
    raise CliError(
        f"{shown_path(path)} has {counted(len(mistakes), 'mistake')} (see above): nothing was done"
    )


def topic_configs_in(path: str) -> dict[str, dict[str, str]]:
    """Read the configurations of topics from a file in the format of the Ansible variable `odradek_topics`.
    Return them by topic. Raises `CliError`.
    """
    from odradek.metadata_quorum.config.config_defs import ConfigError, validate_topic_configs

    document = json_in(path)
    topics = document if isinstance(document, list) else [document]
    found: dict[str, dict[str, str]] = {}
    mistakes: list[str] = []
    for at, topic in enumerate(topics, 1):
        name = topic.get("name") if isinstance(topic, dict) else None
        configs = topic.get("configs", {}) if isinstance(topic, dict) else None
        if not isinstance(configs, dict) or not isinstance(name, str):
            mistakes.append(f"entry {at} is not an object with a name and configs")
            continue
        texts = {str(key): _config_text(value) for key, value in configs.items()}
        try:
            validate_topic_configs(texts)
        except ConfigError as error:
            mistakes.append(f"topic {name}: {error}")
        found[name] = texts
    refuse_mistakes(path, mistakes)
    return found


def _config_text(value: GivenJson) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
