"""All operators of a run except the storm's, by their names in `RunOptions.duties`. PORTED."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odradek.env.ports import Event
from sim.load.operators import moves
from sim.load.operators.access import Access
from sim.load.operators.asker import Asker
from sim.load.operators.directories import Directories
from sim.load.operators.duty import Duty, Site
from sim.load.operators.elections import Elections
from sim.load.operators.lives import Lives
from sim.load.operators.moves import Moves
from sim.load.operators.quotas import Quotas
from sim.load.operators.retirements import Retirements
from sim.load.operators.settings import Settings
from sim.load.operators.tokens import Tokens
from sim.load.operators.topics import Topics
from sim.load.workload import Workload
from sim.machine.cluster_members import Cluster

OPERATORS: Mapping[str, type[Duty]] = {
    "moves": Moves,
    "topics": Topics,
    "settings": Settings,
    "elections": Elections,
    "directories": Directories,
    "retirements": Retirements,
    "ask": Asker,
    "access": Access,
    "quotas": Quotas,
    "lives": Lives,
    "tokens": Tokens,
}
MOVING_KINDS = ("operator", "wipes", "dying", "rot", "full")
"""Kinds of trouble that may move a replica to another directory."""

__all__ = ["OPERATORS", "Crew", "load_topics"]


def load_topics(duties: Sequence[str]) -> dict[str, int]:
    """Return the topics that exist only for one of these operators, with their number of partitions."""
    return {moves.TOPIC: moves.PARTITIONS} if "moves" in duties else {}


class Crew:
    """The operators of one run."""

    def __init__(
        self, cluster: Cluster, load: Workload, replicas: int, duties: Sequence[str], kinds: Sequence[str]
    ) -> None:
        self._world = load.world
        self._plan = [(name, Site(cluster, load, replicas, f"operator-{name}")) for name in duties]
        self._replicas_stay = not any(kind in MOVING_KINDS for kind in kinds) and not {
            "moves",
            "retirements",
        } & {*duties}
        self.operators: dict[str, Duty] = {}
        self._ended: list[Event] = []

    async def setup(self) -> None:
        """Create and prepare all operators, once the topics exist."""
        for name, site in self._plan:
            operator = self.operators[name] = OPERATORS[name](site)
            if isinstance(operator, Directories):
                operator.replicas_stay = self._replicas_stay
            await operator.setup()

    @property
    def access(self) -> Access | None:
        """The operator that changes rights, if there is one."""
        found = self.operators.get("access")
        return found if isinstance(found, Access) else None

    def start(self) -> None:
        """Start all operators."""
        self._ended = [self._world.spawn(operator.run) for operator in self.operators.values()]

    async def stop(self) -> None:
        """Stop each operator after its present step."""
        for operator in self.operators.values():
            operator.is_over = True
        for ended in self._ended:
            await ended.wait()

    async def check(self) -> None:
        """Check the results of all operators, once the cluster is healed. Raises `SafetyViolation`."""
        for operator in self.operators.values():
            await operator.check()
            operator.close()

    def figures(self) -> dict[str, int]:
        """Count the acknowledged steps of each operator."""
        figures = {f"operator {name}": operator.done for name, operator in self.operators.items()}
        tokens = self.operators.get("tokens")
        return figures | (tokens.statistics() if isinstance(tokens, Tokens) else {})
