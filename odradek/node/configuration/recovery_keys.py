"""Our own keys of unclean recovery. Kafka 4.3 lacks them; their names come from KIP-966."""

from __future__ import annotations

from odradek.metadata_quorum.config.config_defs import ConfigDef

MANAGER_ENABLED = "unclean.recovery.manager.enabled"
RECOVERY_TIMEOUT = "unclean.recovery.timeout.ms"
RECOVERY_DEFS: dict[str, ConfigDef] = {
    name: ConfigDef("broker", name, kind, default, valid, "medium", False, False)
    for name, kind, default, valid in (
        (MANAGER_ENABLED, "boolean", "true", ""),
        (RECOVERY_TIMEOUT, "long", "300000", "[0,...,9999999999]"),
    )
}
"""The definitions of the keys of unclean recovery. Only properties files of controllers have them, and DescribeConfigs
leaves them out.
"""
