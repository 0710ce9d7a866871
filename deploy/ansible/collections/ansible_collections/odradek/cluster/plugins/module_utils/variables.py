"""A table of the collection's variables: name, type, range and purpose of each. PURE.

Inventories are checked against it (`plugins/filter/judgement.py`). `python -m deploy.role_pages` writes the roles'
argument specs and READMEs from it.
"""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.odradek.cluster.plugins.module_utils.faces import (
    ACCESS,
    CONSOLE_PORT,
    NONE,
    OPEN,
    PLACES,
)

NODE_ID_MAX = 2147483647
PORT_MAX = 65535


class Variable(NamedTuple):
    """One variable, or one key of a dictionary."""

    name: str
    type: str
    text: str
    default: object = None
    """The value of an unset variable; None if `text` describes it."""
    required: bool = False
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    elements: str | None = None
    options: tuple[Variable, ...] = ()
    pattern: str | None = None
    """The regular expression that the whole text must match. `like` has an example."""
    like: str = ""


def _port(name: str, text: str, default: int | None = None) -> Variable:
    return Variable(name, "int", text, default, low=1, high=PORT_MAX)


def _node_id(name: str, text: str) -> Variable:
    return Variable(name, "int", text, low=0, high=NODE_ID_MAX)


ROLES = ("broker,controller", "broker", "controller")
STAGES = ("plaintext", "beside", "within", "only")
_RATE = r"[0-9]+(\.[0-9]+)?[kKmMgGtT]?i?[bB]?"
_SYSTEMD_BYTES = r"infinity|[0-9]+(\.[0-9]+)?[KMGTPE]?|[0-9]+(\.[0-9]+)?%"
_STATE = Variable(
    "state", "str", "Whether the entry must exist in the cluster.", "present", choices=("present", "absent")
)

MONITORING = (
    Variable(
        "odradek_monitoring_host",
        "str",
        "The host that gets the files of the playbook monitoring.",
        "localhost",
    ),
    Variable(
        "odradek_monitoring_directory",
        "path",
        "Directory of the scrape targets, the scrape job and the alert rules there.",
        "/etc/prometheus/odradek",
    ),
    Variable(
        "odradek_monitoring_dashboards",
        "path",
        "Directory of the dashboards there (default: dashboards below it).",
    ),
    Variable("odradek_monitoring_job", "str", "Name of the scrape job.", "odradek"),
    Variable(
        "odradek_monitoring_runbooks",
        "str",
        "Address of your copy of docs/operations.md, for links of alerts.",
    ),
    Variable("odradek_monitoring_user", "str", "The user of odradek_users as whom Prometheus logs in."),
    Variable("odradek_monitoring_owner", "str", "Owner of the files (default: the user who writes them)."),
    Variable("odradek_monitoring_group", "str", "Group of the files, such as prometheus."),
    Variable(
        "odradek_monitoring_config", "path", "Configuration of Prometheus there, which promtool then checks."
    ),
    Variable(
        "odradek_monitoring_service", "str", "Service of Prometheus there, which is reloaded after a change."
    ),
)
"""Variables of the playbook monitoring; the role has them without their first word."""

