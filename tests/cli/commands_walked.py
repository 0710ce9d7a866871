"""Walk through all commands of the command line by their parsers. Tests that use this also cover commands added later."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from odradek.cli.__main__ import GROUPS, build_parser

__all__ = ["leaves", "value_actions", "with_value"]

PATHS = ("CONFIG", "FILE", "PATH", "DIR", "FILE|DIR")
"""Metavars of arguments that name a file.

Tests give a path that does not exist, so these commands fail before they work.
"""


def leaves(groups: Sequence[str] = GROUPS) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield the words and the parser of each command."""
    yield from _below(build_parser(groups), ())


def _below(
    parser: argparse.ArgumentParser, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from _below(sub, (*words, name))
            return
    yield words, parser


def value_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """List the arguments and options that take a value."""
    return [
        each
        for each in parser._actions
        if each.nargs != 0 and not isinstance(each, argparse._HelpAction | argparse._SubParsersAction)
    ]


def with_value(
    words: Sequence[str], parser: argparse.ArgumentParser, action: argparse.Action, value: str
) -> list[str]:
    """Build the command line with this value for `action`, and with plausible values for all other required arguments."""
    options: list[str] = []
    positionals: list[str] = []
    chosen = [group._group_actions[0] for group in parser._mutually_exclusive_groups if group.required]
    with_us = [group for group in parser._mutually_exclusive_groups if action in group._group_actions]
    for each in parser._actions:
        if each is action:
            if each.option_strings:
                options.append(f"{each.option_strings[-1]}={value}")
            else:
                positionals.append(value)
        elif any(each in group._group_actions for group in with_us) or each.nargs in ("?", "*"):
            continue
        elif each.option_strings and (each.required or each in chosen):
            options.append(each.option_strings[-1])
            if each.nargs != 0:
                options[-1] += f"={plausible(each)}"
        elif not each.option_strings:
            positionals.append(plausible(each))
    return [*words, *options, "--", *positionals] if positionals else [*words, *options]


def plausible(action: argparse.Action) -> str:
    """Return a value that the action's parser accepts."""
    if action.choices:
        return str(next(iter(action.choices)))
    candidates = ("/nowhere/to/be/found",) if action.metavar in PATHS else _CANDIDATES
    for text in candidates:
        try:
            if action.type is not None:
                action.type(text)  # type: ignore[operator]
        except (argparse.ArgumentTypeError, ValueError):
            continue
        return text
    raise AssertionError(f"no value in _CANDIDATES is accepted by {action}: add one there")


_CANDIDATES = (
    "never-there",
    "7",
    "1h",
    "a=b",
    "7:/nowhere",
    "a=1",
    "C://127.0.0.1:1",
    "AAAAAAAAAAAAAAAAAAAABw",
    "SCRAM-SHA-256",
)
