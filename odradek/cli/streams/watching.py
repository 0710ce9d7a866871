"""The option --watch: a command that shows something runs again and again, until Ctrl-C.

On a terminal each round replaces the one before, cut to the size of the screen. In a pipe or a file the rounds follow
each other, with an empty line between them; with --json each round is one line. A round that fails shows its error, and
the next round tries again, since an operator watches a cluster because it has trouble.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import time
from collections.abc import Callable
from typing import NoReturn, TextIO

from odradek.cli.failure import USAGE, CliError
from odradek.cli.streams.screen_columns import cut_to_columns, width_of
from odradek.cli.streams.standard_streams import complain

__all__ = ["WATCH_SECONDS", "cut_to_width", "screen_size", "watching"]

WATCH_SECONDS = 2.0
"""The default pause between two rounds, in seconds."""
_PAINT = re.compile("\033\\[[0-9;]*m")
_BLANK = "\033[2J"
_HOME = "\033[H"
_LINE_END = "\033[K"
_SCREEN_END = "\033[J"


def watching(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Wrap the function of a command, so that it runs again and again if --watch is given."""

    def run_or_watch(args: argparse.Namespace) -> int:
        if args.watch is None:
            return run(args)
        _watch(run, args)

    return run_or_watch


def screen_size(stream: TextIO) -> tuple[int, int]:
    """Return the columns and lines of the terminal behind a stream; 80 and 24 if they are unknown."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return size.columns or 80, size.lines or 24


def cut_to_width(line: str, columns: int) -> str:
    """Cut a line to the width of a screen. Codes of colours have no width, and all of them are kept."""
    if width_of(_PAINT.sub("", line)) <= columns:
        return line
    kept, width, place = [], 0, 0
    for code in _PAINT.finditer(line):
        text = cut_to_columns(line[place : code.start()], columns - width)
        kept += [text, code[0]]
        width += width_of(text)
        place = code.end()
    kept.append(cut_to_columns(line[place:], columns - width))
    return "".join(kept)


class _Frame(io.StringIO):
    """The output of one round, in memory. It looks like the terminal behind it, so that tables fit."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()


def _watch(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> NoReturn:
    terminal = sys.stdout
    is_first = True
    while True:
        if terminal.isatty():
            _draw(run, args, terminal, is_first=is_first)
        else:
            if not is_first and not args.json:
                terminal.write("\n")
            _print_round(run, args)
        is_first = False
        terminal.flush()
        time.sleep(args.watch)


def _print_round(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> None:
    try:
        run(args)
    except CliError as error:
        if error.exit_code == USAGE:
            raise
        complain(str(error))


def _draw(
    run: Callable[[argparse.Namespace], int], args: argparse.Namespace, terminal: TextIO, *, is_first: bool
) -> None:
    """Run one round and replace the screen by its output. The old round stays until the new one is complete."""
    from odradek.cli.output import BOLD, RED, paint, plain

    frame = _Frame(terminal)
    sys.stdout = frame
    try:
        run(args)
    except CliError as error:
        if error.exit_code == USAGE:
            raise
        frame.write(paint(RED, f"odradek: {plain(str(error))}") + "\n")
    finally:
        sys.stdout = terminal
    columns, lines = screen_size(terminal)
    shown = frame.getvalue().splitlines()
    head = f"every {args.watch:g} s, at {time.strftime('%H:%M:%S')}; Ctrl-C ends it"
    room = max(1, lines - 2)
    if len(shown) > room:
        head += f"; {len(shown) - room + 1} more lines below"
        shown = shown[: room - 1]
    rows = [paint(BOLD, head[:columns], terminal), *(cut_to_width(line, columns) for line in shown)]
    terminal.write(
        (_BLANK if is_first else "") + _HOME + "".join(f"{row}{_LINE_END}\n" for row in rows) + _SCREEN_END
    )
