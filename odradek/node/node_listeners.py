"""The listeners of one node: opened, served, and closed. PORTED."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from odradek.env.ports import Listener as OpenListener
from odradek.env.ports import Log, TaskGroup
from odradek.node.connections.buffers import ReceiveBuffers
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.connections.listener_settings import ListenerSettings
from odradek.node.connections.server import Server
from odradek.node.directories import NodeCannotStartYet
from odradek.node.entrances import Entrances
from odradek.serving.api_table import ApiTable
from odradek.serving.node_env import NodeEnv

__all__ = ["NodeListeners"]


class NodeListeners:
    """The open listeners of a node, the servers of their connections, and what these connections share."""

    def __init__(
        self,
        env: NodeEnv,
        tasks: TaskGroup,
        log: Log,
        settings: ListenerSettings,
        entrances: Entrances,
        *,
        poison: bool,
    ) -> None:
        """`poison` overwrites each received frame after its dispatch, to reveal handlers that keep a view of it."""
        self._env = env
        self._tasks = tasks
        self._log = log
        self._settings = settings
        self._entrances = entrances
        self._poison = poison
        self._opened: list[OpenListener] = []
        self.ports: dict[str, int] = {}
        """The port of each open listener, by the listener's name. If the configured port is 0, the system chose it."""
        self.servers: list[Server] = []
        self.services: list[ConnectionServices] = []

    def open(self, name: str, host: str, port: int) -> OpenListener:
        """Open the listener of this name. Raises `NodeCannotStartYet` if the address cannot be used."""
        try:
            opened = self._env.network.listen(
                host,
                port,
                send_buffer_bytes=self._settings.send_buffer_bytes,
                receive_buffer_bytes=self._settings.receive_buffer_bytes,
            )
        except OSError as error:
            raise NodeCannotStartYet(
                f"cannot listen on {host or '*'}:{port}: {error.strerror or error}"
            ) from error
        self.ports[name] = opened.port
        self._opened.append(opened)
        return opened

    def new_services(self, table: ApiTable, after_turn: Callable[[], None]) -> ConnectionServices:
        """Make what the connections of one or more listeners share: memory, and the APIs in `table`."""
        services = ConnectionServices(
            table=table,
            buffers=ReceiveBuffers(self._settings.received_bytes_max),
            env=self._env,
            tasks=self._tasks,
            log=self._log,
            frame_bytes_max=self._settings.frame_bytes_max,
            after_turn=after_turn,
            poison=self._poison,
        )
        self.services.append(services)
        return services

    def new_server(
        self,
        services: ConnectionServices,
        opened: OpenListener,
        name: str,
        limits: ConnectionLimits,
        *,
        is_peers: bool = False,
    ) -> Server:
        """Make the server of an open listener. It accepts connections once it is passed to `serve`."""
        return Server(
            services,
            opened,
            name,
            idle_ms_max=self._settings.idle_ms_max,
            limits=limits,
            is_peers=is_peers,
            entrance=self._entrances.entrance(name, services.table),
        )

    def serve(self, servers: Sequence[Server]) -> None:
        """Accept connections from now on."""
        for server in servers:
            self.servers.append(server)
            self._tasks.start_soon(server.accept_loop)
            self._tasks.start_soon(server.reap_loop)

    def close(self, *, but: Container[str] = ()) -> None:
        """Stop listening, and end the connections. Leave out the listeners whose names are in `but`."""
        for server in self.servers:
            if server.name not in but:
                server.close()
        if not but:
            for listener in self._opened:
                listener.close()
