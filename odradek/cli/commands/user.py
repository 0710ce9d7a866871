"""`odradek user list|add|password|remove`: users who log in by SCRAM (KIP-554)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from odradek.cli.access.scram_users import DEFAULT_ITERATIONS, DEFAULT_MECHANISM, read_password
from odradek.cli.connecting import changing, connected
from odradek.cli.failure import CliError
from odradek.cli.output import YELLOW, counted, paint, print_json, print_table, say
from odradek.cli.parsing import Groups, add_command, add_connection_options, file_path, whole_number

if TYPE_CHECKING:
    from odradek.client.admin import ScramDeletion, ScramUpsertion
    from odradek.client.shells.blocking import Client

__all__ = ["register"]

_Row: TypeAlias = tuple[str, str, int]
"""A user, a SCRAM mechanism, and the number of iterations."""
DRY_RUN = "nothing was changed: repeat the command without --dry-run to do it"
_SALT_BYTES = 16


def register(groups: Groups) -> None:
    """Add the command group `user` to the parser of the command line."""
    commands = groups.add_parser("user", help="list, add, remove users, change passwords").add_subparsers(
        metavar="COMMAND", required=True
    )
    listing = add_command(commands, "list", _list, "list users and their mechanisms", watch=True)
    listing.add_argument("users", nargs="*", metavar="USER", help="list only these users")
    add_connection_options(listing)
    add = add_command(commands, "add", _add, "add a user, or a further login mechanism of a user")
    add.add_argument("user", metavar="USER")
    _add_password_options(add, f"by which the user logs in (repeat for more; default: {DEFAULT_MECHANISM})")
    password = add_command(commands, "password", _password, "change the password of a user")
    password.add_argument("user", metavar="USER")
    _add_disconnect(password)
    _add_password_options(
        password, "whose password changes (repeat for more; default: all that the user has)"
    )
    remove = add_command(commands, "remove", _remove, "remove users, or only some of their login mechanisms")
    remove.add_argument("users", nargs="+", metavar="USER")
    _add_mechanism(remove, "to be removed (repeat for more; default: all that the user has)")
    _add_disconnect(remove)
    remove.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    add_connection_options(remove)


def _add_password_options(parser: argparse.ArgumentParser, mechanism: str) -> None:
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        type=file_path,
        help="a file with the password, - for the first line of standard input (default: you are asked for it)",
    )
    _add_mechanism(parser, mechanism)
    parser.add_argument(
        "--iterations",
        metavar="N",
        type=_iterations,
        default=DEFAULT_ITERATIONS,
        help=(
            f"SCRAM iterations, 4096 to 16384: a higher number makes the password harder to guess (default: "
            f"{DEFAULT_ITERATIONS})"
        ),
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be written")
    add_connection_options(parser)


def _add_mechanism(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "--mechanism",
        action="append",
        metavar="NAME",
        type=_mechanism,
        help=f"SCRAM-SHA-256 or SCRAM-SHA-512, {text}",
    )


def _add_disconnect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--disconnect",
        action="store_true",
        help="end live connections too, on all brokers (otherwise they stay until they authenticate again)",
    )


def _mechanism(text: str) -> str:
    from odradek.security.scram import MECHANISMS

    if text.upper() not in MECHANISMS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(MECHANISMS)}")
    return text.upper()


def _iterations(text: str) -> int:
    from odradek.security.scram import ITERATIONS_MAX, ITERATIONS_MIN

    return whole_number(text, ITERATIONS_MIN, ITERATIONS_MAX)


def _known(client: Client, users: list[str] | None) -> dict[str, Mapping[str, int]]:
    """Return each user's SCRAM mechanisms with their numbers of iterations. A user who does not exist has
    none. Raises `KafkaError`.
    """
    from odradek.wire.errors import ErrorCode, KafkaError

    found: dict[str, Mapping[str, int]] = {}
    for user, described in client.admin.describe_user_scram_credentials(users).items():
        if isinstance(described, KafkaError):
            if described.code is not ErrorCode.RESOURCE_NOT_FOUND:
                raise described
            described = {}
        found[user] = described
    return found


def _rows(known: Mapping[str, Mapping[str, int]]) -> list[_Row]:
    return [
        (user, mechanism, iterations)
        for user in sorted(known)
        for mechanism, iterations in sorted(known[user].items())
    ]


def _show(args: argparse.Namespace, rows: list[_Row], **more: Any) -> None:
    if args.json:
        names = ("user", "mechanism", "iterations")
        print_json({"users": [dict(zip(names, row, strict=True)) for row in rows], **more})
    else:
        print_table(("USER", "MECHANISM", "ITERATIONS"), rows)


def _list(args: argparse.Namespace) -> int:
    wanted = list(dict.fromkeys(args.users)) or None
    with connected(args) as client:
        known = _known(client, wanted)
    missing = [user for user, mechanisms in known.items() if not mechanisms]
    _show(args, _rows(known))
    if missing:
        raise CliError(f"the user {', '.join(missing)} does not exist")
    return 0


def _add(args: argparse.Namespace) -> int:
    mechanisms = list(dict.fromkeys(args.mechanism or [DEFAULT_MECHANISM]))
    with connected(args) as client:
        has = _known(client, [args.user]).get(args.user, {})
        taken = [each for each in mechanisms if each in has]
        if taken:
            raise CliError(
                f"the user {args.user} has {', '.join(taken)} already: `odradek user password "
                f"{args.user}` changes the password"
            )
        rows = _set_password(args, client, mechanisms)
    _finish(args, rows, [])
    return 0


def _password(args: argparse.Namespace) -> int:
    with connected(args) as client:
        has = _known(client, [args.user]).get(args.user, {})
        if not has:
            raise CliError(
                f"the user {args.user} does not exist: `odradek user add {args.user}` adds the user"
            )
        mechanisms = list(dict.fromkeys(args.mechanism or has))
        missing = [each for each in mechanisms if each not in has]
        if missing:
            raise CliError(
                f"the user {args.user} has no {', '.join(missing)}: `odradek user add {args.user} "
                f"--mechanism {missing[0]}` adds it"
            )
        rows = _set_password(args, client, mechanisms)
        brokers = _disconnected(args, client, [args.user])
    _finish(args, rows, brokers, "changed")
    return 0


def _set_password(args: argparse.Namespace, client: Client, mechanisms: list[str]) -> list[_Row]:
    """Write the user's new SCRAM credentials, and return them as rows; with --dry-run, only return the rows."""
    from odradek.client.admin import ScramUpsertion

    if not args.dry_run:
        password = read_password(args.password_file)
        changes = [
            ScramUpsertion.of_password(
                args.user, each, password, salt=os.urandom(_SALT_BYTES), iterations=args.iterations
            )
            for each in mechanisms
        ]
        _alter(client, changes)
    return [(args.user, each, args.iterations) for each in mechanisms]


