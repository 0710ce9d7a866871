"""The keys of a properties file that Kafka 4.3 does not have: our own, those of earlier versions of Kafka, those of
its authorizer. PURE.
"""

from __future__ import annotations

from odradek.metadata_quorum.config.config_defs import ConfigDef
from odradek.node.configuration.audit_config import AUDIT_DEFS
from odradek.node.configuration.console_config import CONSOLE_DEFS
from odradek.node.configuration.metrics_config import METRICS_DEFS
from odradek.node.configuration.oauth_keys import WAIVED
from odradek.node.configuration.plain_logins import OWN_LOGIN_KEYS
from odradek.node.configuration.recovery_keys import RECOVERY_DEFS
from odradek.node.configuration.start_rules import ALLOW_EVERYONE, SUPER_USERS

START_WITHOUT_ACLS = "odradek.start.without.acls"
"""Our own key: with `true` a node starts although it does not enforce the ACLs in the metadata log."""
DISK_HUNG = "odradek.disk.hung.ms"
DISK_FULL = "odradek.disk.full.ms"
DISK_WRITE_WAIT = "odradek.disk.write.wait.ms"
"""Our own keys, all in milliseconds. `DISK_HUNG` is the time after which a disk counts as hung. `DISK_FULL`
is the time after which it counts as full. In both cases the leaderships of the disk's replicas then move to
other brokers. `DISK_WRITE_WAIT` is the longest wait for one write in a node with several disks (0: no limit).
"""
RESERVE_BYTES = "odradek.log.dir.reserve.bytes"
"""Our own key: the bytes of each disk that records must leave free; -1 means one percent of the disk, at most 1 GiB.
"""
UNSYNCED_BYTES = "odradek.flush.max.unsynced.bytes"
"""Our own key: the most bytes of each disk that the last segments of all logs may leave unsynced; -1 means any number.
"""
ADOPT_BLANK_DISKS = "odradek.log.dir.adopt.blank"
"""Our own key: with `true` a starting node formats each blank disk that has replaced another disk, and uses it."""
SCRUB_INTERVAL = "odradek.scrub.interval.ms"
"""Our own key: the milliseconds in which each log is read once to find damaged bytes; 0 means never."""
CLEANER_THREADS_PER_DISK = "odradek.log.cleaner.threads.per.disk"
"""Our own key: how many logs of one disk may be cleaned at a time."""
TRANSACTIONAL_IDS = "odradek.transactional.ids.max.per.partition"
"""Our own key: how many transactional ids one partition of `__transaction_state` may have."""
CONSUMER_MEMBERS = "odradek.group.consumer.members.max.per.partition"
"""Our own key: how many members the consumer groups of one partition of `__consumer_offsets` may have
together.
"""
TOKENS_PER_OWNER = "odradek.delegation.token.max.per.owner"
"""Our own key: how many delegation tokens the controller makes for one owner."""
SUSPICION = "odradek.broker.suspicion.ms"
"""Our own key: the age in milliseconds of a broker's last heartbeat at which the controller looks whether its process
still runs. 0 means that the controller never looks.
"""
SCRAM_SECRET = "odradek.scram.secret"
"""Our own key: a secret text that all brokers share. The salts for users who do not exist are derived from this text.
"""
OWN_DEFS: dict[str, ConfigDef] = (
    {
        name: ConfigDef("broker", name, kind, default, valid, "medium", False, False)
        for name, kind, default, valid in (
            (START_WITHOUT_ACLS, "boolean", "false", ""),
            (DISK_HUNG, "long", "15000", "[1,...,9999999999]"),
            (DISK_FULL, "long", "5000", "[1,...,9999999999]"),
            (DISK_WRITE_WAIT, "long", "1000", "[0,...,9999999999]"),
            (RESERVE_BYTES, "long", "-1", "[-1,...]"),
            (UNSYNCED_BYTES, "long", "1073741824", "[-1,...]"),
            (ADOPT_BLANK_DISKS, "boolean", "false", ""),
            (SCRUB_INTERVAL, "long", "604800000", "[0,...]"),
            (CLEANER_THREADS_PER_DISK, "int", "1", "[1,...]"),
            (TRANSACTIONAL_IDS, "int", "100000", "[1,...]"),
            (CONSUMER_MEMBERS, "int", "100000", "[1,...]"),
            (TOKENS_PER_OWNER, "int", "1000", "[1,...]"),
            (SUSPICION, "int", "3000", "[0,...]"),
            (SCRAM_SECRET, "password", "", ""),
            (WAIVED, "string", "", ""),
            *((key, "string", "", "") for key in OWN_LOGIN_KEYS),
        )
    }
    | AUDIT_DEFS
    | METRICS_DEFS
    | CONSOLE_DEFS
)
"""Keys that Kafka does not have. They are set in the properties file; DescribeConfigs shows them only if they are set, and
without their values.
"""

FORMER_DEFS: dict[str, ConfigDef] = {
    name: ConfigDef("broker", name, kind, None, "[0,...]", "medium", False, False)
    for name, kind in (
        ("controlled.shutdown.max.retries", "int"),
        ("controlled.shutdown.retry.backoff.ms", "long"),
    )
}
"""Keys that Kafka had before version 4 and that have an effect here. The value None means that the key is unset."""

AUTHORIZER_DEFS: dict[str, ConfigDef] = {
    name: ConfigDef("broker", name, kind, default, "", "medium", False, False)
    for name, kind, default in ((SUPER_USERS, "string", ""), (ALLOW_EVERYONE, "boolean", "false"))
}
"""Keys of Kafka's StandardAuthorizer (KIP-801). They are not among Kafka's own broker configurations."""


def own_and_former_defs() -> dict[str, ConfigDef]:
    """Return the definitions of all supported keys that Kafka 4.3 does not have."""
    return FORMER_DEFS | OWN_DEFS | AUTHORIZER_DEFS | RECOVERY_DEFS
