"""The security settings of each listener, from Kafka's keys: protocol, SASL mechanisms, users, certificates. PURE.

A key of one listener (`listener.name.NAME.KEY`) overrides the key for all listeners. Login modules are configured by
listener and mechanism (`listener.name.NAME.MECHANISM.sasl.jaas.config`). An unsupported feature is an error here,
with advice. Otherwise a listener would accept every client, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from odradek.env.tls_ports import TlsSettings
from odradek.metadata_quorum.config.config_defs import (
    ConfigError,
    ConfigValue,
    InvalidConfiguration,
    broker_defs,
)
from odradek.node.configuration.oauth_keys import (
    LOGIN_HANDLERS,
    VALIDATOR_HANDLERS,
    WAIVED,
    oauth_settings,
    token_request,
)
from odradek.node.configuration.plain_logins import (
    OWN_LOGIN_KEYS,
    PASSWORD_FILE,
    USERNAME,
    USERS_FILE,
    own_login,
    own_users,
)
from odradek.security.jaas import JaasLine, MalformedJaas, parse_jaas
from odradek.security.oauth.oauth_settings import OauthSettings
from odradek.security.principals import MalformedRule, PrincipalRules
from odradek.security.sasl_client import Credentials
from odradek.security.sasl_server import OAUTHBEARER, PLAIN
from odradek.security.scram import MECHANISMS as SCRAM
from odradek.security.tls_keys import STORE_TYPES, WAY_OUT_OF_JKS, protocol_refusal

__all__ = [
    "LISTENER_PREFIX",
    "ListenerSecurity",
    "is_listener_key",
    "listener_security",
    "principal_rules",
    "security_of_listeners",
    "tls_settings",
]

LISTENER_PREFIX = "listener.name."
BUILT = (PLAIN, *SCRAM, OAUTHBEARER)
"""The SASL mechanisms that this version supports."""
HIDDEN = "[hidden]"
_JAAS = "sasl.jaas.config"
_OF_LISTENERS = ("connections.max.reauth.ms", "max.connections", "max.connection.creation.rate")
"""Keys that can be set for a single listener, in addition to the keys of TLS and SASL."""
_FOREIGN = (
    "sasl.server.callback.handler.class",
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.jwt.validator.class",
    "ssl.engine.factory.class",
    "principal.builder.class",
)
"""Keys whose values are names of Java classes."""
_PACKAGE = "org.apache.kafka.common.security."
_OWN_CLASSES: Mapping[str, tuple[str, ...]] = {
    "principal.builder.class": (f"{_PACKAGE}authenticator.DefaultKafkaPrincipalBuilder",),
    "sasl.login.class": (f"{_PACKAGE}authenticator.DefaultLogin",),
    "sasl.oauthbearer.jwt.retriever.class": tuple(
        f"{_PACKAGE}oauthbearer.{name}JwtRetriever" for name in ("Default", "ClientCredentials", "File")
    ),
    "sasl.oauthbearer.jwt.validator.class": tuple(
        f"{_PACKAGE}oauthbearer.{name}JwtValidator" for name in ("Default", "Broker", "Client")
    ),
}
"""Kafka's own classes by key. They are accepted as names of the built-in implementations."""
_OWN_OF_OAUTHBEARER: Mapping[str, tuple[str, ...]] = {
    "sasl.server.callback.handler.class": VALIDATOR_HANDLERS,
    "sasl.login.callback.handler.class": LOGIN_HANDLERS,
    "sasl.client.callback.handler.class": (
        f"{_PACKAGE}oauthbearer.internals.OAuthBearerSaslClientCallbackHandler",
    ),
}
_MODULES = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    **dict.fromkeys(SCRAM, "org.apache.kafka.common.security.scram.ScramLoginModule"),
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}


@attrs.frozen
class ListenerSecurity:
    """The security requirements of one listener for its clients, and the credentials of this node. The node
    uses these credentials to log in to listeners of the same name at other nodes.
    """

    name: str
    protocol: str
    mechanisms: tuple[str, ...] = ()
    plain_users: Mapping[str, str] = attrs.field(repr=False, factory=dict)
    session_ms_max: Mapping[str, int] = attrs.field(factory=dict)
    frame_bytes_max: int = 524_288
    """The largest frame of a client that has not logged in (`sasl.server.max.receive.size`)."""
    oauth: OauthSettings | None = None
    tls: TlsSettings | None = None
    principal_rules: PrincipalRules = attrs.field(factory=PrincipalRules)
    node_login: Credentials | None = None
    """The credentials of this node at other nodes; only for listeners between nodes."""

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


