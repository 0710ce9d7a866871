"""The client of a command: its address and keys (--command-config), the connection to the leading controller,
and errors turned into messages for people.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from odradek.cli.failure import USAGE, CliError
from odradek.cli.parsing import DefaultAddress
from odradek.cli.streams.standard_streams import complain
from odradek.cli.streams.suggestions import with_closest_names

if TYPE_CHECKING:
    from odradek.client.admin import ClusterSurvey, QuorumDescription
    from odradek.client.shells.blocking import Client
    from odradek.wire.errors import KafkaError

__all__ = [
    "FOR_CONTROLLERS",
    "LOOK_SECONDS_MAX",
    "PAST",
    "bootstrap_of",
    "call_failure",
    "changing",
    "connected",
    "connected_to_controller",
    "controller_keys",
    "failure_of_some",
    "kafka_failure",
    "keys_judged",
    "present_quorum",
    "say_if_past",
    "security_properties",
]

LOOK_SECONDS_MAX = 3.0
"""The longest time, in seconds, that a read-only command waits for a node or the quorum. After this time the
command prints its output without the missing answers.
"""
FOR_CONTROLLERS = "odradek.controller."
"""The prefix of keys in --command-config for the controllers' listener, which often needs other credentials."""
PAST = (
    "brokers, leaders and replicas are shown as a controller last reported them, and may have changed since"
)
_PERHAPS_DONE = "the change may have been made anyway: check before you try again"


def security_properties(args: argparse.Namespace) -> dict[str, str]:
    """Read the keys of --command-config except addresses. Return an empty dict if the option is not given.
    Raises `CliError`.
    """
    return {
        key: value
        for key, value in _command_config(args).items()
        if key not in ("bootstrap.servers", "client.id") and not key.startswith(FOR_CONTROLLERS)
    }


def controller_keys(args: argparse.Namespace) -> dict[str, str]:
    """Return the keys of --command-config for the controllers' listener, with their prefix. Raises `CliError`."""
    return {key: value for key, value in _command_config(args).items() if key.startswith(FOR_CONTROLLERS)}


def _controller_properties(args: argparse.Namespace) -> dict[str, str]:
    """Read the keys for the controllers' listener: a key with the prefix `FOR_CONTROLLERS` overrides the key
    without it.
    """
    own = {
        key.removeprefix(FOR_CONTROLLERS): value
        for key, value in _command_config(args).items()
        if key.startswith(FOR_CONTROLLERS)
    }
    return {**security_properties(args), **own}


def bootstrap_of(args: argparse.Namespace) -> str:
    """Return the address to connect to: --bootstrap-server, else `bootstrap.servers` in --command-config,
    else the default. Raises `CliError`.
    """
    address: str = args.bootstrap_server
    return (
        _command_config(args).get("bootstrap.servers", address)
        if isinstance(address, DefaultAddress)
        else address
    )


def _command_config(args: argparse.Namespace) -> dict[str, str]:
    """Read the keys of --command-config. The file is read only once, since it may be a pipe (`<(...)` of a shell)."""
    found: dict[str, str] | None = getattr(args, "command_config_keys", None)
    if found is None:
        found = args.command_config_keys = _read_command_config(args.command_config)
    return found


def _read_command_config(path: str | None) -> dict[str, str]:
    if not path:
        return {}
    from odradek.metadata_quorum.config.java_properties import MalformedProperties, parse_properties

    try:
        with open(path, encoding="utf-8") as file:
            return parse_properties(file.read())
    except (OSError, UnicodeDecodeError, MalformedProperties) as error:
        raise CliError(f"--command-config cannot be used: {path} cannot be read: {error}", USAGE) from None


@contextmanager
def keys_judged() -> Iterator[None]:
    """Guard a block that makes a client: turn an error about a key of --command-config into `CliError`."""
    try:
        yield
    except ValueError as error:
        raise CliError(f"--command-config: {error}", USAGE) from None


def _without(properties: dict[str, str], kind: str | None) -> dict[str, str]:
    """Drop the keys that only clients of this kind know. `kind` is "ConsumerSettings" or "ProducerSettings";
    None drops nothing.
    """
    if kind is None:
        return properties
    from odradek.client.core import client_keys

    def names(settings: str) -> set[str]:
        return {each.name.replace("_", ".") for each in getattr(client_keys, settings).__attrs_attrs__}

    theirs = names(kind) - names("AdminSettings")
    return {key: value for key, value in properties.items() if key not in theirs}