OF_ALL = (
    Variable("odradek_cluster_id", "str", "Id of the cluster, any text; it never changes.", required=True),
    Variable(
        "odradek_release", "str", "Version of the release, as in the name of its tar archive.", required=True
    ),
    Variable("odradek_releases", "path", "Directory of the releases on the control machine."),
    Variable("odradek_settings", "dict", "Properties of all nodes, by Kafka's names."),
    Variable(
        "odradek_settings_unknown",
        "list",
        "Unknown keys in settings that are accepted without a complaint.",
        elements="str",
    ),
    Variable(
        "odradek_variables_unknown",
        "list",
        "Your own variables that look like misspelled variables of the collection and are accepted.",
        elements="str",
    ),
    Variable(
        "odradek_security",
        "str",
        "The stage of security, from plaintext for all to TLS and logins for all.",
        "plaintext",
        choices=STAGES,
    ),
    Variable("odradek_secrets", "path", "Directory of keys and passwords on the control machine."),
    Variable(
        "odradek_certificates", "path", "Directory of your own certificates, used in place of generated ones."
    ),
    Variable("odradek_super_users", "list", "Principals that may do everything.", elements="str"),
    Variable(
        "odradek_release_signers",
        "list",
        "Public keys; one of them must have signed each release.",
        elements="str",
    ),
    Variable("odradek_backups", "path", "Directory of backups on the control machine."),
    Variable(
        "odradek_backup_keep",
        "int",
        "How many backups are kept; 0 means that no backups are made by a timer.",
        low=0,
    ),
    Variable(
        "odradek_backup_calendar",
        "str",
        "When hosts make backups, as a calendar expression of systemd.",
        "daily",
    ),
    Variable("odradek_backup_recipient", "path", "Certificate whose public key encrypts backups."),
    Variable("odradek_topics", "list", "Topics; the module topics checks each entry.", elements="dict"),
    Variable(
        "odradek_quotas", "list", "Quotas of clients; the module quotas checks each entry.", elements="dict"
    ),
    *MONITORING,
    Variable(
        "odradek_find_prefixes",
        "list",
        "Prefixes of the kernel names of disks that find_disks and discover look at.",
        ["sd", "nvme", "vd"],
        elements="str",
    ),
    Variable(
        "odradek_users",
        "list",
        "Users who log in.",
        elements="dict",
        options=(
            Variable("name", "str", "The user.", required=True),
            Variable("password", "str", "The password; a random one is made if it is missing."),
            _STATE,
        ),
    ),
    Variable(
        "odradek_acls",
        "list",
        "Rights of users.",
        elements="dict",
        options=(
            Variable("user", "str", "The user, or a principal.", required=True),
            Variable("operation", "str", "What is allowed.", required=True),
            Variable("topic", "str", "A topic."),
            Variable("group", "str", "A group."),
            Variable("transactional_id", "str", "A transactional id."),
            Variable("cluster", "bool", "The cluster itself."),
            Variable("prefixed", "bool", "Whether the name is a prefix of names.", False),
            Variable("host", "str", "Address of the clients to which the rule applies.", "*"),
            Variable("deny", "bool", "Whether the rule denies the operation.", False),
            _STATE,
        ),
    ),
)
"""Variables that apply to the whole cluster."""

OF_A_HOST = (
    _node_id("odradek_node_id", "Id of the host's node; never given to another node."),
    Variable("odradek_voter", "bool", "Whether the host's first node votes.", False),
    Variable(
        "odradek_disks",
        "list",
        "The host's disks, or the word discover; the first has the metadata log, too.",
        elements="dict",
        options=(
            Variable(
                "name",
                "str",
                "Short name of the disk, and name of its mount point.",
                required=True,
                pattern=r"[a-z0-9]{1,8}",
                like="one to eight small letters and digits",
            ),
            Variable(
                "device",
                "path",
                "Path of the disk, preferably in /dev/disk/by-id.",
                required=True,
                pattern=r"/.+",
                like="a path that begins with a slash",
            ),
        ),
    ),
    Variable("odradek_rack", "str", "The rack of the host; replicas of a partition go to different racks."),
    Variable("odradek_address", "str", "Where clients and nodes reach the host (default: ansible_host)."),
    Variable("odradek_host_settings", "dict", "Properties of the host's nodes."),
    Variable("odradek_roles", "str", "Roles of its nodes.", ROLES[0], choices=ROLES),
    Variable(
        "odradek_nodes",
        "list",
        "Several nodes on the host.",
        elements="dict",
        options=(
            _node_id("id", "Its id.")._replace(required=True),
            Variable("disks", "list", "Names of its disks (default: all of the host).", elements="str"),
            Variable("voter", "bool", "Whether it votes."),
            Variable("roles", "str", "Its roles.", choices=ROLES),
            Variable("cpus", "str", "Processors to which the node is bound."),
            Variable("settings", "dict", "Its own properties."),
            _port("client_port", "Port of its clients."),
            _port("controller_port", "Port of its controller."),
            _port("metrics_port", "Port of its metrics."),
            _port("console_port", "Port of its console."),
        ),
    ),
    _port("odradek_client_port", "Port of clients.", 9092),
    _port("odradek_controller_port", "Port of controllers.", 9093),
    _port("odradek_metrics_port", "Port of the metrics page.", 9094),
    Variable(
        "odradek_metrics_access",
        "str",
        "Who may read the metrics page: everybody, everybody by HTTPS, or users who log in.",
        OPEN,
        choices=ACCESS,
    ),
    _port("odradek_secured_port", "Port of clients that log in by SASL_SSL.", 9095),
    _port("odradek_brokers_port", "Port at which brokers reach each other, with certificates.", 9096),
    _port("odradek_controller_ssl_port", "Port of controllers, with certificates.", 9097),
    Variable("odradek_more_names", "list", "Additional names in the host's certificate.", elements="str"),
    Variable(
        "odradek_console",
        "str",
        "Where browsers reach the console: nowhere, on the host itself, or on the network with TLS and logins.",
        NONE,
        choices=PLACES,
    ),
    _port("odradek_console_port", "Port of the console.", CONSOLE_PORT),
    Variable(
        "odradek_console_names",
        "list",
        "Additional names by which browsers reach the console.",
        elements="str",
    ),
    Variable(
        "odradek_console_certificate",
        "path",
        "Key and certificate for browsers, in one PEM file on the control machine; otherwise those of the host.",
    ),
    Variable(
        "odradek_console_client", "dict", "Keys of clients for the console, such as schema.registry.url."
    ),
)
"""Variables that apply to one host."""

