"""The entry of the console's process: `python -m odradek.console`. It reads its settings from a descriptor. SHELL."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable, Sequence

from odradek.cli.failure import USAGE
from odradek.cli.output import print_json, say
from odradek.cli.streams.standard_streams import complain
from odradek.console.settings import ConsoleSettings, SettingsRefused, why_refused
from odradek.env.child_python import end_with_parent
from odradek.env.low_priority import give_memory_way, give_way

__all__ = ["main"]

_SETTINGS_BYTES_MAX = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the console on an inherited socket. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m odradek.console")
    parser.add_argument("--socket", type=int, required=True, help="the descriptor of a listening socket")
    parser.add_argument(
        "--settings", type=int, required=True, help="the descriptor of a pipe with a line of settings"
    )
    parser.add_argument("--in-node", action="store_true", help="end when the pipe's other end closes")
    parser.add_argument("--announce", choices=("text", "json"), help="print the address when it is served")
    args = parser.parse_args(argv)
    line = _read_line(args.settings)
    if args.in_node:
        try:
            end_with_parent(args.settings)
        except EOFError:
            return 0
        give_way()
        give_memory_way()
    settings = ConsoleSettings.decode(line)
    refusal = why_refused(settings)
    if refusal is not None:
        complain(refusal)
        return USAGE
    try:
        from odradek.console.process import run_console
    except ModuleNotFoundError as error:
        if error.name != "h11":
            raise
        complain("the console needs the package h11: pip install 'odradek[console]'")
        return USAGE
    listening = socket.socket(fileno=args.socket)
    listening.setblocking(False)
    try:
        run_console(settings, listening, _announcer(args.announce, settings))
    except SettingsRefused as error:
        complain(str(error))
        return USAGE
    return 0


def _read_line(descriptor: int) -> bytes:
    """Read one line, and leave the descriptor open."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _SETTINGS_BYTES_MAX:
        piece = os.read(descriptor, 64 * 1024)
        if not piece:
            break
        line += piece
    return line


def _announcer(form: str | None, settings: ConsoleSettings) -> Callable[[int], None] | None:
    if form is None:
        return None

    def announce(port: int) -> None:
        link = settings.link(port)
        if form == "json":
            print_json({"console": link})
        else:
            say(f"the console is at {link}")
        sys.stdout.flush()

    return announce


if __name__ == "__main__":
    sys.exit(main())