def _client(args: argparse.Namespace, address: str, properties: dict[str, str]) -> Client:
    """Make a blocking client from the common options, for the servers at `address`. Raises `CliError`."""
    from odradek.client.shells.blocking import Client

    config, timeout_ms = None, int(args.timeout * 1000)
    try:
        if properties:
            from odradek.client.core.client_keys import AdminSettings

            own = {
                "bootstrap.servers": address,
                "client.id": "odradek-cli",
                "request.timeout.ms": timeout_ms,
                "default.api.timeout.ms": timeout_ms,
            }
            config = AdminSettings.from_properties({**properties, **own}).client_config(fail_fast=True)
        return Client(address, client_id="odradek-cli", timeout_ms=timeout_ms, config=config)
    except ValueError as error:
        option = "--command-config" if properties else "--bootstrap-server"
        raise CliError(f"{option}: {error}", USAGE) from None


@contextmanager
def connected(args: argparse.Namespace, kind: str | None = None) -> Iterator[Client]:
    """Open the blocking client for --bootstrap-server and --timeout. Turn the client's errors into `CliError`.

    `kind` names the settings class of a consumer or producer that the command also opens. The file of
    --command-config may then have keys of this class, too.
    """
    from odradek.client.errors import ClientError
    from odradek.wire.errors import KafkaError, LocalProtocolError

    client = _client(args, bootstrap_of(args), _without(security_properties(args), kind))
    try:
        with client:
            try:
                yield client
            except (KafkaError, ClientError, CliError) as error:
                failure = error if isinstance(error, CliError) else call_failure(error)
                # While the client is open, it can ask for names that the user may have meant.
                text = with_closest_names(client, str(failure))
                raise CliError(text, failure.exit_code) from error
    except (KafkaError, ClientError) as error:
        raise call_failure(error) from error
    except LocalProtocolError as error:
        raise CliError(
            f"the request cannot be encoded, because an argument is too long or invalid: {error}", USAGE
        ) from error


@contextmanager
def connected_to_controller(
    args: argparse.Namespace, client: Client, quorum: QuorumDescription
) -> Iterator[tuple[Client, str]]:
    """Open a client of the controller that leads the quorum. Yield the client and the name of the
    controller's listener.
    """
    leader = quorum.leader
    if leader is None or not leader.endpoints:
        raise CliError(
            "the quorum has no leader just now, or does not say where its leader listens: try again"
        )
    from odradek.client.errors import ClientError

    listener, host, port = leader.endpoints[0]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        with _client(args, address, _controller_properties(args)) as controller:
            yield controller, listener
    except ClientError as error:
        error.add_note(_controller_hint(args, client, listener, address))
        raise


def _controller_hint(args: argparse.Namespace, client: Client, listener: str, address: str) -> str:
    """Say which listener gave no answer, and which key of --command-config decides how to speak with it."""
    known: dict[str, str] = vars(args).setdefault("controller_hints", {})
    if address not in known:
        wanted = _protocol_of(client, listener)
        used = _controller_properties(args).get("security.protocol", "PLAINTEXT").upper()
        key = f"{FOR_CONTROLLERS}security.protocol"
        if wanted is not None and wanted != used:
            remedy = f"it speaks {wanted}, and this command spoke {used}: set {key}={wanted}"
        elif used == "PLAINTEXT":
            remedy = f"if it is secured, set {key} to its protocol"
        else:
            kind = "ssl." if used == "SSL" else "sasl. and ssl." if used == "SASL_SSL" else "sasl."
            remedy = f"the command spoke {used}: check the keys that begin with {FOR_CONTROLLERS}{kind}"
        known[address] = (
            f"This is the controllers' listener {listener} at {address}; {remedy} in the --command-config file (docs/security.md)"
        )
    return known[address]


def _protocol_of(client: Client, listener: str) -> str | None:
    """Look up the security protocol of a listener in the configuration of a broker; None if it is unknown."""
    from odradek.client.admin import ConfigResource, ResourceType
    from odradek.client.errors import ClientError
    from odradek.wire.errors import KafkaError

    key = "listener.security.protocol.map"
    try:
        brokers = client.admin.describe_cluster(timeout=LOOK_SECONDS_MAX).brokers
        resources = [ConfigResource(ResourceType.BROKER, str(each.node_id)) for each in brokers[:1]]
        described = client.admin.describe_configs(resources, [key], timeout=LOOK_SECONDS_MAX)
    except (KafkaError, ClientError):
        return None
    text = "".join(entry.value or "" for each in described for entry in each.entries)
    protocols = dict(pair.strip().split(":", 1) for pair in text.split(",") if ":" in pair)
    found = protocols.get(listener)
    return None if found is None else found.strip().upper()


