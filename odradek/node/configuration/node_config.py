"""A node's configuration: Kafka's keys from a properties file, checked before anything starts.

First, each key is parsed as Kafka parses it (`odradek.metadata_quorum.config.config_defs`). Then Kafka's rules
between keys
are checked. Last, values that this version does not support yet are refused. A mistake raises `ConfigError`, whose
text is one line that names key, value and the allowed values. An unknown key gives a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import attrs

from odradek.metadata_quorum.config.config_defs import (
    ConfigError,
    ConfigMissing,
    ConfigValue,
    InvalidConfiguration,
    broker_defs,
)
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.config.java_properties import MalformedProperties, parse_properties
from odradek.metadata_quorum.config.typed_settings import settings_of
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.features import THIS_RELEASE, Release
from odradek.metadata_quorum.replica.storage_format import VoterEndpoint
from odradek.node.configuration.audit_config import AuditConfig, audit_config
from odradek.node.configuration.console_config import (
    CONSOLE,
    CONSOLE_LISTENER,
    ConsoleConfig,
    console_config,
)
from odradek.node.configuration.keys_without_effect import warning_about
from odradek.node.configuration.listener_security import (
    LISTENER_PREFIX,
    ListenerSecurity,
    is_listener_key,
    security_of_listeners,
)
from odradek.node.configuration.metrics_config import (
    METRICS,
    METRICS_LISTENER,
    MetricsConfig,
    metrics_config,
    metrics_security,
)
from odradek.node.configuration.own_keys import (
    DISK_FULL,
    DISK_HUNG,
    DISK_WRITE_WAIT,
    OWN_DEFS,
    START_WITHOUT_ACLS,
    SUSPICION,
    TOKENS_PER_OWNER,
    own_and_former_defs,
)
from odradek.node.configuration.plain_logins import read_secrets
from odradek.node.configuration.quorum_config import (
    BROKER,
    CONTROLLER,
    StaticVoter,
    check_voters,
    parse_quorum,
    parse_roles,
)
from odradek.node.configuration.recovery_keys import MANAGER_ENABLED, RECOVERY_TIMEOUT
from odradek.node.configuration.start_rules import (
    StartRules,
    authorizer_of,
    broken_relations,
    unsupported,
)
from odradek.security.acls.authorizer import AuthorizerSettings
from odradek.security.tokens import TokenSecrets
from odradek.wire.secret_fields import HIDDEN, holds_secret, is_key_name, is_secret_key

PLAINTEXT = "PLAINTEXT"
EVERYWHERE = ("", "0.0.0.0", "::")
"""Hosts that mean every interface. A listener may have such a host, but an advertised address may not."""
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
_LISTENER = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)\Z")
_URL = re.compile(r"(https?|file)://")
_LISTENER_NAME = re.compile(r"[A-Z0-9_.\-]+\Z")
SECRETS_CHARACTERS_MAX = 1 << 20
"""The maximum number of characters that are read from a file with passwords."""


@attrs.frozen
class ListenerConfig:
    """One endpoint `NAME://host:port`. If the host is empty, it means every interface."""

    name: str
    host: str
    port: int
    security_protocol: str

    @property
    def security_protocol_id(self) -> int:
        return SECURITY_PROTOCOLS[self.security_protocol]


@attrs.frozen(kw_only=True)
class NodeConfig:
    """The configuration of a node. Values that the node needs at its start are attributes; `get` returns all
    others.
    """

    explicit: Mapping[str, str] = attrs.field(repr=False)
    """The keys and values that are set in the file, as text, including secrets."""
    warnings: tuple[str, ...]
    """One line for each key that is unknown or has no effect."""
    unknown: tuple[str, ...] = ()
    """The unknown keys of the file, and keys of listeners that this node does not have."""
    refusals: tuple[str, ...] = ()
    """The reasons for which a node would not start with the file; empty if it would start."""
    values: Mapping[str, ConfigValue] = attrs.field(repr=False)
    """The parsed values of every known key, including defaults."""
    node_id: int
    process_roles: tuple[str, ...]
    listeners: tuple[ListenerConfig, ...]
    """The endpoints to listen on, including those of the controller."""
    advertised_listeners: tuple[ListenerConfig, ...]
    """The addresses for clients, without the addresses of the controller. A missing host is taken from the
    listener.
    """
    controller_listener_names: tuple[str, ...]
    inter_broker_listener_name: str
    log_dirs: tuple[str, ...]
    metadata_log_dir: str
    controller_endpoints: tuple[VoterEndpoint, ...]
    """The endpoints at which other nodes reach this node's controller, in the order of `controller.listener.names`.
    """
    static_voters: tuple[StaticVoter, ...]
    """The voters in `controller.quorum.voters`; empty if the voters are in the metadata log (KIP-853)."""
    bootstrap_servers: tuple[tuple[str, int], ...]
    """(host, port) of the controllers that are asked for the leader while the voters are not known."""
    metrics: MetricsConfig | None
    """The settings of the metrics page; None if the page is off."""
    console: ConsoleConfig | None
    """The settings of the console; None if it is off."""
    disk_hung_seconds: float
    disk_full_seconds: float
    disk_write_wait_seconds: float
    security: Mapping[str, ListenerSecurity]
    """The security settings of each listener by name, including the controllers' listeners."""
    start_without_acls: bool = False
    """True if a node may start although it does not enforce the ACLs in the metadata log."""
    authorizer: AuthorizerSettings | None = None
    """The settings of the authorizer; None if every user may do everything."""
    audit: AuditConfig | None = None
    """The audit log's settings; None if the audit log is off."""
    release: Release = THIS_RELEASE
    """The versions and feature levels that this node supports. They are part of the code, and a file cannot change
    them.
    """

    @classmethod
    def load(cls, path: str, *, starts: bool = True) -> NodeConfig:
        """Load the configuration from a file. If `starts` is false, problems that only prevent a start are warnings.

        Raises `ConfigError`, or `OSError` when the file cannot be read.
        """
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        return cls.from_text(text, contents_of, starts=starts)

    @classmethod
    def from_text(
        cls, text: str, read: Callable[[str], str] | None = None, *, starts: bool = True
    ) -> NodeConfig:
        """Parse the text of a properties file. `read` returns the contents of another file that a key names.

        Raises `ConfigError`.
        """
        try:
            properties = parse_properties(text)
        except MalformedProperties as error:
            raise InvalidConfiguration("properties", "", str(error)) from error
        return _check(properties, lambda: {} if read is None else read_secrets(properties, read), starts)

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], secrets: Mapping[str, str] | None = None
    ) -> NodeConfig:
        """Make the configuration from keys and their values as text. Raises `ConfigError`.

        `secrets` has the contents of files with passwords, by the key that names the file.
        """
        return _check(dict(properties), lambda: secrets or {}, True)

    @classmethod
    def judged(cls, properties: Mapping[str, str], read: Callable[[str], str]) -> NodeConfig:
        """Make the configuration of a file that is only checked. The result's `refusals` has the problems
        that prevent a start.

        Raises `ConfigError` if a key such as the roles is wrong, because the rest of the file depends on it.
        """
        return _check(dict(properties), lambda: read_secrets(properties, read), False)

    def get(self, key: str) -> ConfigValue:
        """Return the typed value of a known key."""
        return self.values[key]

    def get_int(self, key: str) -> int:
        value = self.values[key]
        assert isinstance(value, int), f"the value of {key} is not a whole number"
        return value

    def get_optional_int(self, key: str) -> int | None:
        """Return the whole number that a key has; None if the key is unset and has no default."""
        value = self.values[key]
        assert value is None or isinstance(value, int), f"the value of {key} is not a whole number"
        return value

    def get_bool(self, key: str) -> bool:
        value = self.values[key]
        assert isinstance(value, bool), f"{key} is not a boolean"
        return value

    def get_str(self, key: str) -> str | None:
        value = self.values[key]
        assert value is None or isinstance(value, str), f"{key} is not a text"
        return value

    @property
    def voter(self) -> VoterEndpoint | None:
        """The controller endpoint with which this node can become a voter; None for a node that is only a broker."""
        return self.controller_endpoints[0] if self.controller_endpoints else None

    @property
    def rack(self) -> str | None:
        return self.get_str("broker.rack")

    @property
    def is_broker(self) -> bool:
        return BROKER in self.process_roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.process_roles

    @property
    def controller_listeners(self) -> tuple[ListenerConfig, ...]:
        """The listeners on which controllers and brokers reach this node's controller; empty on a node that is only a
        broker.
        """
        return tuple(each for each in self.listeners if each.name in self.controller_listener_names)

    @property
    def broker_listeners(self) -> tuple[ListenerConfig, ...]:
        """The listeners for clients and other brokers."""
        return tuple(each for each in self.listeners if each.name not in self.controller_listener_names)

    @property
    def config_layers(self) -> BrokerConfigLayers:
        """The layers of broker configuration, with the file's values as the lowest layer; dynamic values come above.

        As in Kafka, `broker.id` has the value of `node.id`, its newer name.
        """
        return BrokerConfigLayers({"broker.id": str(self.node_id), **self.explicit})

    def controller_settings(self) -> ControllerSettings:
        """Make the controller's typed settings from the properties file and the defaults."""
        return settings_of(
            ControllerSettings,
            self.config_layers,
            static_config=self.explicit,
            release=self.release,
            has_authorizer=self.authorizer is not None,
            token_secrets=self.token_secrets,
            tokens_per_owner_max=self.get_int(TOKENS_PER_OWNER),
            suspicion_ms=self.get_int(SUSPICION),
            unclean_recovery_manager_enabled=self.get_bool(MANAGER_ENABLED),
            unclean_recovery_timeout_ms=self.get_int(RECOVERY_TIMEOUT),
        )

    @property
    def token_secrets(self) -> TokenSecrets | None:
        """The secrets of delegation tokens; None if the file has no key for them."""
        return TokenSecrets.of_key(self.get_str("delegation.token.secret.key"))


