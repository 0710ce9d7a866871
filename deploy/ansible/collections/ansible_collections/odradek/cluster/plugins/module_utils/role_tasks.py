"""A table of the roles' files of tasks: the purpose of each, and the variables that it uses. PURE.

`python -m deploy.role_pages` writes the roles' argument specs and READMEs from it, and from the table of variables.
"""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.odradek.cluster.plugins.module_utils.variables import OF_A_HOST, OF_ROLES


class Entry(NamedTuple):
    """A file of tasks that playbooks include: its purpose, and the variables that it uses."""

    text: str
    takes: tuple[str, ...] = ()


_NODE = ("node_root", "node_disks_root", "node_user")
_CONSOLE = tuple(each.name for each in OF_A_HOST if each.name.startswith("odradek_console"))
_FILES = (
    *_NODE,
    "odradek_cluster_id",
    "odradek_release",
    "node_settings",
    "node_memory_max",
    "node_tls",
    *_CONSOLE,
    "odradek_metrics_access",
)
_GATED = ("node_root", "node_health_seconds")
_MOVING = (*_GATED, "node_copy_seconds", "node_throttle")
ENTRIES: dict[str, dict[str, Entry]] = {
    "host": {
        "main": Entry(
            "Sets up user, packages, kernel and journal of a host, and checks its clock.",
            tuple(each.name for each in OF_ROLES["host"]),
        ),
        "judge": Entry("Examines a host and changes nothing.", ("host_systems", "host_memory_bytes_min")),
    },
    "disks": {
        "main": Entry(
            "Formats empty disks, and mounts all disks.",
            ("odradek_disks", "disks_root", "disks_bytes_min", "disks_user"),
        ),
        "look": Entry(
            "Refuses disks that hold anything.", ("odradek_disks", "disks_root", "disks_bytes_min")
        ),
    },
    "monitoring": {
        "main": Entry(
            "Writes scrape targets, a scrape job, alert rules and dashboards.",
            tuple(each.name for each in OF_ROLES["monitoring"]),
        ),
    },
    "node": {
        "backup": Entry(
            "Fetches a copy of the metadata log.",
            ("node_root", "node_disks_root", "node_backups", "node_backup_keep", "node_backup_recipient"),
        ),
        "balance_disks": Entry(
            "Spreads the replicas of each node over its disks.", (*_GATED, "node_throttle")
        ),
        "certificates": Entry(
            "Makes and distributes keys and certificates.",
            (
                "node_secrets",
                "node_certificates",
                "node_common_name",
                "node_certificate_days",
                "node_rotating",
                "odradek_console_certificate",
            ),
        ),
        "roll_out/converge": Entry(
            "Rolls out the inventory to one host of a running cluster.",
            (*_FILES, *_MOVING[1:], "node_replacing"),
        ),
        "found": Entry("Starts the first nodes of a cluster together.", (*_FILES, "node_health_seconds")),
        "install": Entry(
            "Installs a release in addition to the installed releases.",
            ("odradek_release", "node_root", "node_releases", "node_signers"),
        ),
        "recovering/inspect": Entry(
            "Fetches a report about the stopped nodes of this host.",
            (
                "node_user",
                "node_recovery",
                "node_recovery_here",
                "node_recovery_command",
                "node_recovery_configs",
            ),
        ),
        "recovering/plan": Entry(
            "Plans the recovery of a quorum from the reports of all hosts.",
            (
                "node_user",
                "node_recovery",
                "node_recovery_here",
                "node_recovery_command",
                "node_recovery_backup",
                "node_recovery_rebuilds",
                "node_recovery_access",
                "node_recovery_words",
            ),
        ),
        "recovering/carry_out": Entry(
            "Carries the plan out on the nodes of this host.",
            (
                "node_user",
                "node_recovery",
                "node_recovery_here",
                "node_recovery_command",
                "node_recovery_configs",
            ),
        ),
        "remove": Entry(
            "Removes everything that was installed.", (*_NODE, "odradek_disks", "odradek_remove_data")
        ),
        "replace_disk": Entry("Unmounts a disk that no node uses.", ("odradek_disk", *_NODE[:2])),
        "retire_disk": Entry(
            "Moves the replicas of a disk to the others, and unmounts it.",
            ("odradek_disk", *_NODE[:2], *_MOVING[1:]),
        ),
        "leaving/check": Entry(
            "Checks whether a host can move all its data and votes to other hosts.", _GATED
        ),
        "leaving/hand_over": Entry("Moves all replicas off a host.", _MOVING),
        "leaving/forget": Entry(
            "Stops the nodes of an empty host, and removes them from the cluster.", _GATED
        ),
        "leaving/give_up": Entry("Gives up a host that will not come back.", _MOVING),
        "share": Entry("Gives new brokers their share of the partitions.", _MOVING),
        "votes": Entry("Adds and removes voters, one at a time.", _GATED),
    },
}
"""The roles' files of tasks that use variables, by role and name."""

ABOUT_ROLES = {
    "host": "Kernel, journal, clock and user of a host that runs nodes.",
    "disks": "XFS on the disks of a host, mounted by UUID.",
    "monitoring": "Files for Prometheus and Grafana about a cluster, on a host of your choice.",
    "node": "Release, configuration and service of the nodes of a host; each file of `tasks/` does one job.",
}
