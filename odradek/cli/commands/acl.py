"""`odradek acl list|add|remove|check`: rules that allow or deny users operations on resources."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from odradek.cli.access.access_words import principal_of
from odradek.cli.access.judging import acl_document, authorizer_of
from odradek.cli.connecting import changing, connected
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import YELLOW, counted, paint, print_json, print_table, say
from odradek.cli.parsing import Groups, add_command, add_connection_options

if TYPE_CHECKING:
    from odradek.client.shells.blocking import Client
    from odradek.security.acls.acl_requests import AclFilter
    from odradek.security.acls.rules import Acl

__all__ = ["register"]

_RESOURCES = ("topic", "group", "transactional-id", "delegation-token", "user-resource")
"""Names of the options that select a resource (`--topic` and so on). The option `--user` names the acting
user, so resources of the type USER have the option `--user-resource`.
"""
_TYPES = {"user-resource": "USER"}
DENIED = 1


def register(groups: Groups) -> None:
    """Add the command group `acl` to the parser of the command line."""
    commands = groups.add_parser("acl", help="list, add, remove, check rights").add_subparsers(
        metavar="COMMAND", required=True
    )
    listing = add_command(commands, "list", _list, "list the ACL rules that fit the options", watch=True)
    _add_rule_options(listing)
    add_connection_options(listing)
    add = add_command(commands, "add", _add, "add ACL rules that allow or deny operations")
    _add_rule_options(add)
    add.add_argument(
        "--deny",
        action="store_true",
        help="deny the operations instead (a denial outweighs every permission)",
    )
    add.add_argument("--dry-run", action="store_true", help="show the rules, and add nothing")
    add_connection_options(add)
    remove = add_command(commands, "remove", _remove, "remove the ACL rules that fit the options")
    _add_rule_options(remove)
    remove.add_argument(
        "--exact",
        action="store_true",
        help=(
            "remove only the rules that `acl add` would add for the same options (default: all rules that match "
            "the options)"
        ),
    )
    remove.add_argument("--deny", action="store_true", help="with --exact: remove the rules that deny")
    remove.add_argument("--dry-run", action="store_true", help="show the rules, and remove nothing")
    add_connection_options(remove)
    check = add_command(
        commands, "check", _check, "show whether a user may do something, and which rule decides"
    )
    _add_rule_options(check)
    check.add_argument(
        "--super-user",
        action="append",
        default=[],
        metavar="USER",
        help="treat this user as one of the super.users of the nodes' properties files (repeat for more)",
    )
    check.add_argument(
        "--allow-everyone",
        action="store_true",
        help="assume that the nodes' properties files have allow.everyone.if.no.acl.found=true",
    )
    add_connection_options(check)


def _add_rule_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--user",
        action="append",
        metavar="USER",
        help="the user that the rules are about: NAME, TYPE:NAME, or * for all (repeat for more)",
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", help="the address of the client (default for add: any address)"
    )
    parser.add_argument(
        "--operation",
        action="append",
        metavar="NAME",
        help="the operation: read, write, create, ..., or all (repeat for more)",
    )
    for name in _RESOURCES:
        parser.add_argument(
            f"--{name}", action="append", metavar="NAME", help=f"a {name.replace('-', ' ')}, or * for all"
        )
    parser.add_argument("--cluster", action="store_true", help="the cluster itself")
    parser.add_argument("--prefixed", action="store_true", help="treat the names as prefixes")


def _resources(args: argparse.Namespace) -> list[tuple[int, str]]:
    from odradek.security.acls.rules import CLUSTER_NAME, ResourceType

    found = []
    for option in _RESOURCES:
        kind = ResourceType[_TYPES.get(option, option.upper().replace("-", "_"))]
        found += [(int(kind), name) for name in getattr(args, option.replace("-", "_")) or ()]
    if args.cluster:
        found.append((int(ResourceType.CLUSTER), CLUSTER_NAME))
    return found


def _operations(args: argparse.Namespace) -> list[int]:
    from odradek.security.acls.rules import operation_named

    try:
        return [int(operation_named(each)) for each in args.operation or ()]
    except ValueError as error:
        raise CliError(f"--operation {error}", USAGE) from None


def _needed(args: argparse.Namespace) -> list[tuple[str, int, int, str]]:
    """List all combinations of the options' values, each as (principal, operation, resource type, name)."""
    resources, operations = _resources(args), _operations(args)
    if not (args.user and resources and operations):
        raise CliError("give --user, --operation and a resource, such as --topic NAME", USAGE)
    return [
        (principal_of(user), operation, kind, name)
        for user in args.user
        for kind, name in resources
        for operation in operations
    ]