def contents_of(path: str) -> str:
    """Read a file that a key names, but at most `SECRETS_CHARACTERS_MAX` characters."""
    with open(path, encoding="utf-8") as file:
        return file.read(SECRETS_CHARACTERS_MAX)


def _check(explicit: dict[str, str], secrets: Callable[[], Mapping[str, str]], starts: bool) -> NodeConfig:
    values, unknown, warnings = _parse(explicit)
    node_id = _node_id(explicit, values)
    rules = StartRules(starts, warnings)
    roles = parse_roles(_texts(values, "process.roles"))
    controller_names = tuple(_texts(values, "controller.listener.names"))
    protocols = _security_protocols(explicit, values, controller_names)
    addresses = _addresses("listeners", _texts(values, "listeners"))
    _check_controller_names(roles, controller_names, [name for _, name, _, _ in addresses])
    listeners = _with_protocols("listeners", addresses, protocols)
    _check_listeners(listeners)
    advertised = _advertised(roles, values, listeners, controller_names, protocols)
    inter_broker = _inter_broker_listener(explicit, values, advertised) if BROKER in roles else ""
    static_voters, bootstrap_servers = parse_quorum(
        _texts(values, "controller.quorum.voters"), _texts(values, "controller.quorum.bootstrap.servers")
    )
    check_voters(roles, static_voters, node_id)
    log_dirs = _log_dirs(values)
    metadata_dir = str(values["metadata.log.dir"] or log_dirs[0])
    names = [each.name for each in listeners]
    security = rules.judge(
        lambda: security_of_listeners(explicit, protocols, names, controller_names, inter_broker, secrets()),
        dict[str, ListenerSecurity](),
    )
    page_security = _page_security(rules, values, explicit, security)
    clients = _for_clients(advertised, inter_broker)
    rules.judge_all((*broken_relations(values), *unsupported(explicit, values)))
    authorizer = rules.judge(lambda: authorizer_of(values), None)
    audit = rules.judge(
        lambda: audit_config(values, security, metadata_dir, has_authorizer=authorizer is not None), None
    )
    return NodeConfig(
        explicit=explicit,
        warnings=tuple(warnings),
        unknown=unknown,
        refusals=tuple(rules.refusals),
        values=values,
        node_id=node_id,
        process_roles=roles,
        listeners=listeners,
        advertised_listeners=advertised,
        controller_listener_names=controller_names,
        inter_broker_listener_name=inter_broker,
        log_dirs=log_dirs,
        metadata_log_dir=metadata_dir,
        controller_endpoints=_controller_endpoints(
            values, listeners, controller_names, static_voters, node_id
        ),
        static_voters=static_voters,
        bootstrap_servers=bootstrap_servers,
        metrics=metrics_config(values, page_security),
        console=console_config(values, explicit, clients, security, authorizer, audit),
        disk_hung_seconds=_seconds(values, DISK_HUNG),
        disk_write_wait_seconds=_seconds(values, DISK_WRITE_WAIT),
        disk_full_seconds=_seconds(values, DISK_FULL),
        security=security,
        start_without_acls=values[START_WITHOUT_ACLS] is True,
        authorizer=authorizer,
        audit=audit,
    )