OF_A_RUN = (
    Variable("odradek_host", "str", "The host on which a playbook works."),
    Variable("odradek_disk", "str", "The disk on which a playbook works."),
    Variable("odradek_to", "str", "The release that rollback goes to."),
    Variable("odradek_topics_loss", "str", "Topics that may lose records or replicas in this run."),
    Variable(
        "odradek_accept",
        "str",
        "What may become unavailable during restarts in this run: topics, partitions, quorum, all.",
    ),
    Variable(
        "odradek_strict",
        "bool",
        "Whether a roll-out is refused if some partition becomes unavailable in every order of restarts.",
        False,
    ),
    Variable("odradek_pause", "bool", "Whether a roll-out pauses before each further host.", False),
    Variable("odradek_by_rack", "bool", "Whether a roll-out restarts all hosts of a rack together.", False),
    Variable("odradek_wipe", "str", "Serial numbers of used disks that are emptied in this run."),
    Variable("odradek_accept_loss", "str", "Topics whose records may be lost with a host that is removed."),
    Variable(
        "odradek_fewer_racks",
        "bool",
        "Whether replicas may share a rack once a host is removed.",
        False,
    ),
    Variable(
        "odradek_execute",
        "bool",
        "Whether recover carries out its plan; otherwise it only prints the plan.",
        False,
    ),
    Variable(
        "odradek_lost", "str", "Voters whose metadata directories are lost, as NODE:DIRECTORY,NODE:DIRECTORY."
    ),
    Variable("odradek_absent", "str", "Ids of nodes that recover cannot read, and that may come back."),
    Variable("odradek_gone", "str", "Ids of nodes that never come back."),
    Variable(
        "odradek_topic_ids", "str", "Topics to keep if disks hold several topics of one name, as NAME=ID."
    ),
    Variable("odradek_backup", "path", "Backup of the metadata log for recover and restore."),
    Variable(
        "odradek_even_if_older", "bool", "Whether the backup is used even if a node has a newer copy.", False
    ),
    Variable(
        "odradek_rebuild", "bool", "Whether recover rebuilds the metadata log without any copy of it.", False
    ),
    Variable("odradek_confirm", "str", "The cluster's id, as a confirmation of remove."),
    Variable("odradek_remove_data", "bool", "Whether remove empties the disks, too.", False),
    Variable(
        "odradek_passwords",
        "str",
        "Whether the passwords of existing users are set again.",
        "once",
        choices=("once", "always"),
    ),
    Variable(
        "odradek_fail_on_difference",
        "bool",
        "Whether a run with --check fails where a run without it would change something.",
        False,
    ),
)
"""Variables that apply to one run, given by -e."""

