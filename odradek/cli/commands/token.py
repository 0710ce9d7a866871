"""`odradek token create|list|renew|expire`: delegation tokens, with which clients log in as the token's owner
(KIP-48).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import bootstrap_of, changing, connected, security_properties
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import YELLOW, paint, print_json, print_table, print_values, say
from odradek.cli.parsing import Groups, add_command, add_connection_options, file_path
from odradek.cli.times import moment_text, span

if TYPE_CHECKING:
    from odradek.client.admin import DelegationToken
    from odradek.client.shells.blocking import Client

__all__ = ["register"]

DRY_RUN = "nothing was changed: repeat the command without --dry-run to do it"
RENEWERS_SHOWN = 3
_SPAN_HELP = "90s, 15m, 2h, 7d"
_SHARED_KEYS = (
    "security.protocol",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.endpoint.identification.algorithm",
)
"""Keys of --command-config that are copied into the file for a token: its user needs them, and none is secret."""
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def register(groups: Groups) -> None:
    """Add the command group `token` to the parser of the command line."""
    commands = groups.add_parser("token", help="create, list, renew, end delegation tokens").add_subparsers(
        metavar="COMMAND", required=True
    )
    _register_create(commands)
    listing = add_command(commands, "list", _list, "list the tokens that you may see", watch=True)
    listing.add_argument(
        "--owner", action="append", metavar="USER", help="list only tokens of this owner (repeat for more)"
    )
    add_connection_options(listing)
    renew = add_command(commands, "renew", _renew, "extend the lifetime of a token")
    _add_expiry_options(renew, "--for", "the token expires this long from now")
    expire = add_command(commands, "expire", _expire, "end a token now, or after a span of time")
    _add_expiry_options(expire, "--in", "end the token only after this time")


def _add_expiry_options(parser: argparse.ArgumentParser, flag: str, meaning: str) -> None:
    """Add the argument for the id of a token, and the option for the span of time after which the token
    expires.
    """
    parser.add_argument("token_id", metavar="ID")
    parser.add_argument(flag, dest="period", metavar="SPAN", type=span, help=f"{meaning}: {_SPAN_HELP}")
    parser.add_argument("--dry-run", action="store_true", help="show the token, and change nothing")
    add_connection_options(parser)


def _register_create(commands: Groups) -> None:
    create = add_command(
        commands, "create", _create, "create a token, with which clients log in as its owner"
    )
    create.add_argument(
        "--owner", metavar="USER", help="the user as whom the token logs in (default: yourself)"
    )
    create.add_argument(
        "--renewer",
        action="append",
        default=[],
        metavar="USER",
        help="a user who may renew the token besides its owner (repeat for more)",
    )
    create.add_argument(
        "--max-lifetime",
        metavar="SPAN",
        type=span,
        help=f"how long the token can be renewed: {_SPAN_HELP} (default: the cluster's limit)",
    )
    create.add_argument(
        "--to",
        metavar="FILE",
        type=file_path,
        help="write client settings with the token to this new file, which only you can read; the secret is not printed",
    )
    create.add_argument(
        "--mechanism", metavar="NAME", default="SCRAM-SHA-512", help="the SASL mechanism for the file of --to"
    )
    create.add_argument(
        "--dry-run", action="store_true", help="show what would be created, and create nothing"
    )
    add_connection_options(create)


def _principal(text: str) -> str:
    return text if ":" in text else f"User:{text}"


def _document(token: DelegationToken) -> dict[str, Any]:
    """Make the JSON object of a token without its secret."""
    return {
        "token_id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued_at_ms": token.issued_at_ms,
        "expires_at_ms": token.expires_at_ms,
        "max_at_ms": token.max_at_ms,
    }


def _create(args: argparse.Namespace) -> int:
    from odradek.security.scram import MECHANISMS

    if args.mechanism not in MECHANISMS:
        raise CliError(
            f"--mechanism {args.mechanism} is unknown: expected one of {', '.join(MECHANISMS)}", USAGE
        )
    if args.to is not None and os.path.exists(args.to):
        raise CliError(f"{args.to} exists already: name a new file", USAGE)
    owner = None if args.owner is None else _principal(args.owner)
    renewers = [_principal(each) for each in args.renewer]
    if args.dry_run:
        _say_dry_run(args, {"owner": owner, "renewers": renewers, "max_lifetime_ms": args.max_lifetime})
        return 0
    with connected(args) as client, changing():
        token = client.admin.create_delegation_token(
            owner=owner, renewers=renewers, max_lifetime_ms=args.max_lifetime or -1
        )
    secret = {} if args.to is not None else {"hmac": token.password}
    if args.to is not None:
        _write_keys(args, token)
    if args.json:
        print_json({**_document(token), **secret, "executed": True})
        return 0
    print_values(
        [
            ("token", token.token_id),
            ("owner", token.owner),
            ("expires", moment_text(token.expires_at_ms)),
            ("no renewal beyond", moment_text(token.max_at_ms)),
            *(("hmac, its password", each) for each in secret.values()),
            *(() if args.to is None else (("client keys", args.to),)),
        ]
    )
    return 0


def _write_keys(args: argparse.Namespace, token: DelegationToken) -> None:
    """Write a file of client keys (for --command-config), with which a client logs in by the token. From the
    creation of the file on, only the file's owner can read it.
    """
    known = {key: value for key, value in security_properties(args).items() if key in _SHARED_KEYS}
    keys = {
        "bootstrap.servers": bootstrap_of(args),
        **known,
        "sasl.mechanism": args.mechanism,
        "sasl.jaas.config": f'{_MODULE} required username="{token.token_id}" password="{token.password}" tokenauth="true";',
    }
    try:
        with open(
            os.open(args.to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.writelines(f"{key}={value}\n" for key, value in keys.items())
    except OSError as error:
        raise CliError(
            f"the token {token.token_id} was made, but {args.to} cannot be written ({error.strerror}): "
            f"run `odradek token expire {token.token_id}` to end the token"
        ) from None


def _say_dry_run(args: argparse.Namespace, document: dict[str, Any]) -> None:
    if args.json:
        print_json({**document, "executed": False})
        return
    print_values([(key.replace("_", " "), value) for key, value in document.items() if value])
    say(paint(YELLOW, DRY_RUN))


def _list(args: argparse.Namespace) -> int:
    owners = None if not args.owner else [_principal(each) for each in args.owner]
    with connected(args) as client:
        tokens = client.admin.describe_delegation_tokens(owners)
    if args.json:
        print_json({"tokens": [_document(each) for each in tokens]})
        return 0
    _show(tokens)
    return 0


def _show(tokens: list[DelegationToken]) -> None:
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            each.token_id,
            each.owner,
            each.requester,
            _renewers(each),
            "expired" if each.expires_at_ms < now_ms else moment_text(each.expires_at_ms),
            moment_text(each.max_at_ms),
        )
        for each in tokens
    ]
    print_table(("TOKEN", "OWNER", "REQUESTER", "RENEWERS", "EXPIRES", "NO RENEWAL BEYOND"), rows)


def _renewers(token: DelegationToken) -> str:
    """Format as many renewers as fit on a line; --json has all of them."""
    shown = ",".join(token.renewers[:RENEWERS_SHOWN]) or "-"
    more = len(token.renewers) - RENEWERS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _found(client: Client, token_id: str) -> DelegationToken:
    for token in client.admin.describe_delegation_tokens():
        if token.token_id == token_id:
            return token
    raise CliError(f"no token {token_id} is visible to you: `odradek token list` shows the tokens that are")


@contextmanager
def _by_renewer(token: DelegationToken) -> Iterator[None]:
    """Run a block. If it raises an error about missing rights, raise a `CliError` instead, which names the users who
    may change the token.
    """
    from odradek.wire.errors import ErrorCode, KafkaError

    try:
        yield
    except KafkaError as error:
        if error.code is not ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH:
            raise
        renewers = f", or a renewer ({', '.join(token.renewers)})," if token.renewers else ""
        raise CliError(
            f"only the token's owner {token.owner}{renewers} may change this token; no other right suffices"
        ) from None


def _renew(args: argparse.Namespace) -> int:
    with connected(args) as client:
        token = _found(client, args.token_id)
        if args.dry_run:
            _say_dry_run(args, _document(token))
            return 0
        with changing(), _by_renewer(token):
            until = client.admin.renew_delegation_token(token.hmac, period_ms=args.period or -1)
    return _say_until(args, token, until, "is valid until")


def _expire(args: argparse.Namespace) -> int:
    with connected(args) as client:
        token = _found(client, args.token_id)
        if args.dry_run:
            _say_dry_run(args, _document(token))
            return 0
        with changing(), _by_renewer(token):
            until = client.admin.expire_delegation_token(
                token.hmac, period_ms=-1 if args.period is None else args.period
            )
    return _say_until(args, token, until, "ended at" if args.period is None else "ends at")


def _say_until(args: argparse.Namespace, token: DelegationToken, until_ms: int, verb: str) -> int:
    if args.json:
        print_json({**_document(token), "expires_at_ms": until_ms, "executed": True})
    else:
        say(f"token {token.token_id} of {token.owner} {verb} {moment_text(until_ms)}")
    return 0
