"""Raft under arbitrary networks and disks. Hypothesis draws events, and the cluster checks its invariants at each step.

The invariants are those of figure 3 of the Raft paper: election safety, leader append-only, log matching, leader
completeness and state machine safety. Also, epochs and high watermarks never fall. At the end of each run the network
heals, and a leader must be elected and commit.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from odradek.metadata_quorum.raft import membership
from odradek.metadata_quorum.raft.voters import Voter
from odradek.wire.errors import ErrorCode
from sim.alone.raft_cluster import Cluster
from tests.schedule import examples

NODES = st.integers(1, 7)
PLACES = st.integers(0, 30)


class RaftMachine(RuleBasedStateMachine):
    """A cluster of up to five voters and two observers."""

    @initialize(voters=st.sampled_from([1, 2, 3, 3, 3, 5]), observers=st.sampled_from([0, 0, 1, 2]))
    def start(self, voters: int, observers: int) -> None:
        ids = range(1, voters + observers + 1)
        self.cluster = Cluster.of(ids[:voters], ids[voters:])

    def node_id(self, number: int) -> int:
        return (number - 1) % len(self.cluster.nodes) + 1

    @rule(number=NODES, seconds=st.sampled_from([0.001, 0.01, 0.1, 0.5, 2.0]))
    def tick(self, number: int, seconds: float) -> None:
        self.cluster.tick(self.node_id(number), seconds)

    @precondition(lambda self: self.cluster.letters)
    @rule(places=st.lists(PLACES, min_size=1, max_size=8), keep=st.booleans())
    def deliver(self, places: list[int], keep: bool) -> None:
        """Deliver messages in any order, some of them twice."""
        for place in places:
            if self.cluster.letters:
                self.cluster.deliver(place % len(self.cluster.letters), keep=keep)

    @precondition(lambda self: self.cluster.letters)
    @rule(place=PLACES, broken=st.booleans())
    def lose(self, place: int, broken: bool) -> None:
        self.cluster.drop(place % len(self.cluster.letters), broken=broken)

    @rule()
    def quiet_moment(self) -> None:
        """Let time pass without trouble. In most runs, a leader is elected only after several calls."""
        self.cluster.settle(0.3)

    @rule(number=NODES)
    def sync(self, number: int) -> None:
        self.cluster.flush(self.node_id(number))

    @rule(number=NODES)
    def crash_or_start(self, number: int) -> None:
        node_id = self.node_id(number)
        if self.cluster.nodes[node_id].core is None:
            self.cluster.start(node_id)
        else:
            self.cluster.crash(node_id)

    @rule(number=NODES)
    def snapshot(self, number: int) -> None:
        self.cluster.write_snapshot(self.node_id(number))

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        leader = self.cluster.leader()
        if leader is not None:
            self.cluster.append(leader.key.node_id, count)

    @rule(number=NODES)
    def change_voters(self, number: int) -> None:
        """Add an observer as a voter, or remove a voter, which may be the leader."""
        leader = self.cluster.leader()
        if leader is None or leader.core is None:
            return
        core, voter = leader.core, Voter(self.cluster.nodes[self.node_id(number)].key)
        if core.voters.get(voter.key.node_id) is None:
            if membership.refusal_to_add(core, voter) is ErrorCode.NONE:
                self.cluster.append(leader.key.node_id, voters=core.voters.with_voter(voter))
        elif membership.refusal_to_remove(core, voter.key) is ErrorCode.NONE:
            self.cluster.append(leader.key.node_id, voters=core.voters.without(voter.key.node_id))

    @rule()
    def resign(self) -> None:
        leader = self.cluster.leader()
        if leader is not None and leader.core is not None:
            leader.core.resign(self.cluster.now)
            self.cluster.tick(leader.key.node_id, 0.0)

    @invariant()
    def logs_match(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check_log_matching()

    def teardown(self) -> None:
        """Check that a leader is elected when all nodes are up and no messages are lost.

        The leader's records must be committed everywhere.
        """
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        for node_id, node in cluster.nodes.items():
            if node.core is None:
                cluster.start(node_id)
        cluster.settle(20)
        leader = cluster.leader()
        assert leader is not None, "no leader was elected after the network had healed"
        cluster.append(leader.key.node_id)
        cluster.settle(5)
        leader = cluster.leader()
        assert leader is not None
        end_offset = cluster.end_offset(leader)
        assert [node.core.high_watermark for node in cluster.nodes.values() if node.core] == [
            end_offset
        ] * len(cluster.nodes)


TestRaft = RaftMachine.TestCase
TestRaft.settings = settings(
    max_examples=examples(60), stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