OF_ROLES = {
    "host": (
        Variable("host_user", "str", "User and group as which the nodes run.", "odradek"),
        Variable("host_uid", "int", "Numeric id of that user on hosts where it is created.", 640, low=1),
        Variable("host_gid", "int", "Numeric id of its group on hosts where it is created.", 640, low=1),
        Variable("host_uid", "int", "Numeric id of a new user.", 640, low=1),
        Variable("host_gid", "int", "Numeric id of a new group.", 640, low=1),
        Variable("host_packages", "list", "Packages of Debian.", ["python3", "xfsprogs"], elements="str"),
        Variable(
            "host_systems",
            "list",
            "Operating systems that a new host may have, as in /etc/os-release.",
            ["debian 12", "debian 13"],
            elements="str",
        ),
        Variable("host_memory_bytes_min", "int", "Least memory of a new host.", 900000000, low=0),
        Variable(
            "host_clock_skew_seconds_max",
            "int",
            "How far a host's clock may be from that of the control machine.",
            5,
            low=1,
        ),
        Variable(
            "host_clock_synchronized", "bool", "Whether a host without a synchronized clock is refused.", True
        ),
        Variable(
            "host_journal_bytes_max",
            "str",
            "Largest size of the journal.",
            "2G",
            pattern=_SYSTEMD_BYTES,
            like="2G",
        ),
    ),
    "disks": (
        Variable("disks_root", "path", "Directory of the mount points.", "/srv/odradek"),
        Variable("disks_bytes_min", "int", "Smaller disks are refused.", 10000000000, low=0),
        Variable("disks_user", "str", "User and group that own the log directories (host_user)."),
    ),
    "monitoring": tuple(
        each._replace(name=each.name.removeprefix("odradek_"), default=None) for each in MONITORING
    ),
    "node": (
        Variable("node_root", "path", "Directory of the releases on the hosts.", "/opt/odradek"),
        Variable("node_disks_root", "path", "Directory of the mount points.", "/srv/odradek"),
        Variable("node_user", "str", "User and group as which the nodes run.", "odradek"),
        Variable("node_settings", "dict", "Properties of all nodes (odradek_settings)."),
        Variable(
            "node_memory_max",
            "str",
            "Largest memory of a node, in the syntax of systemd.",
            "infinity",
            pattern=_SYSTEMD_BYTES,
            like="8G, 50% or infinity",
        ),
        Variable(
            "node_health_seconds",
            "int",
            "Seconds that the cluster may take until it is whole again.",
            180,
            low=1,
        ),
        Variable(
            "node_copy_seconds",
            "int",
            "Seconds that a node may take to copy records from other nodes.",
            86400,
            low=1,
        ),
        Variable(
            "node_throttle",
            "str",
            "Most bytes per second that a move may take from a broker.",
            "",
            pattern=rf"|{_RATE}",
            like="50M",
        ),
        Variable(
            "node_accept",
            "list",
            "What may become unavailable during restarts (odradek_accept).",
            elements="str",
        ),
        Variable("node_backup_keep", "int", "How many backups are kept (odradek_backup_keep).", low=0),
        Variable("node_backup_calendar", "str", "When backups are made (odradek_backup_calendar)."),
        Variable(
            "node_backup_recipient",
            "path",
            "Certificate whose public key encrypts backups (odradek_backup_recipient).",
        ),
        Variable(
            "node_signers", "list", "Keys that sign releases (odradek_release_signers).", elements="str"
        ),
        Variable(
            "node_release_settled",
            "bool",
            "Whether an installed release is used without comparing it with the archive.",
        ),
        Variable(
            "node_replacing",
            "bool",
            "Whether nodes that the cluster knows may start with empty disks.",
            False,
        ),
        Variable(
            "node_recovery",
            "path",
            "Directory for files of a recovery on hosts.",
            "/var/lib/odradek-recovery",
        ),
        Variable(
            "node_recovery_here", "path", "Directory for files of a recovery on the control machine.", ""
        ),
        Variable("node_recovery_command", "list", "The command that recovers a quorum.", elements="str"),
        Variable("node_recovery_configs", "list", "Properties files of this host's nodes.", elements="str"),
        Variable(
            "node_recovery_backup", "path", "Backup that a recovery uses as one more copy (odradek_backup)."
        ),
        Variable(
            "node_recovery_rebuilds",
            "bool",
            "Whether the metadata log is rebuilt without a copy (odradek_rebuild).",
        ),
        Variable(
            "node_recovery_access",
            "dict",
            "Users, rights and quotas that a rebuilt metadata log gets.",
        ),
        Variable(
            "node_recovery_words",
            "list",
            "Options by which the operator names lost voters and nodes.",
            elements="str",
        ),
        Variable("node_releases", "path", "Directory of the releases (odradek_releases)."),
        Variable("node_backups", "path", "Directory of backups (odradek_backups)."),
        Variable("node_secrets", "path", "Directory of keys and passwords (odradek_secrets)."),
        Variable("node_certificates", "path", "Directory of your own certificates (odradek_certificates)."),
        Variable("node_common_name", "str", "The name in all certificates of nodes.", "odradek-node"),
        Variable("node_certificate_days", "int", "How long certificates last.", 365, low=1, high=3650),
        Variable("node_rotating", "bool", "Whether all certificates of hosts are made anew.", False),
        Variable("node_tls", "path", "Directory of keys and certificates on a host.", "/etc/odradek/tls"),
        Variable("node_mechanisms", "list", "Ways to log in.", ["SCRAM-SHA-512"], elements="str"),
        Variable(
            "node_super_users",
            "list",
            "Principals that may do everything (odradek_super_users).",
            elements="str",
        ),
    ),
}
"""Variables of each role; all may be set in an inventory."""


def every_variable() -> dict[str, Variable]:
    """Return all variables that can be set in an inventory or for a run, by name."""
    found = (*OF_ALL, *OF_A_HOST, *OF_A_RUN, *(each for role in OF_ROLES.values() for each in role))
    return {each.name: each for each in found}
