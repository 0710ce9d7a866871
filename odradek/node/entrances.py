"""The authentication of a node, made from its configuration: of clients at its listeners, and of the node at other
nodes. PORTED.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable

import attrs

from odradek.data_plane.broker import Broker
from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import Conn, Log, TaskGroup
from odradek.env.tls_ports import OpenTls, Tls, TlsFailed
from odradek.env.token_ports import FetchDocument, OpenTokens
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.node.certificates import Certificates
from odradek.node.configuration.listener_security import ListenerSecurity
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.own_keys import SCRAM_SECRET
from odradek.node.connections.entrance import Encryption, Entrance, NotAuthenticated, SaslLogins
from odradek.node.directories import NodeCannotStart
from odradek.security.audit.auditor import Auditor
from odradek.security.certificate_validity import refusal_by_time
from odradek.security.dialing import SecuredEnv, SecuredNetwork
from odradek.security.distinguished_names import MalformedName, distinguished_name, subject_of
from odradek.security.handshakes import Handshakes
from odradek.security.oauth.oauth_settings import OauthSettings
from odradek.security.salt_forms import SaltForms
from odradek.security.sasl_server import BearerLogin, Login, SaslSettings
from odradek.security.scram import MECHANISMS, ScramMechanism, ServerKeys
from odradek.security.tls_conn import TlsConn
from odradek.security.tokens import TokenLogin, TokenLogins
from odradek.serving.api_table import ApiTable
from odradek.serving.node_env import NodeEnv

__all__ = ["Entrances", "World"]

STRANGERS_OVERHEAD_BYTES_MAX = 64 * 1024
"""The maximum number of bytes that TLS may add to the bytes of a login. This limit allows 700 TLS records of
any size, and a login needs only about a dozen.
"""


@attrs.frozen
class World:
    """The functions that entrances need in addition to the ports. A function is None if the node does not need it."""

    open_tls: OpenTls | None = None
    fetch_document: FetchDocument | None = None
    open_tokens: OpenTokens | None = None


class Entrances:
    """Makes the entrance of each listener, and the networks for connections to other nodes."""

    def __init__(
        self,
        config: NodeConfig,
        env: NodeEnv,
        log: Log,
        image: Callable[[], MetadataImage],
        world: World,
        auditor: Auditor,
    ) -> None:
        """`image` returns the newest metadata image, which has the SCRAM users."""
        self._auditor = auditor
        self._world = world
        self._bearer_logins: dict[str, Callable[[], BearerLogin]] = {}
        self.certificates = Certificates(config, env, log, world.open_tls)
        self.handshakes = Handshakes(env)
        self.peer_handshakes = Handshakes(env)
        """TLS handshakes between nodes. They have a queue of their own, so clients cannot fill it."""
        self._by_listener: dict[str, Entrance] = {}
        self._config = config
        self._env = env
        self._log = log
        self._image = image
        self._salt_secret = self._secret_for_salts()
        secrets = config.token_secrets
        self._tokens = None if secrets is None else TokenLogins(secrets, self._salt_secret)

    async def open(self, tasks: TaskGroup) -> None:
        """Read keys and certificates, and start the tasks that keep them current. Raises `NodeCannotStart`."""
        await self.certificates.open(tasks)
        for name, security in self._config.security.items():
            if security.oauth is not None:
                self._bearer_logins[name] = self._verify_tokens(security.oauth, name, tasks)

    def _verify_tokens(
        self, settings: OauthSettings, name: str, tasks: TaskGroup
    ) -> Callable[[], BearerLogin]:
        """Start to fetch the keys of a token issuer. Return a function that begins a login by its tokens. Raises
        `NodeCannotStart`.
        """
        # Imported only here, because the library for tokens takes a tenth of a second and some megabytes. Nodes
        # without OAUTHBEARER do not need it.
        from odradek.security.oauth.verifier import Verifier

        if self._world.fetch_document is None:
            raise NodeCannotStart(
                f"listener {name} needs the keys of a token issuer, which this process cannot fetch"
            )
        verifier = Verifier(
            self._env, self._log, settings, self._world.fetch_document, self._env.new_workers(1)
        )
        tasks.start_soon(verifier.run, name="keys of an issuer")
        return verifier.new_login

    def follow(self, broker: Broker) -> None:
        """Apply the broker's dynamic configuration of certificates, now and at each change."""
        certificates = self.certificates

        def apply() -> None:
            certificates.apply(broker.config_layers.dynamic)

        broker.own_config.check_key_stores = certificates.check
        broker.config_listeners.append(apply)
        apply()

    def world(self, listener: str) -> NodeEnv:
        """Return the ports for connections to the listeners of this name at other nodes. Their network
        encrypts the connections and logs in, as configured.
        """
        security = self._config.security[listener]
        if security.protocol == "PLAINTEXT":
            return self._env
        login, tokens = security.node_login, None
        if login is not None and login.token_request is not None:
            if self._world.open_tokens is None:
                raise NodeCannotStart(
                    f"listener {listener} needs tokens to log in to other nodes, which this process "
                    "cannot fetch"
                )
            tokens = self._world.open_tokens(login.token_request)
        return SecuredEnv(
            self._env,
            SecuredNetwork(self._env, self.certificates.tls(listener), login, self.peer_handshakes, tokens),
        )

    def entrance(self, listener: str, table: ApiTable) -> Entrance | None:
        """Make the entrance of a listener; None if its clients neither encrypt nor log in."""
        security = self._config.security[listener]
        if security.protocol == "PLAINTEXT":
            return None
        entrance = self._by_listener[listener] = Entrance(
            listener,
            clock=self._env.clock,
            table=table,
            frame_bytes_max=security.frame_bytes_max,
            tls=self._encryption(security),
            sasl=self._logins(security) if security.has_sasl else None,
            auditor=self._auditor,
        )
        return entrance

    def encryption(self, listener: str) -> Encryption | None:
        """Return the server side of TLS on a listener; None if the listener has no TLS."""
        security = self._config.security.get(listener)
        return None if security is None else self._encryption(security)

    def _encryption(self, security: ListenerSecurity) -> Encryption | None:
        tls = self.certificates.tls(security.name)
        if tls is None:
            return None
        return ServerEncryption(tls, security, self._turns_of(security.name), self._env.agreed_clock)

    def _turns_of(self, listener: str) -> Handshakes:
        return self.peer_handshakes if self._is_peers(listener) else self.handshakes

    def _is_peers(self, listener: str) -> bool:
        """True if only nodes connect to a listener."""
        config = self._config
        return listener in config.controller_listener_names or (
            listener == config.inter_broker_listener_name and len(config.broker_listeners) > 1
        )

    def _logins(self, security: ListenerSecurity) -> SaslLogins:
        settings = SaslSettings(
            security.mechanisms,
            security.plain_users,
            security.session_ms_max,
            self._salt_secret,
            self._bearer_logins.get(security.name),
        )
        now = self._env.clock.monotonic
        return SaslLogins(
            lambda: Login(settings, self.keys_of, self._nonce, now, self._token_of, self._forms),
            self._config.get_int("connection.failed.authentication.delay.ms") / 1000,
            self._turns_of(security.name).compute,
        )

    def statistics(self) -> dict[str, dict[str, int]]:
        """Count for each listener the clients that have not logged in yet, and the clients refused since the start."""
        return {
            name: {"half_open": each.half_open, "failed": each.failed}
            for name, each in self._by_listener.items()
        }

    def keys_of(self, user: str, mechanism: int) -> ServerKeys | None:
        """Return the SCRAM keys of a user in the newest image; None for an unknown user."""
        known = self._image().access.scram_credentials.get((user, mechanism))
        if known is None:
            return None
        return ServerKeys(known.salt, known.stored_key, known.server_key, known.iterations)

    def _forms(self) -> SaltForms:
        return self._image().access.salt_forms

    def _token_of(self, token_id: str, mechanism: ScramMechanism, at_once: bool) -> TokenLogin | None:
        if self._tokens is None:
            return None
        token = self._image().access.delegation_tokens.get(token_id)
        latest_ms = self._env.agreed_clock.latest_ms()
        return self._tokens.login(token_id, token, mechanism, latest_ms, at_once=at_once)

    def _nonce(self) -> str:
        """Make a random text. A real node takes it from the system's randomness."""
        return base64.b64encode(self._env.new_uuid() + self._env.new_uuid()).decode().rstrip("=")

    def _secret_for_salts(self) -> bytes:
        """Return the secret from which the salts of unknown users are made. It comes from the properties file, so that
        all brokers have the same secret, or else it is random.
        """
        text = self._config.get_str(SCRAM_SECRET)
        if text:
            return hashlib.sha256(text.encode()).digest()
        if any(not set(each.mechanisms).isdisjoint(MECHANISMS) for each in self._config.security.values()):
            self._log.warning("sasl.salts_differ", key=SCRAM_SECRET)
        return self._env.new_uuid() + self._env.new_uuid()


