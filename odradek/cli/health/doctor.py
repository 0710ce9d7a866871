"""`odradek cluster doctor`: a self-test of the listeners from outside, as a client sees them.

It goes the way of a client: the bootstrap addresses, the cluster behind each, then each broker at the address that it
advertises. The command's own client decides whether a step works, with the keys of --command-config. Where it fails, a
probe by plain sockets finds the reason. Nothing is written to the cluster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.connecting import (
    LOOK_SECONDS_MAX,
    bootstrap_of,
    connected,
    kafka_failure,
    security_properties,
)
from odradek.cli.failure import CliError
from odradek.cli.health.judgement import UNHEALTHY
from odradek.cli.output import RED, counted, paint, print_json, print_table, say
from odradek.cli.parsing import add_command, add_connection_options

if TYPE_CHECKING:
    from odradek.cli.health.probing import Probe
    from odradek.cli.parsing import Groups
    from odradek.client.admin import ClusterDescription
    from odradek.client.shells.blocking import Client

__all__ = ["Finding", "register_doctor", "versions_of"]

_SKEW_MS = 5_000
"""Clocks that differ by more than this many milliseconds are reported."""


class Finding(NamedTuple):
    """One mistake: its kind for scripts, the address or broker, a sentence, and the key or setting to change."""

    kind: str
    subject: str
    text: str
    remedy: str

    @property
    def line(self) -> str:
        """The mistake and what to change, in one line."""
        return f"{self.subject}: {self.text}: {self.remedy}"


class _Seen(NamedTuple):
    """What was seen at one address: the probe, and the id of the cluster or broker if the client was let in."""

    role: str
    probe: Probe
    cluster_id: str | None = None


def register_doctor(commands: Groups) -> None:
    """Add the command `doctor` to the group `cluster`."""
    doctor = add_command(
        commands,
        "doctor",
        _doctor,
        "test the listeners as a client sees them: names, ports, certificates, logins, clocks, versions",
    )
    add_connection_options(doctor)


def _doctor(args: argparse.Namespace) -> int:
    args.timeout = min(args.timeout, LOOK_SECONDS_MAX)
    properties = security_properties(args)
    seen: list[_Seen] = []
    findings: list[Finding] = []
    clusters: dict[str, ClusterDescription] = {}
    for address in bootstrap_of(args).split(","):
        _test_bootstrap(args, address.strip(), properties, seen, findings, clusters)
    if clusters:
        (working, cluster), *_ = clusters.items()
        findings += _of_clusters(clusters)
        findings += _test_brokers(_at(args, working), working, cluster, properties, seen)
    if args.json:
        _print_document(seen, findings)
    else:
        _print(seen, findings)
    return UNHEALTHY if findings else 0


def _at(args: argparse.Namespace, address: str) -> argparse.Namespace:
    """Copy the arguments of the command with another bootstrap address."""
    return argparse.Namespace(**{**vars(args), "bootstrap_server": address})


def _probe(args: argparse.Namespace, host: str, port: int) -> Probe:
    from odradek.cli.health.probing import probe

    spoken = security_properties(args).get("security.protocol", "PLAINTEXT")
    return probe(host, port, args.timeout, tls_first=spoken.upper().endswith("SSL"))


def _test_bootstrap(
    args: argparse.Namespace,
    address: str,
    properties: Mapping[str, str],
    seen: list[_Seen],
    findings: list[Finding],
    clusters: dict[str, ClusterDescription],
) -> None:
    host, _, port = address.rpartition(":")
    try:
        with connected(_at(args, address)) as client:
            found = client.admin.describe_cluster(include_fenced=True, timeout=args.timeout)
    except CliError as error:
        looked = _probe(args, host.strip("[]"), int(port)) if port.isdecimal() else None
        if looked is None:
            findings.append(Finding("address", address, "this is no address", "write HOST:PORT"))
            return
        seen.append(_Seen("bootstrap", looked))
        findings.append(_why(looked, properties, str(error), "bootstrap.servers (--bootstrap-server)"))
        return
    clusters[address] = found
    seen.append(_Seen("bootstrap", _probe(args, host.strip("[]"), int(port)), found.cluster_id))


def _why(looked: Probe, properties: Mapping[str, str], error: str, key: str) -> Finding:
    """Find the mistake because of which the command's client failed at an address. `key` is the setting that has the
    address.
    """
    spoken = properties.get("security.protocol", "PLAINTEXT").upper()
    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    if not looked.addresses:
        return Finding(
            "name", looked.name, "its name does not resolve on this host", f"change {key}, or mend DNS"
        )
    if not looked.is_open:
        return Finding(
            "port",
            looked.name,
            f"no connection ({looked.trouble})",
            f"start the node, open the firewall, or change {key} to an address in the node's listeners",
        )
    if looked.protocol is None and not looked.wants_certificate:
        return Finding(
            "silent",
            looked.name,
            f"the port is open, but nothing there answers as Kafka ({looked.trouble})",
            f"look whether the node hangs, or change {key} to an address in the node's listeners",
        )
    if looked.has_tls is not spoken.endswith("SSL"):
        real = looked.protocol or "SSL"
        return Finding(
            "protocol",
            looked.name,
            f"the listener speaks {real}, and the client {spoken}",
            f"set security.protocol={real} in --command-config, or listener.security.protocol.map at the node",
        )
    if looked.protocol is not None and looked.protocol != spoken:
        return Finding(
            "protocol",
            looked.name,
            f"the listener speaks {looked.protocol}, and the client {spoken}",
            f"set security.protocol={looked.protocol} in --command-config, or listener.security.protocol.map at the node",
        )
    if looked.mechanisms and mechanism not in looked.mechanisms:
        return Finding(
            "mechanism",
            looked.name,
            f"the listener accepts {', '.join(looked.mechanisms)}, and the client has {mechanism}",
            "set sasl.mechanism in --command-config, or sasl.enabled.mechanisms at the node",
        )
    found = _of_tls(looked, error) if looked.has_tls else None
    return found or Finding(
        "refused", looked.name, error.rstrip(".")[:300], "mend this, then run the doctor again"
    )


def _of_tls(looked: Probe, error: str) -> Finding | None:
    small = error.lower()
    if "mismatch" in small and ("hostname" in small or "ip address" in small):
        return Finding(
            "certificate-name",
            looked.name,
            f"the node's certificate has another name than {looked.host}",
            "issue one with this name (ssl.keystore.location at the node), or change advertised.listeners to its name",
        )
    if "certificate" in small and ("expired" in small or "not yet valid" in small):
        return Finding(
            "certificate-time",
            looked.name,
            "the node's certificate is not valid now",
            "replace the file of ssl.keystore.location at the node, or mend the clock of this host",
        )
    if "verify failed" in small or "self-signed" in small or "unknown ca" in small:
        return Finding(
            "certificate-trust",
            looked.name,
            "the client does not trust the authority of the node's certificate",
            "set ssl.truststore.location in --command-config to that authority",
        )
    if looked.wants_certificate or "certificate_required" in small:
        return Finding(
            "certificate-client",
            looked.name,
            "the listener accepts clients by certificate (ssl.client.auth=required)",
            "set ssl.keystore.location in --command-config",
        )
    return None


def _of_clusters(clusters: Mapping[str, ClusterDescription]) -> Iterator[Finding]:
    """Find bootstrap addresses that lead to different clusters."""
    (first, cluster), *others = clusters.items()
    for address, found in others:
        if found.cluster_id != cluster.cluster_id:
            yield Finding(
                "cluster",
                address,
                f"it leads to cluster {found.cluster_id}, and {first} to cluster {cluster.cluster_id}",
                "change bootstrap.servers (--bootstrap-server)",
            )


def _test_brokers(
    args: argparse.Namespace,
    working: str,
    cluster: ClusterDescription,
    properties: Mapping[str, str],
    seen: list[_Seen],
) -> list[Finding]:
    """Test each broker at the address that it advertises to this listener."""
    findings = []
    by_address: dict[tuple[str, int], int] = {}
    probes: dict[int, Probe] = {}
    with connected(args) as client:
        for broker in cluster.brokers:
            subject = f"broker {broker.node_id}"
            other = by_address.setdefault((broker.host, broker.port), broker.node_id)
            if other != broker.node_id:
                findings.append(
                    Finding(
                        "same-address",
                        subject,
                        f"it advertises {broker.host}:{broker.port}, as broker {other} does",
                        "give each its own address in advertised.listeners",
                    )
                )
                continue
            if broker.node_id in cluster.fenced:
                findings.append(
                    Finding("down", subject, "the controllers call it down", "start it, or read its log")
                )
                continue
            looked = _probe(args, broker.host, broker.port)
            seen.append(_Seen(subject, looked))
            if not looked.addresses or not looked.is_open:
                found = _why(looked, properties, "", f"advertised.listeners of broker {broker.node_id}")
                findings.append(found._replace(subject=f"{subject} at {looked.name}"))
                findings += _loopback(subject, looked, working)
                continue
            findings += _loopback(subject, looked, working)
            probes[broker.node_id] = looked
            findings += _identity(client, broker.node_id, looked, properties, args.timeout)
        findings += _clocks(client, args.timeout)
    return [*findings, *versions_of(probes)]


def _loopback(subject: str, looked: Probe, working: str) -> Iterator[Finding]:
    """Find a broker that advertises an address of its own host alone, to a client that came from elsewhere."""
    from odradek.cli.health.probing import addresses_of

    if not _is_loopback(looked.addresses or [looked.host]):
        return
    host, _, port = working.rpartition(":")
    # Debian gives the host's own name the address 127.0.1.1.
    if not _is_loopback(addresses_of(host.strip("[]"), int(port))):
        yield Finding(
            "loopback",
            subject,
            f"it advertises {looked.name}, which is each client's own host",
            "set advertised.listeners to a name that clients reach",
        )


def _is_loopback(addresses: Sequence[str]) -> bool:
    import ipaddress

    try:
        return bool(addresses) and all(ipaddress.ip_address(each).is_loopback for each in addresses)
    except ValueError:
        return False


def _identity(
    client: Client, node: int, looked: Probe, properties: Mapping[str, str], timeout: float
) -> Iterator[Finding]:
    """Ask at a broker's address for the configuration of that broker, which no other broker answers."""
    from odradek.client.admin import ConfigResource, ResourceType
    from odradek.client.errors import ClientError
    from odradek.wire.errors import ErrorCode

    resource = ConfigResource(ResourceType.BROKER, str(node))
    (described,) = client.admin.describe_configs([resource], ["node.id"], timeout=timeout)
    subject = f"broker {node} at {looked.name}"
    error = described.error
    if isinstance(error, ClientError):
        key = f"advertised.listeners of broker {node}"
        yield _why(looked, properties, str(error), key)._replace(subject=subject)
    elif error is not None and error.code is ErrorCode.INVALID_REQUEST:
        yield Finding(
            "identity",
            subject,
            "another node answers there",
            f"change advertised.listeners of broker {node} to its own address",
        )
    elif error is not None and error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        yield Finding("refused", subject, str(kafka_failure(error)), "mend this, then run the doctor again")