class _Keys:
    """The configuration values that apply to one listener."""

    def __init__(self, name: str, explicit: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        self.name = name
        self._explicit = explicit
        self._secrets = secrets
        self._prefix = f"{LISTENER_PREFIX}{name.lower()}."

    def place(self, key: str) -> str:
        """Return the full name under which the file sets this key: with the listener's prefix if the file has
        that name, otherwise the plain key.
        """
        return self._prefix + key if self._prefix + key in self._explicit else key

    def text(self, key: str) -> str | None:
        value = self.value(key)
        return None if value is None or value == "" else str(value)

    def value(self, key: str) -> ConfigValue:
        definition, place = broker_defs()[key], self.place(key)
        if place in self._explicit:
            return definition.parse(self._explicit[place])
        return definition.default_value()

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.value(key)
        return tuple(value) if isinstance(value, list) else ()

    def mechanism_place(self, key: str, mechanism: str) -> str:
        """Return the full name under which the file sets this key. The name may have the prefix of the
        listener, followed by the prefix of the mechanism.
        """
        place = f"{self._prefix}{mechanism.lower()}.{key}"
        return place if place in self._explicit else self.place(key)

    def mechanism_value(self, key: str, mechanism: str) -> ConfigValue:
        place = f"{self._prefix}{mechanism.lower()}.{key}"
        return broker_defs()[key].parse(self._explicit[place]) if place in self._explicit else self.value(key)

    def number(self, key: str, mechanism: str) -> int:
        value = self.mechanism_value(key, mechanism)
        assert isinstance(value, int), f"{key} is a number"
        return value

    @property
    def waived(self) -> frozenset[str]:
        """The claims of a token that need not be checked: `audience`, `issuer`, both or none. Raises `ConfigError`."""
        named = frozenset(each.strip() for each in self._explicit.get(WAIVED, "").split(",")) - {""}
        if unknown := named - {"audience", "issuer"}:
            raise ConfigError(
                WAIVED, ",".join(sorted(unknown)), "set the expected audience, the expected issuer, or both"
            )
        return named

    @property
    def own_login(self) -> tuple[str, str] | None:
        """Username and password for other nodes, from our own keys; None if they are unset. Raises `ConfigError`."""
        return own_login(self.place, self._explicit, self._secrets)

    @property
    def own_users(self) -> Mapping[str, str] | None:
        """Passwords of PLAIN's users by name, from the file that our own key names; None if the key is unset.
        Raises `ConfigError`.
        """
        return own_users(self.place, self._explicit, self._secrets)

    def jaas(self, mechanism: str) -> tuple[str, JaasLine | None]:
        """Return the full name of the key for a mechanism's login module, and its parsed value (None if it is unset).
        Raises `ConfigError`.
        """
        place = f"{self._prefix}{mechanism.lower()}.{_JAAS}"
        text = self._explicit.get(place)
        if text is None:
            return place, None
        try:
            line = parse_jaas(text)
        except MalformedJaas as error:
            raise ConfigError(place, HIDDEN, str(error)) from None
        if line.module != _MODULES[mechanism]:
            raise ConfigError(place, HIDDEN, f"the login module of {mechanism} must be {_MODULES[mechanism]}")
        return place, line


def is_listener_key(key: str, names: tuple[str, ...]) -> bool:
    """True if this key of a single listener has an effect."""
    if not key.startswith(LISTENER_PREFIX):
        return False
    for name in names:
        prefix = f"{LISTENER_PREFIX}{name.lower()}."
        if key.startswith(prefix):
            rest = key.removeprefix(prefix)
            mechanism, _, after = rest.partition(".")
            if mechanism.upper() in BUILT:
                rest = after
            if rest == _JAAS:
                # As in Kafka, the key of a login module has an effect only with a mechanism in its name.
                return mechanism.upper() in BUILT
            if rest in OWN_LOGIN_KEYS:
                return rest != after
            return rest in broker_defs() and rest.startswith(("sasl.", "ssl.", *_OF_LISTENERS))
    return False


def security_of_listeners(
    explicit: Mapping[str, str],
    protocols: Mapping[str, str],
    own: Sequence[str],
    controller_names: Sequence[str],
    inter_broker: str,
    secrets: Mapping[str, str] | None = None,
) -> dict[str, ListenerSecurity]:
    """Read the security settings of a node's `own` listeners, and of the controller listeners that it connects to.
    Raises `ConfigError`.

    `secrets` has the contents of files with passwords, by the key that names the file.
    """
    node_keys = {
        inter_broker: "sasl.mechanism.inter.broker.protocol",
        controller_names[0]: "sasl.mechanism.controller.protocol",
    }
    found = {}
    for name in dict.fromkeys((*own, controller_names[0])):
        if name not in protocols:
            raise ConfigError(
                "controller.listener.names",
                name,
                f"No security protocol defined for listener {name} in listener.security.protocol.map",
            )
        found[name] = listener_security(
            name,
            protocols[name],
            explicit,
            secrets=secrets,
            node_mechanism_key=node_keys.get(name),
            is_controllers=name in controller_names,
            serves=name in own,
        )
    return found


def listener_security(
    name: str,
    protocol: str,
    explicit: Mapping[str, str],
    *,
    secrets: Mapping[str, str] | None = None,
    node_mechanism_key: str | None = None,
    is_controllers: bool = False,
    serves: bool = True,
) -> ListenerSecurity:
    """Read the security settings of a listener. For a listener between nodes, `node_mechanism_key` is the key that
    names the SASL mechanism of the nodes.

    `serves` is false for a listener that this node does not open, but connects to at other nodes.

    Raises `ConfigError`, whose text has no secrets.
    """
    keys = _Keys(name, explicit, secrets or {})
    if protocol == "PLAINTEXT":
        return ListenerSecurity(name, protocol)
    tls = rules = None
    if protocol.endswith("SSL"):
        tls = tls_settings(name, protocol, explicit, serves=serves)
        rules = _rules(keys)
    if not protocol.startswith("SASL_"):
        _refuse_foreign(keys, ())
        return ListenerSecurity(name, protocol, tls=tls, principal_rules=rules or PrincipalRules())
    if serves:
        mechanisms = _mechanisms(keys, is_controllers=is_controllers)
    else:
        assert node_mechanism_key is not None, "nodes connect only to listeners of other nodes"
        mechanisms = (_node_mechanism(node_mechanism_key, explicit),)
    _refuse_foreign(keys, mechanisms)
    users: Mapping[str, str] = {}
    if PLAIN in mechanisms and serves:
        users = _plain_users(keys)
    return ListenerSecurity(
        name,
        protocol,
        mechanisms,
        users,
        {each: keys.number("connections.max.reauth.ms", each) for each in mechanisms},
        keys.number("sasl.server.max.receive.size", ""),
        _oauth(keys) if OAUTHBEARER in mechanisms and serves else None,
        tls,
        rules or PrincipalRules(),
        None if node_mechanism_key is None else _node_login(keys, node_mechanism_key, mechanisms, explicit),
    )


def _plain_users(keys: _Keys) -> Mapping[str, str]:
    """Read the users of SASL/PLAIN on a listener, from Kafka's login module or from our own key. Raises
    `ConfigError`.
    """
    place, line = keys.jaas(PLAIN)
    own = keys.own_users
    if own is not None:
        if line is not None and line.users:
            raise ConfigError(
                place,
                HIDDEN,
                f"this setting must not name users, because {keys.place(USERS_FILE)} names them",
            )
        return own
    if line is None:
        raise InvalidConfiguration(
            place,
            None,
            f'{place} is missing: it must name the users of PLAIN as user_NAME="PASSWORD" (or name a '
            f"file with them in {USERS_FILE})",
        )
    return line.users


def _refuse_foreign(keys: _Keys, mechanisms: Sequence[str]) -> None:
    """Raise `ConfigError` if a key names a Java class other than Kafka's own."""
    for key in _FOREIGN:
        for mechanism in mechanisms or ("",):
            value = keys.mechanism_value(key, mechanism) if mechanism else keys.value(key)
            own = _OWN_CLASSES.get(key, ())
            if mechanism == OAUTHBEARER:
                own = (*own, *_OWN_OF_OAUTHBEARER.get(key, ()))
            if value is not None and value != "" and value not in own:
                instead = f"; the built-in class is {own[0]}" if own else ""
                raise ConfigError(
                    keys.mechanism_place(key, mechanism) if mechanism else keys.place(key),
                    value,
                    f"a Java class cannot run here: remove this value{instead}",
                )


def _oauth(keys: _Keys) -> OauthSettings:
    _, line = keys.jaas(OAUTHBEARER)
    return oauth_settings(
        lambda key: keys.mechanism_value(key, OAUTHBEARER),
        lambda key: keys.mechanism_place(key, OAUTHBEARER),
        {} if line is None else line.options,
        keys.waived,
    )


def _mechanisms(keys: _Keys, *, is_controllers: bool) -> tuple[str, ...]:
    key = "sasl.enabled.mechanisms"
    found = keys.texts(key)
    for each in found:
        if each not in BUILT:
            hint = (
                "; the value is the default, so set the key to other mechanisms"
                if keys.place(key) not in keys._explicit
                else ""
            )
            raise ConfigError(
                keys.place(key),
                each,
                f"this mechanism is not supported: supported are {', '.join(BUILT)}{hint}",
            )
    if is_controllers:
        without = tuple(each for each in found if each not in SCRAM)
        if without != found and (keys.place(key) != key or not without):
            raise ConfigError(
                keys.place(key),
                ",".join(found),
                "controllers cannot log in to each other by SCRAM, whose users they learn from each "
                f"other: let {keys.name} accept PLAIN, or certificates (SSL)",
            )
        found = without
    if not found:
        raise ConfigError(keys.place(key), "", f"name at least one of {', '.join(BUILT)}")
    return found


def _node_mechanism(key: str, explicit: Mapping[str, str]) -> str:
    definition = broker_defs()[key]
    mechanism = str(definition.parse(explicit[key]) if key in explicit else definition.default)
    if mechanism not in BUILT:
        raise ConfigError(
            key, mechanism, f"this mechanism is not supported: supported are {', '.join(BUILT)}"
        )
    return mechanism


def _node_login(
    keys: _Keys, mechanism_key: str, enabled: tuple[str, ...], explicit: Mapping[str, str]
) -> Credentials:
    """Read the username and password with which this node logs in to others, from the listener's login module, as in
    Kafka.
    """
    mechanism = _node_mechanism(mechanism_key, explicit)
    if mechanism not in enabled:
        raise ConfigError(
            mechanism_key,
            mechanism,
            f"nodes must log in to {keys.name} by one of its mechanisms: {', '.join(enabled)}",
        )
    place, line = keys.jaas(mechanism)
    if mechanism == OAUTHBEARER:
        request = token_request(
            lambda key: keys.mechanism_value(key, mechanism),
            lambda key: keys.mechanism_place(key, mechanism),
            {} if line is None else line.options,
        )
        return Credentials(mechanism, token_request=request)
    own = keys.own_login
    if own is not None:
        if line is not None and line.username is not None:
            raise ConfigError(
                place,
                HIDDEN,
                f"this setting must not have a username, because {keys.place(USERNAME)} has one",
            )
        return Credentials(mechanism, *own)
    if line is None or line.username is None or line.password is None:
        raise InvalidConfiguration(
            place,
            None,
            f"{place} must have the username and password by which nodes log in to each other "
            f"(or set {USERNAME} and {PASSWORD_FILE})",
        )
    return Credentials(mechanism, line.username, line.password)


def principal_rules(name: str, explicit: Mapping[str, str]) -> PrincipalRules:
    """Read the rules by which a listener makes principals of its clients' certificates. Raises `ConfigError`."""
    return _rules(_Keys(name, explicit, {}))


def _rules(keys: _Keys) -> PrincipalRules:
    key = "ssl.principal.mapping.rules"
    text = keys.text(key) or "DEFAULT"
    try:
        return PrincipalRules.parse(text)
    except MalformedRule as error:
        raise ConfigError(keys.place(key), text, str(error)) from None


def tls_settings(name: str, protocol: str, explicit: Mapping[str, str], *, serves: bool) -> TlsSettings:
    """Read the TLS settings of a listener with TLS. Raises `ConfigError`, whose text has no secrets."""
    keys = _Keys(name, explicit, {})
    for store, inline in (("keystore", "key"), ("truststore", "certificates")):
        _check_store(keys, store, f"ssl.{store}.{inline}")
    location, key = keys.text("ssl.keystore.location"), keys.text("ssl.keystore.key")
    chain = keys.text("ssl.keystore.certificate.chain")
    if serves and location is None and key is None:
        raise InvalidConfiguration(
            "ssl.keystore.location",
            None,
            f"listener {name} needs a certificate: set ssl.keystore.location and ssl.keystore.type=PEM",
        )
    if (key is None) != (chain is None):
        missing = "ssl.keystore.key" if key is None else "ssl.keystore.certificate.chain"
        raise InvalidConfiguration(
            missing, None, f"{missing} is missing: a key and its certificates go together"
        )
    if keys.text("ssl.provider") is not None:
        raise ConfigError(
            keys.place("ssl.provider"),
            keys.text("ssl.provider"),
            "a Java provider cannot run here: remove this value",
        )
    version = str(keys.value("ssl.protocol"))
    if refusal := protocol_refusal(version):
        raise ConfigError(keys.place("ssl.protocol"), version, refusal)
    algorithm = keys.text("ssl.endpoint.identification.algorithm")
    if algorithm is not None and algorithm.lower() != "https":
        raise ConfigError(
            keys.place("ssl.endpoint.identification.algorithm"),
            algorithm,
            "the value must be https, or empty to check no names",
        )
    return TlsSettings(
        keystore_type=str(keys.value("ssl.keystore.type")).upper(),
        keystore_location=location,
        keystore_password=keys.text("ssl.keystore.password"),
        key_password=keys.text("ssl.key.password"),
        keystore_key=key,
        keystore_chain=chain,
        truststore_type=str(keys.value("ssl.truststore.type")).upper(),
        truststore_location=keys.text("ssl.truststore.location"),
        truststore_password=keys.text("ssl.truststore.password"),
        truststore_certificates=keys.text("ssl.truststore.certificates"),
        client_auth=_client_auth(keys, protocol),
        protocols=keys.texts("ssl.enabled.protocols"),
        ciphers=keys.texts("ssl.cipher.suites"),
        check_host=algorithm is not None,
        allow_dn_changes=keys.value("ssl.allow.dn.changes") is True,
        allow_san_changes=keys.value("ssl.allow.san.changes") is True,
    )


def _client_auth(keys: _Keys, protocol: str) -> str:
    """Return whether clients must show a certificate: `none`, `requested` or `required`. For SASL_SSL only a key of
    the listener itself counts, as in Kafka (KIP-684).
    """
    key = "ssl.client.auth"
    is_own = keys.place(key) != key
    return str(keys.value(key)).lower() if is_own or protocol == "SSL" else "none"


def _check_store(keys: _Keys, store: str, inline: str) -> None:
    """Check Kafka's rules between the keys of one key store, and that its type is supported. Raises `ConfigError`."""
    key = f"ssl.{store}.type"
    kind = str(keys.value(key)).upper()
    location, text = keys.text(f"ssl.{store}.location"), keys.text(inline)
    if location is None and text is None:
        return
    if location is not None and text is not None:
        raise ConfigError(
            keys.place(inline), HIDDEN, f"Both ssl.{store}.location and {inline} are specified."
        )
    if kind not in STORE_TYPES:
        raise ConfigError(keys.place(key), kind, WAY_OUT_OF_JKS)
    if text is not None and kind != "PEM":
        raise ConfigError(keys.place(key), kind, f"the type must be PEM, because {inline} is PEM")
    password = f"ssl.{store}.password"
    if kind == "PEM" and keys.text(password) is not None:
        raise ConfigError(
            keys.place(password),
            HIDDEN,
            "a PEM store has no password: remove this value (ssl.key.password decrypts an encrypted key)",
        )
