"""Options that several commands share (--bootstrap-server, --timeout), the types of their values, and the
parser with its error messages.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from odradek.cli.failure import USAGE
from odradek.cli.streams.standard_streams import complain
from odradek.cli.streams.suggestions import did_you_mean
from odradek.cli.streams.watching import WATCH_SECONDS, watching

__all__ = [
    "Groups",
    "Leaf",
    "Parser",
    "add_command",
    "add_connection_options",
    "called_here",
    "decimal",
    "file_path",
    "id_number",
    "key_value",
    "listening_address",
    "natural",
    "option_hint",
    "port",
    "positive",
    "replicas",
    "seconds",
    "whole_number",
]

Groups: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Leaf: TypeAlias = Callable[[argparse.Namespace], int]

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_REQUIRED = "the following arguments are required: "
_OTHERS_NAMES = {
    "--set": "--config",
    "--add-config": "--config",
    "--topic-config": "--config",
    "--delete-config": "--unset",
    "--delete": "--unset",
    "--topic": "TOPIC",
    "--brokers": "--bootstrap-server",
    "--broker-list": "--bootstrap-server",
}
"""Options of Kafka's tools and of rpk, each with the name of the equivalent option here."""


_TEXT_BYTES_MAX = (1 << 15) - 1
"""The maximum number of bytes of a text that fits into a request."""
_LISTENING = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]*):([0-9]{1,5})")
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line with the cause and a way to get help. Only the help shows the usage.

    Each argument must be UTF-8 text that fits into a request, unless it names a file.
    """

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if action.type in (Path, file_path):
            if not arg_string or "\0" in arg_string:
                raise argparse.ArgumentError(action, f"{arg_string!r} is not the path of a file")
        elif (text := _judged(action, arg_string)) != arg_string:
            arg_string = text
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices, with the most similar choice."""
        choices = action.choices
        if choices is None or value in choices:
            return
        names = [str(choice) for choice in choices]
        hint = did_you_mean(str(value), names, most=1)
        if isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(None, f"unknown command {_shown_word(value)}{hint}")
        raise argparse.ArgumentError(
            action, f"invalid choice: {_shown(str(value))} (choose from {', '.join(map(repr, names))}){hint}"
        )

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write the help to the stream. (argparse ignores errors of the stream; here they are raised.)"""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """Print the error on one line and end the program with exit code 2."""
        if message.startswith(_REQUIRED):
            message = f"{message.removeprefix(_REQUIRED)} is missing"
        text = " ".join(message.split())
        link = "" if text.endswith("?") else ":"
        what = "commands" if self._subparsers is not None else "options"
        complain(f"{text}{link} `{self.prog} --help` shows the {what}")
        self.exit(USAGE)


def _judged(action: argparse.Action, argument: str) -> str:
    """Return the text of an argument, even if the locale supports only ASCII. Raises `ArgumentError` if it is
    not UTF-8.
    """
    try:
        # Bytes that the locale cannot decode arrive as lone surrogates. They may still be valid UTF-8.
        is_known = not any("\ud800" <= each <= "\udfff" for each in argument)
        text = argument if is_known else os.fsencode(argument).decode()
        size = len(text.encode())
    except UnicodeError:
        raise argparse.ArgumentError(action, f"{_shown(argument)} is not text in UTF-8") from None
    if "\0" in text:
        raise argparse.ArgumentError(action, f"{_shown(argument)} is not text in UTF-8 without a zero byte")
    if size > _TEXT_BYTES_MAX:
        raise argparse.ArgumentError(action, f"{_shown(argument)} is longer than {_TEXT_BYTES_MAX} bytes")
    return text


def called_here(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """Return this command's name for the first unknown word, if the word is an option of Kafka's tools or of rpk. If
    the word is something else, or this command lacks an equivalent option, return "".
    """
    word = unknown[0].partition("=")[0]
    known = {text for action in parser._actions for text in (*action.option_strings, action.metavar)}
    name = _OTHERS_NAMES.get(word, "")
    return name if name in known else ""


def option_hint(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """Make the end of the message about an unknown word: this command's name for it, or the most similar option."""
    name = called_here(parser, unknown)
    if name:
        return f"; the right name is {name}"
    word = unknown[0].partition("=")[0]
    options = [text for action in parser._actions for text in action.option_strings if text[:2] == "--"]
    return did_you_mean(word, options, most=1) if word.startswith("--") else ""