def _clocks(client: Client, timeout: float) -> Iterator[Finding]:
    """Compare the clock of the controller that leads the quorum with the clock of this host."""
    from odradek.client.errors import ClientError
    from odradek.wire.errors import KafkaError

    try:
        before = time.time_ns() // 1_000_000
        quorum = client.admin.describe_quorum(timeout=timeout)
        after = time.time_ns() // 1_000_000
    except (KafkaError, ClientError):
        return
    leader = quorum.leader
    if leader is None or leader.last_fetch_ms < 0:
        return
    # The leader reports the present as the time of its own last fetch.
    skew = leader.last_fetch_ms - max(before, min(after, leader.last_fetch_ms))
    if abs(skew) > _SKEW_MS:
        yield Finding(
            "clock",
            f"controller {leader.node_id}",
            f"its clock is {abs(skew) / 1000:.0f} s {'ahead of' if skew > 0 else 'behind'} the clock of this host",
            "set both by NTP; times of records, tokens and certificates depend on it",
        )


def versions_of(probes: Mapping[int, Probe]) -> Iterator[Finding]:
    """Find brokers that serve other versions of APIs than most brokers do, so they run another release."""
    kinds: dict[tuple[tuple[int, tuple[int, int]], ...], list[int]] = {}
    for node, looked in probes.items():
        if looked.apis:
            kinds.setdefault(tuple(sorted(looked.apis.items())), []).append(node)
    if len(kinds) < 2:
        return
    usual = max(kinds, key=lambda kind: (len(kinds[kind]), -min(kinds[kind])))
    for kind, nodes in kinds.items():
        if kind != usual:
            different = sorted({api for api, _ in set(kind) ^ set(usual)})
            for node in nodes:
                yield Finding(
                    "version",
                    f"broker {node}",
                    f"it serves other versions of {counted(len(different), 'API')} than broker {kinds[usual][0]} does",
                    "finish the upgrade, so that all nodes run one release",
                )