def _page_security(
    rules: StartRules,
    values: Mapping[str, ConfigValue],
    explicit: Mapping[str, str],
    security: dict[str, ListenerSecurity],
) -> ListenerSecurity | None:
    """Return the TLS settings of the metrics page, and add them to those of listeners; None if it has no TLS."""
    found = rules.judge(lambda: metrics_security(values, explicit, security), None)
    if found is not None:
        security[METRICS] = found
    return found


def _for_clients(advertised: Sequence[ListenerConfig], inter_broker: str) -> list[tuple[str, str]]:
    """List name and protocol of the listeners for clients; last the one by which brokers reach each other."""
    found = sorted(advertised, key=lambda each: each.name == inter_broker)
    return [(each.name, each.security_protocol) for each in found]


def _node_id(explicit: Mapping[str, str], values: Mapping[str, ConfigValue]) -> int:
    node_id = values["node.id"]
    assert isinstance(node_id, int)
    if "broker.id" in explicit and values["broker.id"] != node_id:
        raise ConfigError(
            "broker.id", values["broker.id"], f"You must set it to the same value as node.id ({node_id})"
        )
    return node_id


def _seconds(values: Mapping[str, ConfigValue], key: str) -> float:
    value = values[key]
    assert isinstance(value, int), f"{key} counts milliseconds"
    return value / 1000