class ServerEncryption:
    """The server side of TLS on one listener."""

    def __init__(
        self, tls: Tls, security: ListenerSecurity, handshakes: Handshakes, agreed_clock: AgreedClock
    ) -> None:
        self._tls = tls
        self._agreed_clock = agreed_clock
        self._rules = security.principal_rules
        self._handshakes = handshakes

    def has_room(self, host: str) -> bool:
        return self._handshakes.has_room(host)

    async def handshake(self, conn: Conn) -> tuple[Conn, str | None, str | None]:
        try:
            secured = await self._handshakes.accept(conn, self._tls.server_session)
            certificate = secured.peer_certificate()
            name = None if certificate is None else self._name_in(certificate)
        except (TlsFailed, MalformedName) as error:
            raise NotAuthenticated(f"the TLS handshake failed: {error}") from error
        secured.overhead_left = STRANGERS_OVERHEAD_BYTES_MAX
        principal = None if name is None else self._rules.principal(name)
        if name is not None and principal is None:
            raise NotAuthenticated(
                "none of the ssl.principal.mapping.rules matches the name in the client's certificate",
                tls_subject=name,
            )
        return secured, principal, name

    def _name_in(self, certificate: bytes) -> str:
        """Return the subject of a client's certificate, which must be valid now. Raises `NotAuthenticated`,
        `MalformedName`.
        """
        name = distinguished_name(subject_of(certificate))
        if refusal := refusal_by_time(certificate, self._agreed_clock.moment()):
            raise NotAuthenticated(f"the TLS handshake was refused: {refusal}", tls_subject=name)
        return name

    def let_in(self, conn: Conn) -> None:
        assert isinstance(conn, TlsConn), "the handshake must have made the TLS session"
        conn.overhead_left = None