def _print(seen: Sequence[_Seen], findings: Sequence[Finding]) -> None:
    print_table(
        ("WHO", "ADDRESS", "RESOLVES TO", "PORT", "PROTOCOL", "MECHANISMS"),
        [
            (
                each.role,
                each.probe.name,
                each.probe.addresses,
                "open" if each.probe.is_open else "CLOSED",
                each.probe.protocol or ("SSL" if each.probe.has_tls else None),
                each.probe.mechanisms,
            )
            for each in seen
        ],
        less=("RESOLVES TO",),
    )
    for finding in findings:
        say(paint(RED, finding.line))
    if not findings:
        say("a client with these keys finds each broker where it should be")


def _print_document(seen: Sequence[_Seen], findings: Sequence[Finding]) -> None:
    print_json(
        {
            "healthy": not findings,
            "findings": [finding._asdict() for finding in findings],
            "addresses": [
                {
                    "who": each.role,
                    "address": each.probe.name,
                    "resolves_to": list(each.probe.addresses),
                    "open": each.probe.is_open,
                    "protocol": each.probe.protocol,
                    "tls": each.probe.has_tls,
                    "wants_certificate": each.probe.wants_certificate,
                    "mechanisms": list(each.probe.mechanisms),
                    "cluster_id": each.cluster_id,
                }
                for each in seen
            ],
        }
    )