def _parse(explicit: Mapping[str, str]) -> tuple[dict[str, ConfigValue], tuple[str, ...], list[str]]:
    """Return the values of all known keys, the names of unknown keys, and a warning for each key without effect."""
    defs = broker_defs()
    _refuse_swallowed({name: text for name, text in explicit.items() if name in defs or name in OWN_DEFS})
    values: dict[str, ConfigValue] = {}
    for name, definition in defs.items():
        if name in explicit:
            values[name] = definition.parse(explicit[name])
        elif definition.required:
            raise ConfigMissing(name)
        else:
            values[name] = definition.default_value()
    for name, definition in own_and_former_defs().items():
        values[name] = definition.parse(explicit[name]) if name in explicit else definition.default_value()
    names = _listener_names(values)
    unknown = tuple(name for name in explicit if name not in values and not is_listener_key(name, names))
    warnings = [about_unknown(name) for name in unknown]
    without_effect = warning_about(explicit)
    if without_effect is not None:
        warnings.append(without_effect)
    return values, unknown, warnings


def about_unknown(name: str) -> str:
    """Return the warning about an unknown key. Text that may be part of a secret is hidden."""
    if name.startswith(LISTENER_PREFIX):
        return f"{name} has no effect: the node has no such listener, or a listener has no such setting"
    if is_key_name(name):
        return f"unknown key {name} is ignored"
    return f"unknown key {HIDDEN} is ignored: does the line before it lack a backslash at its end?"


def _refuse_swallowed(explicit: Mapping[str, str]) -> None:
    """Raise `ConfigError` if a value also contains another setting, which has a secret. This happens if a line ends in
    a backslash, which joins the next line to it.
    """
    for name, text in explicit.items():
        if not is_secret_key(name) and not _URL.match(text) and holds_secret(text):
            raise InvalidConfiguration(
                name,
                HIDDEN,
                f"the value of {name} contains another setting: does its line end in a backslash?",
            )


