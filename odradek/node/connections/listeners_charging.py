"""Charges the clients on all listeners of a broker for their requests, as long as there is a quota. PORTED."""

from __future__ import annotations

from odradek.data_plane.broker import Broker
from odradek.node.connections.charging import Charging
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.node.connections.connection_services import ConnectionServices
from odradek.security.acls.authorizer import Authorizer
from odradek.security.acls.rules import Operation
from odradek.security.doors.door import may_on_cluster, rights_of
from odradek.serving.contract import Context, Suspend
from odradek.serving.steps import Work, in_slices
from odradek.wire.messages.fetch import FetchRequest

__all__ = ["ListenersCharging"]

_UNITS_OF_A_WAIT = 4
"""The cost of checking one waiting client, in units of long work: the check looks at three accounts, each for
about 3 us.
"""


class ListenersCharging:
    """Starts to charge the clients of all listeners with the first quota, and stops when the last quota is removed."""

    def __init__(self, broker: Broker, authorizer: Authorizer | None, limits: ConnectionLimits) -> None:
        """`limits` are the connection limits of the client listeners. They follow the quotas of addresses."""
        limits.addresses = broker.quotas.addresses
        self._broker = broker
        self._authorizer = authorizer
        self._listeners: list[tuple[ConnectionServices, Charging]] = []
        self._changes = 0
        """The number of changes of the quotas or the listeners."""
        self._is_judging = False
        broker.quotas.listeners.append(self._apply)

    def follow(self, services: ConnectionServices, *, is_of_nodes: bool) -> None:
        """Charge the clients of these connections from now on. `is_of_nodes` is true if all these clients are
        brokers, which are exempt.
        """
        charging = Charging(
            self._broker.quotas,
            is_of_nodes=is_of_nodes,
            is_node=self._is_node,
            is_follower=self._is_follower,
        )
        self._listeners.append((services, charging))
        self._apply()

    def _apply(self) -> None:
        """Apply changed quotas: at once to new requests, in slices to clients that are waiting."""
        broker = self._broker
        for services, charging in self._listeners:
            charging.measures_cpu = broker.quotas.charges_requests
            services.charging = charging if broker.quotas.is_charging else None
        self._changes += 1
        if not self._is_judging:
            self._is_judging = True
            rest = in_slices(broker.long_work, self._judge())
            if isinstance(rest, Suspend):
                broker.tasks.start_soon(rest.run)

    def _judge(self) -> Work[None]:
        """Apply the present quotas to all waiting clients and all accounts. If quotas change meanwhile, the rest of
        this round uses the new quotas, and another round follows. Each round ends in spite of further changes, so every
        waiting client gets its turn.
        """
        broker, judged = self._broker, 0
        while judged != self._changes:
            judged = self._changes
            for services, _ in self._listeners:
                for connection in list(services.muted):
                    yield _UNITS_OF_A_WAIT
                    # Shorten the wait, because a quota that was set by mistake may have muted clients for
                    # hours.
                    if connection in services.muted:
                        connection.judge_wait()
            yield from broker.quotas.judge_accounts(broker.clock.monotonic)
        self._is_judging = False

    def _is_node(self, context: Context) -> bool:
        authorizer = self._authorizer
        return authorizer is not None and may_on_cluster(
            rights_of(context, authorizer), Operation.CLUSTER_ACTION
        )

    def _is_follower(self, request: FetchRequest) -> bool:
        """True if a Fetch comes from a broker and there is no authorizer. With an authorizer, the principal decides
        instead.
        """
        return self._authorizer is None and self._broker.is_brokers_fetch(request)
