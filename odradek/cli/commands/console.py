"""`odradek console`: pages in a browser that show a cluster, any that speaks Kafka's protocol."""

from __future__ import annotations

import argparse
import json
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from odradek.cli.connecting import bootstrap_of, controller_keys, security_properties
from odradek.cli.failure import USAGE, CliError
from odradek.cli.parsing import Groups, add_command, add_connection_options, file_path, listening_address

if TYPE_CHECKING:
    import socket

__all__ = ["register"]

DEFAULT_LISTEN = "127.0.0.1:9644"
_FOR_LISTENER = "listener.name.console."
"""The prefix of keys for the listener of browsers, as in a node's properties."""


def register(groups: Groups) -> None:
    """Add the command `console` to the parser of the command line."""
    parser = add_command(groups, "console", _console, "show a cluster in the browser, until Ctrl-C")
    parser.add_argument(
        "--listen",
        type=listening_address,
        default=DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help=f"the address for browsers; another host than this machine's own needs --certificate and logins (default: {DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name by which browsers reach the console (repeat for more)",
    )
    parser.add_argument(
        "--certificate",
        type=file_path,
        metavar="FILE",
        help="a PEM file with a private key and its certificates, for https",
    )
    parser.add_argument(
        "--audit",
        action="append",
        default=[],
        metavar="FILE|DIR",
        help="the audit log of a controller, to show in the history who requested each change (repeat for each controller)",
    )
    add_connection_options(parser)


def _console(args: argparse.Namespace) -> int:
    from odradek.env.child_python import child_environment, child_program

    if find_spec("h11") is None:
        raise CliError("the console needs the package h11: pip install 'odradek[console]'", USAGE)
    host, port = args.listen
    tls = None
    if args.certificate is not None:
        _check_readable(args.certificate)
        tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": os.path.abspath(args.certificate)}
    keys = security_properties(args)
    for_listener = {key: value for key, value in keys.items() if key.startswith(_FOR_LISTENER)}
    if tls is None and any(key.startswith(f"{_FOR_LISTENER}ssl.keystore.") for key in for_listener):
        tls = {}
    settings = {
        "bootstrap": bootstrap_of(args),
        "host": host,
        "hosts": args.name,
        "client": {
            **{key: value for key, value in keys.items() if key not in for_listener},
            **controller_keys(args),
        },
        "tls": None if tls is None else {**tls, **for_listener},
        "audit": [os.path.abspath(each) for each in args.audit],
    }
    listening = _listen(host, port)
    theirs, mine = os.pipe()
    document = json.dumps(settings).encode() + b"\n"
    try:
        os.set_blocking(mine, False)
        if os.write(mine, document) < len(document):
            raise CliError("the file of --command-config is too long", USAGE)
    except BlockingIOError:
        raise CliError("the file of --command-config is too long", USAGE) from None
    os.close(mine)
    for descriptor in (listening.fileno(), theirs):
        os.set_inheritable(descriptor, True)
    program = [
        *child_program("odradek.console"),
        f"--socket={listening.fileno()}",
        f"--settings={theirs}",
        f"--announce={'json' if args.json else 'text'}",
    ]
    # The console takes the place of this process, so signals reach it.
    os.execve(program[0], program, child_environment())


def _check_readable(path: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise CliError(f"--certificate: {path} cannot be read: {error.strerror}", USAGE) from error


def _listen(host: str, port: int) -> socket.socket:
    """Open the listener. Raises `CliError`."""
    import socket

    try:
        family = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise CliError(
            f"cannot listen on {host or '*'}:{port}: {error.strerror or error} (--listen names another address)"
        ) from error