def add_command(
    groups: Groups, name: str, run: Leaf, summary: str, *, watch: bool = False, **options: Any
) -> argparse.ArgumentParser:
    """Add a command to the group. `run` is called with the parsed arguments; every command has --json.

    With `watch`, the command only shows something, and gets the option --watch.
    """
    parser = groups.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False, **options
    )
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    if watch:
        parser.add_argument(
            "--watch",
            type=seconds,
            nargs="?",
            const=WATCH_SECONDS,
            metavar="SECONDS",
            help=f"show it again and again, this many seconds apart (default: {WATCH_SECONDS:g}), until Ctrl-C",
        )
        run = watching(run)
    parser.set_defaults(run=run, parser=parser)
    return parser


class _Timeout(argparse.Action):
    """The option --timeout. It sets `timeout`, the seconds for each answer, and `deadline`, the seconds for a whole
    plan. A plan has a deadline only if the option is given.
    """

    def __call__(self, _: object, namespace: argparse.Namespace, value: Any, __: str | None = None) -> None:
        namespace.timeout = value
        namespace.deadline = time.monotonic() + value


class DefaultAddress(str):
    """The default address of --bootstrap-server. It has its own type, to distinguish it from an address that
    the user has typed. Only the default address gives way to `bootstrap.servers` in --command-config.
    """

    __slots__ = ()


def add_connection_options(parser: argparse.ArgumentParser, *, plans: bool = False) -> None:
    """Add --bootstrap-server and --timeout. `plans` is true if the command may carry out a plan, which has no
    time limit.
    """
    parser.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        default=DefaultAddress(os.environ.get("ODRADEK_BOOTSTRAP") or DEFAULT_BOOTSTRAP),
        help="where to find the cluster (default: bootstrap.servers of --command-config, else $ODRADEK_BOOTSTRAP, else "
        f"{DEFAULT_BOOTSTRAP})",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=30.0,
        action=_Timeout,
        help="give up after this long"
        + (
            " (default: 30 for each answer; moves that have begun take as long as they need)"
            if plans
            else " (default: 30)"
        ),
    )
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        type=file_path,
        default=os.environ.get("ODRADEK_COMMAND_CONFIG") or None,
        help="a properties file with Kafka's client keys, such as security.protocol (default: $ODRADEK_COMMAND_CONFIG)",
    )
    parser.set_defaults(deadline=None)


def file_path(text: str) -> str:
    """Parse a file's path. It may have any bytes except zero bytes."""
    return text


def id_number(text: str) -> int:
    """Parse the number of a partition, or the id of a node."""
    return whole_number(text, 0, (1 << 31) - 1)


def natural(text: str) -> int:
    """Parse a whole number from 0 up to the largest offset."""
    return whole_number(text, 0, (1 << 63) - 1)


def positive(text: str) -> int:
    """Parse a whole number from 1 up to the largest count in a request."""
    return whole_number(text, 1, (1 << 31) - 1)


def replicas(text: str) -> int:
    """Parse a replication factor."""
    return whole_number(text, 1, (1 << 15) - 1)


def listening_address(text: str) -> tuple[str, int]:
    """Read an address to listen on: `HOST:PORT`, `[ADDRESS]:PORT`, or `:PORT` for every interface."""
    match = _LISTENING.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return match[1].strip("[]"), int(match[2])


def port(text: str) -> int:
    """Parse a TCP port, 1 to 65535."""
    return whole_number(text, 1, (1 << 16) - 1)


def whole_number(text: str, least: int, most: int) -> int:
    """Parse a whole number in ASCII digits, between `least` and `most`."""
    if not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a whole number")
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is below {least}")
    if number > most:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is above {most}")
    return number


def seconds(text: str) -> float:
    """Parse a span of time above 0."""
    span = decimal(text)
    if not 0.001 <= span < 1e6:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a number of seconds from 0.001 to a million")
    return span


def decimal(text: str) -> float:
    """Parse a finite number in ASCII digits, with or without a fraction."""
    if not _DECIMAL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a number")
    number = float(text)
    if not abs(number) < float("inf"):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is too large")
    return number


def _shown(text: str) -> str:
    """Return the argument for an error message, shortened to one line."""
    return repr(text if len(text) <= 100 else f"{text[:100]}...")


def _shown_word(text: str) -> str:
    """Return a word for an error message: plain if it is one printable word, else as `_shown` does."""
    return text if text.isprintable() and text.split() == [text] and len(text) <= 100 else _shown(text)


def key_value(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE; the value may be empty."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
