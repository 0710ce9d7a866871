"""Which listeners charge their clients by quotas: all of a broker's, as long as some quota is there. PORTED."""

from __future__ import annotations

from data_plane.broker import Broker
from odradek.node.connections.charging import Charging
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.node.connections.connection_services import ConnectionServices
from odradek.security.acls.authorizer import Authorizer
from odradek.security.acls.rules import Operation
from odradek.security.doors.door import may_on_cluster, rights_of
from odradek.serving.contract import Context
from wire.messages.fetch import FetchRequest

__all__ = ["ListenersCharging"]


class ListenersCharging:
    """Turns the charging of listeners on with the first quota, and off with the last one."""

    def __init__(self, broker: Broker, authorizer: Authorizer | None, limits: ConnectionLimits) -> None:
        """`limits` are those of the listeners for clients, which follow the quotas of addresses."""
        limits.addresses = broker.quotas.addresses
        self._broker = broker
        self._authorizer = authorizer
        self._listeners: list[tuple[ConnectionServices, Charging]] = []
        broker.quotas.listeners.append(self._apply)

    def follow(self, services: ConnectionServices, *, is_of_nodes: bool) -> None:
        """Charge the clients of these connections; `is_of_nodes`: they are brokers alone."""
        charging = Charging(
            self._broker.quotas,
            is_of_nodes=is_of_nodes,
            is_node=self._is_node,
            is_follower=self._is_follower,
        )
        self._listeners.append((services, charging))
        self._apply()

    def _apply(self) -> None:
        is_charging = self._broker.quotas.is_charging
        for services, charging in self._listeners:
            charging.measures_cpu = self._broker.quotas.charges_requests
            services.charging = charging if is_charging else None
            # A quota that was meant otherwise may have told them to wait for hours.
            for connection in services.muted:
                connection.judge_wait()

    def _is_node(self, context: Context) -> bool:
        authorizer = self._authorizer
        return authorizer is not None and may_on_cluster(
            rights_of(context, authorizer), Operation.CLUSTER_ACTION
        )

    def _is_follower(self, request: FetchRequest) -> bool:
        """True for a fetch of a broker, where there are no rights. Where there are, the principal decides."""
        return self._authorizer is None and self._broker.is_brokers_fetch(request)
