"""The entrances of a node's listeners, and the dialers by which it enters those of others, by the configuration. PORTED."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable

from metadata_quorum.image.metadata_image import MetadataImage
from odradek.env.ports import Env, Log
from odradek.node.configuration.listener_security import ListenerSecurity
from odradek.node.configuration.node_config import SCRAM_SECRET, NodeConfig
from odradek.node.connections.entrance import Entrance
from odradek.security.sasl_server import Login, SaslSettings
from odradek.security.scram import MECHANISMS, ServerKeys
from odradek.serving.api_table import ApiTable

__all__ = ["Entrances"]


class Entrances:
    """Makes the entrance of each listener."""

    def __init__(self, config: NodeConfig, env: Env, log: Log, image: Callable[[], MetadataImage]) -> None:
        """`image` gives the newest image, which has the users of SCRAM."""
        self._config = config
        self._env = env
        self._log = log
        self._image = image
        self._salt_secret = self._secret_for_salts()

    def entrance(self, listener: str, table: ApiTable) -> Entrance | None:
        """The entrance of a listener; None where everybody comes in."""
        security = self._config.security[listener]
        if security.protocol == "PLAINTEXT":
            return None
        config = self._config
        return Entrance(
            listener,
            clock=self._env.clock,
            table=table,
            frame_bytes_max=config.get_int("sasl.server.max.receive.size"),
            refusal_delay_seconds=config.get_int("connection.failed.authentication.delay.ms") / 1000,
            new_login=self._logins(security) if security.has_sasl else None,
        )

    def _logins(self, security: ListenerSecurity) -> Callable[[], Login]:
        settings = SaslSettings(
            security.mechanisms, security.plain_users, security.session_ms_max, self._salt_secret
        )
        now = self._env.clock.monotonic
        return lambda: Login(settings, self._keys_of, self._nonce, now)

    def _keys_of(self, user: str, mechanism: int) -> ServerKeys | None:
        known = self._image().access.scram_credentials.get((user, mechanism))
        if known is None:
            return None
        return ServerKeys(known.salt, known.stored_key, known.server_key, known.iterations)

    def _nonce(self) -> str:
        """Random text, of the system's own randomness where the node is real."""
        return base64.b64encode(self._env.new_uuid() + self._env.new_uuid()).decode().rstrip("=")

    def _secret_for_salts(self) -> bytes:
        """The secret behind the salts of users who do not exist: the same on all brokers if the file has one."""
        text = self._config.get_str(SCRAM_SECRET)
        if text:
            return hashlib.sha256(text.encode()).digest()
        if any(not set(each.mechanisms).isdisjoint(MECHANISMS) for each in self._config.security.values()):
            self._log.warning("sasl.salts_differ", key=SCRAM_SECRET)
        return self._env.new_uuid() + self._env.new_uuid()
