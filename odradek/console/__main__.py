"""The entry of the console's process: `python -m odradek.console`. It reads its settings from a descriptor."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence

from odradek.cli.failure import CliError
from odradek.cli.streams.standard_streams import complain
from odradek.console.settings import ConsoleSettings, why_refused

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the console on an inherited socket. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m odradek.console")
    parser.add_argument("--socket", type=int, required=True, help="the descriptor of a listening socket")
    parser.add_argument(
        "--settings", type=int, required=True, help="the descriptor with the settings, to its end"
    )
    args = parser.parse_args(argv)
    with os.fdopen(args.settings, "rb") as stream:
        settings = ConsoleSettings.decode(stream.readline())
    refusal = why_refused(settings)
    if refusal is not None:
        complain(refusal)
        return 2
    try:
        from odradek.console.process import run_console
    except ModuleNotFoundError as error:
        if error.name != "h11":
            raise
        raise CliError("the console needs h11: pip install 'odradek[console]'") from error
    run_console(settings, socket.socket(fileno=args.socket))
    return 0


if __name__ == "__main__":
    sys.exit(main())
