"""Full, hung, demoted and retired disks, and `min.insync.replicas` of topics, as brokers report them to the
commands.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from odradek.cli.output import counted, span_text

if TYPE_CHECKING:
    from odradek.client.admin.admin_logs import DirectoryHealth
    from odradek.client.admin.admin_methods import BlockingAdminMethods
    from odradek.client.core.scatter import CallError
    from odradek.serving.disk_troubles import TroubledDirectory

__all__ = [
    "Asker",
    "disk_troubles",
    "health_texts",
    "min_insync_replicas",
    "retiring_directories",
    "trouble_document",
    "trouble_text",
]

_ALARM_SECONDS = 24 * 3600
"""A disk gets a warning line if it will be full within this number of seconds, at the rate of the last hour."""
_MIN_ISR = "min.insync.replicas"


class Asker(Protocol):
    """An object that asks a cluster: the blocking client, or any other with an admin."""

    @property
    def admin(self) -> BlockingAdminMethods: ...


def min_insync_replicas(
    client: Asker,
    names: Collection[str],
    timeout: float | None = None,
    *,
    errors: dict[str, CallError] | None = None,
) -> dict[str, int]:
    """Read `min.insync.replicas` of these topics. A topic is left out if the cluster returns no value for it, and its error
    is put into `errors`.
    """
    from odradek.client.admin import ConfigResource, ResourceType

    resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(names)]
    found = {}
    if resources:
        for described in client.admin.describe_configs(resources, [_MIN_ISR], timeout=timeout):
            if described.error is not None and errors is not None:
                errors[described.resource.name] = described.error
            for entry in described.entries:
                if entry.value is not None:
                    found[described.resource.name] = int(entry.value)
    return found


def disk_troubles(
    client: Asker,
    brokers: Sequence[int],
    timeout: float,
    *,
    errors: dict[int, CallError] | None = None,
) -> dict[int, list[TroubledDirectory]]:
    """Read the full, hung and demoted directories by broker. A broker whose disks are all sound is left out. So is a
    broker that refuses to say, and its error is put into `errors`.
    """
    from odradek.client.admin import ConfigResource, ResourceType
    from odradek.serving.disk_troubles import TROUBLED_LOG_DIRS, parse_troubles

    resources = [ConfigResource(ResourceType.BROKER, str(node)) for node in brokers]
    found: dict[int, list[TroubledDirectory]] = {}
    if not resources:
        return found
    for described in client.admin.describe_configs(resources, [TROUBLED_LOG_DIRS], timeout=timeout):
        if described.error is not None and errors is not None:
            errors[int(described.resource.name)] = described.error
        troubled = parse_troubles("".join(entry.value or "" for entry in described.entries))
        if troubled:
            found[int(described.resource.name)] = troubled
    return found


def retiring_directories(client: Asker, brokers: Sequence[int], timeout: float) -> set[tuple[int, str]]:
    """Find (broker, path) of each directory that `odradek disk retire` is emptying, or has emptied but not
    released yet.
    """
    from odradek.client.admin import ConfigResource, ResourceType
    from odradek.serving.disk_troubles import RETIRING_LOG_DIRS

    resources = [ConfigResource(ResourceType.BROKER, str(node)) for node in brokers]
    if not resources:
        return set()
    return {
        (int(described.resource.name), path.strip())
        for described in client.admin.describe_configs(resources, [RETIRING_LOG_DIRS], timeout=timeout)
        for entry in described.entries
        for path in (entry.value or "").split(",")
    }


def trouble_text(broker: int, troubled: TroubledDirectory) -> str:
    """Describe the trouble of a directory in one sentence, with its start and its effects."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(troubled.since_ms / 1000))
    if troubled.trouble.value == "demoted":
        undo = f"`odradek disk demote --undo {broker}:{troubled.path}`"
        return f"broker {broker}: {troubled.path} is demoted since {since}, {undo} ends that"
    return (
        f"broker {broker}: {troubled.path} {_STATES[troubled.trouble.value]} since {since}; "
        "in-sync replicas on other brokers lead instead"
    )


_STATES = {"hung": "does not answer", "full": "is full"}


def trouble_document(broker: int, troubled: TroubledDirectory) -> dict[str, Any]:
    """Make the JSON object of a full, hung or demoted directory."""
    return {
        "broker": broker,
        "path": troubled.path,
        "trouble": troubled.trouble.value,
        "since_ms": troubled.since_ms,
    }


def health_texts(broker: int, path: str, health: DirectoryHealth | None) -> list[str]:
    """Return a line for each problem of a disk: it will be full soon, it is slow, or logs on it fail their
    checksums.
    """
    if health is None:
        return []
    alarms = []
    if health.seconds_left is not None and health.seconds_left < _ALARM_SECONDS and not health.is_short:
        # Show at least a minute, because the measured rate is too rough for seconds.
        left = span_text(max(1, health.seconds_left // 60) * 60_000)
        alarms.append(f"broker {broker}: {path} will be full in {left} at the rate of the last hour")
    if health.is_slow:
        alarms.append(
            f"broker {broker}: {path} is slow: a sync takes {health.sync_us / 1000:.0f} ms instead of "
            f"{health.usual_sync_us / 1000:.1f} ms; `odradek disk demote {broker}:{path}` lets other "
            "brokers lead"
        )
    if health.scrub_rotten:
        found = counted(health.scrub_rotten, "rotten log")
        alarms.append(
            f"broker {broker}: the scrub has found {found} in {path}; the events `log.rotten` in the "
            "broker's log name them"
        )
    return alarms