def _alter(client: Client, changes: Iterable[ScramDeletion | ScramUpsertion]) -> None:
    """Send one request for each change, since one request may change a user only once. Raises `CliError`."""
    with changing():
        for change in changes:
            error = client.admin.alter_user_scram_credentials([change])[change.user]
            if error is not None:
                raise error


def _remove(args: argparse.Namespace) -> int:
    from odradek.client.admin import ScramDeletion

    users = list(dict.fromkeys(args.users))
    with connected(args) as client:
        known = _known(client, users)
        missing = [user for user in users if not known.get(user)]
        if missing:
            raise CliError(f"the user {', '.join(missing)} does not exist: nothing was changed")
        gone = [row for row in _rows(known) if args.mechanism is None or row[1] in args.mechanism]
        if not gone:
            raise CliError(f"none of the named users has {', '.join(args.mechanism)}: nothing was changed")
        if not args.dry_run:
            _alter(client, [ScramDeletion(user, mechanism) for user, mechanism, _ in gone])
        brokers = _disconnected(args, client, sorted({user for user, _, _ in gone}))
    _finish(args, gone, brokers, "removed")
    return 0


def _disconnected(args: argparse.Namespace, client: Client, users: list[str]) -> list[int]:
    """Close the users' connections if --disconnect is given. Return the ids of the brokers that have closed
    them. Raises `CliError`.
    """
    if not args.disconnect or args.dry_run:
        return []
    from odradek.cli.disconnecting import disconnect

    with changing():
        return disconnect(client, [f"User:{user}" for user in users], args.timeout)


def _finish(args: argparse.Namespace, rows: list[_Row], brokers: list[int], done: str = "") -> None:
    """Print the changed users, and what happens to clients that are already connected."""
    if args.json:
        _show(args, rows, executed=not args.dry_run, disconnected_by_brokers=brokers)
        return
    _show(args, rows)
    if args.dry_run:
        say(paint(YELLOW, DRY_RUN))
    elif brokers:
        say(f"{done}; live connections were closed by {counted(len(brokers), 'broker')}")
    elif done:
        say(f"{done}; live connections stay until they authenticate again (--disconnect closes them at once)")
