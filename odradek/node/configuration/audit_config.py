"""The keys of the audit log, which are our own. PURE."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from odradek.metadata_quorum.config.config_defs import ConfigDef, ConfigValue
from odradek.node.configuration.listener_security import ListenerSecurity

__all__ = ["AUDIT_DEFS", "AuditConfig", "audit_config"]

ENABLED = "odradek.audit.enabled"
DIRECTORY = "odradek.audit.directory"
BYTES = "odradek.audit.file.bytes"
FILES = "odradek.audit.files"
REFUSALS_FILES = "odradek.audit.refusals.files"
AUDIT_DEFS: dict[str, ConfigDef] = {
    name: ConfigDef("broker", name, kind, default, valid, "medium", False, False)
    for name, kind, default, valid in (
        (ENABLED, "boolean", None, ""),
        (DIRECTORY, "string", "", ""),
        (BYTES, "int", str(64 << 20), "[4096,...]"),
        (FILES, "int", "10", "[2,...,1000]"),
        (REFUSALS_FILES, "int", "5", "[2,...,1000]"),
    )
}


@attrs.frozen
class AuditConfig:
    """The settings of the audit log: its directory, and the limits of its size."""

    directory: str
    bytes_max: int
    files_max: int
    refusals_files_max: int


def audit_config(
    values: Mapping[str, ConfigValue],
    security: Mapping[str, ListenerSecurity],
    metadata_log_dir: str,
    *,
    has_authorizer: bool,
) -> AuditConfig | None:
    """Make the audit log's settings; None if it is off. By default it is on if clients are authenticated or
    authorized: with an authorizer, or with a listener that has SASL or client certificates."""
    enabled = values[ENABLED]
    if enabled is None:
        enabled = has_authorizer or any(_knows_clients(each) for each in security.values())
    if not enabled:
        return None
    bounds = [values[name] for name in (BYTES, FILES, REFUSALS_FILES)]
    bytes_max, files_max, refusals_files_max = (int(bound) for bound in bounds if isinstance(bound, int))
    # The files are in the directory itself, because Apache Kafka refuses log directories with unknown
    # subdirectories.
    directory = str(values[DIRECTORY] or "") or metadata_log_dir
    return AuditConfig(directory, bytes_max, files_max, refusals_files_max)


def _knows_clients(security: ListenerSecurity) -> bool:
    return security.has_sasl or (security.tls is not None and security.tls.client_auth != "none")