@contextmanager
def changing(changes: bool = True) -> Iterator[None]:
    """Guard a block of calls that change the cluster. If no answer comes, raise a `CliError` which says that
    the change may have been made nevertheless.
    """
    from odradek.client.errors import ClientError
    from odradek.wire.errors import KafkaError

    try:
        yield
    except (KafkaError, ClientError) as error:
        raise call_failure(error, changes=changes) from error


def present_quorum(args: argparse.Namespace, client: Client) -> QuorumDescription:
    """Return the state of the quorum, for commands that need its leader. Raises `CliError` if it has no
    leader within `LOOK_SECONDS_MAX`.
    """
    from odradek.client.errors import RequestTimedOut
    from odradek.wire.errors import KafkaError

    # If no broker can be reached, fail here, so that the message does not speak of the quorum.
    client.admin.describe_cluster()
    try:
        return client.admin.describe_quorum(timeout=min(args.timeout, LOOK_SECONDS_MAX))
    except (KafkaError, RequestTimedOut) as error:
        if isinstance(error, KafkaError) and not error.code.retriable:
            raise
        raise CliError(
            "the quorum has no leader: start a majority of its voters (`odradek cluster status` shows "
            "the quorum); if most of their disks are lost, `odradek quorum recover` restores the quorum"
        ) from error


def say_if_past(survey: ClusterSurvey) -> None:
    """Print a line on stderr if no controller answered. The output then comes from one broker's copy of the metadata,
    which may be out of date.
    """
    if not survey.is_current:
        sys.stdout.flush()
        complain(f"no controller answers: {PAST}")


def call_failure(error: Exception, *, changes: bool = False) -> CliError:
    """Turn the error of a call, or of one item in a call, into a `CliError` with the cause and the remedy.

    `changes` is true if the call was a change of the cluster.
    """
    from odradek.client.errors import (
        BrokerUnavailable,
        ConnectionBroken,
        RequestTimedOut,
        UnsupportedByBroker,
    )
    from odradek.wire.errors import KafkaError

    notes: Sequence[str] = getattr(error, "__notes__", ())
    match error:
        case KafkaError():
            return kafka_failure(error, changes=changes)
        case BrokerUnavailable() | ConnectionBroken() if "CERTIFICATE_REQUIRED" in str(error):
            return CliError(
                f"{error}. This listener accepts clients by certificate: set ssl.keystore.location in "
                "the --command-config file (for the controllers' listener "
                "odradek.controller.ssl.keystore.location)"
            )
        case _ if notes:
            return CliError(f"{error}. {' '.join(dict.fromkeys(notes))}")
        case BrokerUnavailable():
            return CliError(
                f"{error}. Is a node running there? --bootstrap-server or ODRADEK_BOOTSTRAP names the address"
            )
        case RequestTimedOut() if changes:
            return CliError(
                f"{error}: {_PERHAPS_DONE} (`odradek cluster status` shows whether brokers are down)"
            )
        case RequestTimedOut():
            return CliError(
                f"{error}. A longer --timeout may help; `odradek cluster status` shows whether brokers or the quorum are down"
            )
        case UnsupportedByBroker():
            return CliError(
                f"{error}: the address may be a controller's listener (name a broker's with "
                "--bootstrap-server or ODRADEK_BOOTSTRAP), or the broker's version may be too old or "
                "too new"
            )
        case ConnectionBroken():
            return CliError(f"{error}. The broker may have performed the request: check, then try again")
        case _:
            return CliError(str(error))


def failure_of_some(failed: Sequence[tuple[str, Exception]]) -> CliError:
    """Make one error from several changes that failed. Its text has the reason of the first failed change, and the
    names of the other failed changes.
    """
    (_, error), *others = failed
    text = str(call_failure(error, changes=True))
    names = ", ".join(name for name, _ in others)
    return CliError(f"{text}; for the same reason not done: {names}" if names else text)


def kafka_failure(error: KafkaError, *, changes: bool = False) -> CliError:
    """Turn an error code in an answer into a `CliError` with a message for people."""
    from odradek.wire.errors import ErrorCode

    text = f"{error.message or error.code.name} ({error.code.name})"
    match error.code:
        case ErrorCode.MISMATCHED_ENDPOINT_TYPE:
            return CliError(
                "a controller listens at this address, and does not serve clients: name a broker's "
                f"listener with --bootstrap-server or ODRADEK_BOOTSTRAP ({error.code.name})"
            )
        case ErrorCode.REQUEST_TIMED_OUT if changes:
            return CliError(f"{text}: {_PERHAPS_DONE}")
        case ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            return CliError(
                f"{text}. Try again later or with a longer --timeout; `odradek quota explain` shows "
                "the controller_mutation_rate that limits you"
            )
        case _:
            return CliError(text)