def _listener_names(values: Mapping[str, ConfigValue]) -> tuple[str, ...]:
    """List the names of all listeners that this node has or connects to."""
    names = [text.partition("://")[0].strip().upper() for text in _texts(values, "listeners")]
    pages = [name for name, key in ((METRICS, METRICS_LISTENER), (CONSOLE, CONSOLE_LISTENER)) if values[key]]
    return (*names, *(each.upper() for each in _texts(values, "controller.listener.names")), *pages)


def _texts(values: Mapping[str, ConfigValue], key: str) -> list[str]:
    value = values[key]
    return value if isinstance(value, list) else []


def _security_protocols(
    explicit: Mapping[str, str], values: Mapping[str, ConfigValue], controller_names: tuple[str, ...]
) -> dict[str, str]:
    """Map listener names to security protocols."""
    key = "listener.security.protocol.map"
    text = values[key]
    protocols: dict[str, str] = {}
    for item in str(text).split(","):
        name, colon, protocol = item.strip().rpartition(":")
        if not colon or protocol.strip().upper() not in SECURITY_PROTOCOLS:
            raise ConfigError(
                key,
                item.strip(),
                "the value must be a list of NAME:PROTOCOL, and the protocol one of "
                f"{', '.join(SECURITY_PROTOCOLS)}",
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    if key not in explicit:
        # As in Kafka, a controller listener that is not in the map is plaintext.
        for name in controller_names:
            protocols.setdefault(name, PLAINTEXT)
    return protocols


_Address = tuple[str, str, str, int]
"""A listener as it is written in the file; then its name, host and port."""


def _addresses(key: str, texts: list[str]) -> list[_Address]:
    found = []
    for text in texts or [""]:
        match = _LISTENER.match(text)
        if match is None:
            raise ConfigError(
                key, text, "the value must be NAME://host:port, or several of these, separated by commas"
            )
        name, port = match[1].upper(), int(match[3])
        if not _LISTENER_NAME.match(name):
            raise ConfigError(key, text, "a listener's name may have letters, digits, '_', '.' and '-'")
        if not 0 <= port <= 65535:
            raise ConfigError(key, text, "a port must be between 0 and 65535")
        found.append((text, name, match[2], port))
    return found


def _with_protocols(
    key: str, addresses: list[_Address], protocols: Mapping[str, str]
) -> tuple[ListenerConfig, ...]:
    found = []
    for text, name, host, port in addresses:
        if name not in protocols:
            raise ConfigError(
                key,
                text,
                f"No security protocol defined for listener {name} in listener.security.protocol.map",
            )
        found.append(ListenerConfig(name, host, port, protocols[name]))
    return tuple(found)


def _check_controller_names(
    roles: tuple[str, ...], controller_names: tuple[str, ...], names: list[str]
) -> None:
    key = "controller.listener.names"
    if not controller_names:
        raise InvalidConfiguration(key, "", f"{key} must contain at least one of the listeners' names")
    if CONTROLLER not in roles:
        for name in names:
            if name in controller_names:
                raise ConfigError(
                    key,
                    name,
                    "listeners of a node that is only a broker must not contain a listener for controllers",
                )
        return
    for name in controller_names:
        if name not in names:
            raise ConfigError(key, name, f"the name must be one of the listeners: {', '.join(names)}")
    if BROKER not in roles:
        for name in names:
            if name not in controller_names:
                raise ConfigError(
                    "listeners",
                    name,
                    f"a node that is only a controller must have only the listeners that {key} names",
                )


def _check_listeners(listeners: tuple[ListenerConfig, ...]) -> None:
    text = ",".join(f"{each.name}://{each.host}:{each.port}" for each in listeners)
    if len({each.name for each in listeners}) != len(listeners):
        raise ConfigError("listeners", text, "Each listener must have a different name")
    addresses = [(each.host, each.port) for each in listeners if each.port]
    if len(set(addresses)) != len(addresses):
        raise ConfigError("listeners", text, "Each listener must have a different port")


def _advertised(
    roles: tuple[str, ...],
    values: Mapping[str, ConfigValue],
    listeners: tuple[ListenerConfig, ...],
    controller_names: tuple[str, ...],
    protocols: Mapping[str, str],
) -> tuple[ListenerConfig, ...]:
    key = "advertised.listeners"
    own = {each.name: each for each in listeners if each.name not in controller_names}
    if BROKER not in roles:
        return ()
    if not own:
        raise ConfigError(
            "listeners", ",".join(controller_names), "a broker must have a listener for clients"
        )
    if values[key] is None:
        _check_routable("listeners", tuple(own.values()))
        return tuple(own.values())
    advertised = _with_protocols(key, _addresses(key, _texts(values, key)), protocols)
    _check_routable(key, tuple(each for each in advertised if each.name in own))
    for each in advertised:
        text = f"{each.name}://{each.host}:{each.port}"
        if each.name not in own and each.name not in controller_names:
            raise ConfigError(key, text, f"the name must be one of the listeners: {', '.join(own)}")
    clients = tuple(each for each in advertised if each.name in own)
    if not clients:
        raise ConfigError(
            key, ",".join(_texts(values, key)), f"name at least one of the listeners: {', '.join(own)}"
        )
    return clients


def _check_routable(key: str, advertised: tuple[ListenerConfig, ...]) -> None:
    """Raise `ConfigError` for an advertised address that clients cannot connect to. `key` is the key that it came
    from.
    """
    for each in advertised:
        if each.host == "0.0.0.0":
            raise ConfigError(
                key,
                f"{each.name}://{each.host}:{each.port}",
                "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address.",
            )


def _inter_broker_listener(
    explicit: Mapping[str, str], values: Mapping[str, ConfigValue], advertised: tuple[ListenerConfig, ...]
) -> str:
    key = "inter.broker.listener.name"
    names = [each.name for each in advertised]
    if values[key] is None:
        protocol_key = "security.inter.broker.protocol"
        protocol = str(values[protocol_key])
        if protocol in names:
            return protocol
        if protocol_key not in explicit and all(each.security_protocol == PLAINTEXT for each in advertised):
            return names[0]
        raise ConfigError(
            protocol_key,
            protocol,
            "no advertised listener has this name, by which brokers would reach each other: name one of "
            f"{', '.join(names)} in {key}",
        )
    if "security.inter.broker.protocol" in explicit:
        raise InvalidConfiguration(
            key,
            values[key],
            f"Only one of {key} and security.inter.broker.protocol should be set.",
        )
    name = str(values[key]).upper()
    if name not in names:
        raise ConfigError(key, name, f"the name must be one of the advertised listeners: {', '.join(names)}")
    return name


def _controller_endpoints(
    values: Mapping[str, ConfigValue],
    listeners: tuple[ListenerConfig, ...],
    names: tuple[str, ...],
    static_voters: tuple[StaticVoter, ...],
    node_id: int,
) -> tuple[VoterEndpoint, ...]:
    found = (_voter(values, listeners, name, static_voters, node_id) for name in names)
    return tuple(each for each in found if each is not None)


def _voter(
    values: Mapping[str, ConfigValue],
    listeners: tuple[ListenerConfig, ...],
    name: str,
    static_voters: tuple[StaticVoter, ...],
    node_id: int,
) -> VoterEndpoint | None:
    """Return the address at which other nodes reach a controller listener: the advertised one, or else the listener's
    own.
    """
    own = next((each for each in listeners if each.name == name), None)
    if own is None:
        return None
    host, port = own.host, own.port
    for _, listener, advertised_host, advertised_port in (
        _addresses("advertised.listeners", _texts(values, "advertised.listeners"))
        if values["advertised.listeners"] is not None
        else ()
    ):
        if listener == name:
            host, port = advertised_host, advertised_port
    for voter in static_voters:
        if voter.node_id == node_id and host in EVERYWHERE:
            host = voter.host
    return VoterEndpoint(name, "localhost" if host in EVERYWHERE else host, port)


def _log_dirs(values: Mapping[str, ConfigValue]) -> tuple[str, ...]:
    key = "log.dirs" if values["log.dirs"] is not None else "log.dir"
    paths = _texts(values, key)
    if not paths or "" in paths:
        raise ConfigError(
            key, ",".join(paths), "At least one log directory must be defined via log.dirs or log.dir."
        )
    if len(set(paths)) != len(paths):
        raise ConfigError(key, ",".join(paths), "Each log directory must be named once")
    return tuple(paths)