def _rules(args: argparse.Namespace) -> list[Acl]:
    from odradek.security.acls.rules import Acl, PatternType, Permission, check_supported

    pattern = PatternType.PREFIXED if args.prefixed else PatternType.LITERAL
    permission = Permission.DENY if args.deny else Permission.ALLOW
    rules = []
    for principal, operation, kind, name in _needed(args):
        try:
            check_supported(kind, operation)
        except ValueError as error:
            raise CliError(str(error), USAGE) from None
        rules.append(Acl(kind, name, pattern, principal, args.host or "*", operation, permission))
    return rules


def _filters(args: argparse.Namespace) -> list[AclFilter]:
    """Make a filter of rules for each combination of the options. An option that is not given matches
    everything.
    """
    from odradek.security.acls.acl_requests import AclFilter
    from odradek.security.acls.rules import Operation, PatternType, Permission, ResourceType

    pattern = PatternType.PREFIXED if args.prefixed else PatternType.ANY
    users: list[str | None] = [*(principal_of(user) for user in args.user or ())] or [None]
    resources: list[tuple[int, str | None]] = [*_resources(args)] or [(int(ResourceType.ANY), None)]
    operations = _operations(args) or [int(Operation.ANY)]
    return [
        AclFilter(kind, name, pattern, user, args.host, operation, Permission.ANY)
        for user in users
        for kind, name in resources
        for operation in operations
    ]


def _exact_filters(args: argparse.Namespace) -> list[AclFilter]:
    """Make filters that each match exactly one of the rules that the options describe."""
    import attrs

    from odradek.security.acls.acl_requests import AclFilter

    return [AclFilter(*attrs.astuple(rule)) for rule in _rules(args)]


def _show(args: argparse.Namespace, acls: Iterable[Acl], **more: Any) -> None:
    documents = [acl_document(acl) for acl in sorted(acls, key=str)]
    if args.json:
        print_json({"acls": documents, **more})
        return
    rows = [
        (
            each["principal"],
            each["permission"],
            each["operation"],
            each["resource_type"],
            each["resource_name"] + ("..." if each["pattern_type"] == "prefixed" else ""),
            each["host"],
        )
        for each in documents
    ]
    print_table(("PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "HOST"), rows)


def _found(client: Client, filters: Iterable[AclFilter]) -> list[Acl]:
    return list(dict.fromkeys(acl for each in filters for acl in client.admin.describe_acls(each)))


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        _show(args, _found(client, _filters(args)))
    return 0


def _add(args: argparse.Namespace) -> int:
    rules = _rules(args)
    if args.dry_run:
        _show(args, rules, executed=False)
        if not args.json:
            say(paint(YELLOW, "nothing was changed: repeat the command without --dry-run to do it"))
        return 0
    with connected(args) as client, changing():
        for error in client.admin.create_acls(rules).values():
            if error is not None:
                raise error
    _show(args, rules, executed=True)
    return 0


def _remove(args: argparse.Namespace) -> int:
    filters = _exact_filters(args) if args.exact else _filters(args)
    if args.deny and not args.exact:
        raise CliError("--deny needs --exact", USAGE)
    if not (args.user or args.operation or args.host or _resources(args)):
        raise CliError("name the rules to remove: give --user, --operation, --host or a resource", USAGE)
    with connected(args) as client:
        if args.dry_run:
            gone = _found(client, filters)
        else:
            with changing():
                gone = client.admin.delete_acls(filters)
    _show(args, gone, executed=not args.dry_run)
    if not args.json:
        say(
            paint(YELLOW, "nothing was changed: repeat the command without --dry-run to do it")
            if args.dry_run
            else f"{counted(len(gone), 'rule')} removed"
        )
    return 0


def _check(args: argparse.Namespace) -> int:
    """Print whether each requested operation is allowed. Return the exit code: 0 if all operations are
    allowed, 1 if one is denied.
    """
    from odradek.security.acls.rules import Operation, ResourceType

    needed = _needed(args)
    super_users = frozenset(principal_of(user) for user in args.super_user)
    with connected(args) as client:
        authorizer = authorizer_of(client, super_users, args.allow_everyone)
    documents = []
    for principal, operation, kind, name in needed:
        judged = authorizer.judge(principal, args.host or "*", operation, kind, name)
        documents.append(
            {
                "principal": principal,
                "operation": Operation(operation).name.lower(),
                "resource_type": ResourceType(kind).name.lower(),
                "resource_name": name,
                "allowed": judged.is_allowed,
                "reason": judged.reason.value,
                "rule": None if judged.rule is None else acl_document(judged.rule),
                "decided_by": str(judged.rule) if judged.rule is not None else judged.reason.value,
            }
        )
    if args.json:
        print_json({"checks": documents})
    else:
        rows = [
            (
                each["principal"],
                each["operation"],
                f"{each['resource_type']} {each['resource_name']}",
                "allowed" if each["allowed"] else "denied",
                each["decided_by"],
            )
            for each in documents
        ]
        print_table(("PRINCIPAL", "OPERATION", "RESOURCE", "ANSWER", "DECIDED BY"), rows)
    return 0 if all(each["allowed"] for each in documents) else DENIED
