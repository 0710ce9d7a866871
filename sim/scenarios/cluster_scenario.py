"""The cluster scenario: a simulated cluster with clients during a storm of faults, and the checks after it. PORTED.

The seed draws the weather, the cluster's shape, the workload and the storm (`sim.storm.storm` defines the fault
model). Then all faults end, and these are checked:

1. Liveness: within `HEAL_SECONDS_MAX` all nodes are up, and every replica is in sync.
2. The final records agree with all answers to clients (`sim.history`): no acknowledged record is lost, moved,
   duplicated or out of order. Records that a consumer has read are still there. Readers receive everything in order,
   and groups receive all acknowledged records.
3. The replicas on the disks are equal, byte for byte (`sim.replicas`).
4. The metadata logs match, and have all records that were seen committed in them during the storm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from random import Random

import attrs

from odradek.client.admin import NewTopic
from odradek.env.ports import Event
from sim.checks.derived.agreement import check_agreement
from sim.checks.derived.transactions import still_open
from sim.checks.quorum_watch import watch_quorum
from sim.checks.watch import Watch
from sim.history import History, SafetyViolation
from sim.knobs.turning import turned
from sim.load import pipelining
from sim.load.operators import Operator, moves
from sim.load.operators.access import USERS
from sim.load.operators.crew import Crew, load_topics
from sim.load.own_workload import OwnWorkload
from sim.load.producers import varied
from sim.load.workload import Workload
from sim.machine.answer_counts import AnswerCounts
from sim.machine.cluster_members import Cluster, Shape
from sim.machine.weather import Weather
from sim.machine.world import Liveness, World
from sim.options import RunOptions
from sim.replicas import (
    Committed,
    check_log_matching,
    check_replicas_equal,
    end_of,
    first_difference,
)
from sim.scenarios.clientele import Clientele, client_topics, configs_of_clients
from sim.storm.registry import ALL_TROUBLES
from sim.storm.storm import Storm
from sim.storm.storm_plan import StormPlan
from sim.storm.upgrade import level_must_be_decided

TOPIC = "replicated"
TRIMMED = "trimmed"
"""A topic of which an operator deletes old records."""
PARTITIONS = 3
START_SECONDS_MAX = 120.0
HEAL_SECONDS_MAX = 180.0
"""The longest time in seconds from the end of the storm until the cluster is whole. It covers elections, sessions,
connections without an answer, and recovery.
"""
BROKEN_HEAL_SECONDS = 30.0
"""The value of `HEAL_SECONDS_MAX` in the profile `broken`. It is short, since a node may have stopped for good."""
QUIET_SECONDS_MAX = 60.0
"""The longest time in seconds from the last acknowledgement until all replicas are equal."""
RESETS_PROBABILITY = 0.75
"""The probability that silently lost connections are reset after the storm.

In the other runs a node that waits on such a connection must wait for its timeout, which is half a minute or more.
"""
READ_SECONDS_MAX = 120.0
"""The longest time in seconds from the end of all writing until every reader has read everything."""
TRANSACTIONS_SECONDS_MAX = 60.0
"""The longest time in seconds from the end of all clients until no transaction is open. It covers the transaction
timeout, the next check for expired transactions, and the markers.
"""
CLIENTS = 2
"""The number of producers of a run whose options are not given."""
STOP_SECONDS_MAX = 120.0
VIRTUAL_SECONDS_MAX = 3600.0
"""The virtual seconds that a run may take in addition to its storm."""

__all__ = ["ClusterScenario"]


class ClusterScenario:
    """One run of a cluster. `options` has all settings. Without `options`, all settings that the other arguments
    leave open are drawn from the seed.
    """

    def __init__(
        self,
        seed: int,
        *,
        shape: Shape | None = None,
        plan: StormPlan | None = None,
        weather: Weather | None = None,
        options: RunOptions | None = None,
    ) -> None:
        if options is None:
            options = RunOptions.draw(seed)
            options = attrs.evolve(
                options,
                shape=options.shape if shape is None else shape,
                storm=options.storm if plan is None else plan,
                weather=options.weather if weather is None else weather,
                clients=CLIENTS,
            )
        self.options = options
        self.world = World(seed, options.weather)
        self.shape = options.shape
        self.plan = options.storm
        self.cluster = Cluster(self.world, self.shape)
        if (repeats := self.world.fabric.repeats) is not None:
            repeats.nodes = frozenset(member.name for member in self.cluster.members)
        self.history = History((TOPIC, TRIMMED, pipelining.TOPIC, varied.TOPIC, moves.TOPIC))
        topics = {TOPIC: PARTITIONS}
        if "trim" in options.workloads:
            topics[TRIMMED] = 1
        topics |= client_topics(options.workloads) | load_topics(options.duties)
        self.load = Workload(self.world, self.history, topics, self.cluster.bootstrap)
        self.load.delivery_seconds = options.delivery_seconds
        self.load.pace = self.plan.pace
        self.own: Sequence[OwnWorkload] = ()
        """The user's own workloads."""
        self.committed = Committed()
        self.watch = Watch(self.cluster)
        self._producers = tuple(f"client-{number}" for number in range(options.clients))
        trimmed = [key for key in self.load.partitions if key[0] == TRIMMED]
        self._whole = [key for key in self.load.partitions if key[0] != TRIMMED]
        operator = self._operator = Operator(
            self.cluster, self.load.partitions, self.shape.replicas, trimmed, self.history
        )
        self._clientele = Clientele(
            self.load,
            options.workloads,
            self.shape.replicas,
            self.shape.settings,
            self._whole,
            options.storm.kinds,
        )
        self._crew = Crew(self.cluster, self.load, self.shape.replicas, options.duties, options.storm.kinds)
        self._storm = Storm(
            self.cluster,
            self.plan,
            (*self._producers, *self._clientele.machines()),
            operator,
            ALL_TROUBLES,
            self._whole,
        )

    @classmethod
    def of(cls, seed: int, options: RunOptions) -> ClusterScenario:
        """Create the scenario for these options."""
        return cls(seed, options=options)

    def run(self) -> Mapping[str, int]:
        """Run to the end, and return counts of the run's events, each with a name. Raises `SafetyViolation`,
        `Liveness`, and the errors of nodes.

        In the profile `broken` harm is accepted if a node has logged an error (`sim.storm.breakage`).
        """
        if self.options.profile != "broken":
            return self._run_with_knobs()
        try:
            summary = self._run_with_knobs()
        except (SafetyViolation, Liveness) as error:
            told = self._errors_told()
            if not told:
                raise SafetyViolation(f"silent damage: no node has logged an error, but {error}") from error
            return {"harmed": 1, "told": told}
        return {**summary, "harmed": 0, "told": self._errors_told()}

    def _run_with_knobs(self) -> Mapping[str, int]:
        with turned(self.options.knobs):
            return self.world.run(self._main, virtual_seconds_max=self._virtual_seconds_max)

    @property
    def _virtual_seconds_max(self) -> float:
        return VIRTUAL_SECONDS_MAX + self.plan.seconds

    @property
    def _heal_seconds(self) -> float:
        return BROKEN_HEAL_SECONDS if self.options.profile == "broken" else HEAL_SECONDS_MAX

    def _errors_told(self) -> int:
        return sum(member.errors for member in self.cluster.members if member.may_be_damaged)

    async def _main(self) -> Mapping[str, int]:
        world, cluster, load = self.world, self.cluster, self.load
        cluster.format()
        self.watch.begin()
        if self.options.profile != "broken":
            self.watch.availability.begin()
            self.watch.answers.begin(self.watch.tap, self.watch.served_records, self._storm.atlas)
        for member in cluster.members:
            member.launch()
        await self._must_be_whole("after the first start", START_SECONDS_MAX)
        admin = load.client("admin")
        replicas = self.shape.replicas
        wanted = [NewTopic(name, count, replicas, self._configs(name)) for name, count in load.topics.items()]
        wanted += self._clientele.topics_apart(self._common_configs)
        await load.create_topics(admin, wanted, load.request_seconds)
        cluster.topics += [topic.name for topic in wanted]
        for each in self.own:
            await each.setup(load)
        await self._must_be_whole("after the topic was created", START_SECONDS_MAX)
        await self._crew.setup()
        if (access := self._crew.access) is not None:
            self.watch.access.watch(USERS, access.topics, access.passwords)
        world.spawn(watch_quorum, cluster, self.committed)
        half = (len(self._producers) + 1) // 2
        readers_named = ("reader",) if "consume" in self.options.workloads else ()
        workers = load.start(self._producers[:half], self._producers[half:], readers_named)
        for terms in self._clientele.terms():
            self.watch.availability.groups.watch(terms)
        readers = self._clientele.start_readers()
        workers += self._clientele.start_workers()
        own = [world.spawn(each.run, load) for each in self.own]
        self._crew.start()
        await self._storm.run()
        await self._crew.stop()
        self._clientele.end_churning()
        await self._heal()
        load.is_over = True
        for worker in workers:
            await worker.wait()
        for number, done in enumerate(own):
            await world.wait(done, READ_SECONDS_MAX)
            if not done.is_set():
                raise Liveness(f"seed {world.seed}: the workload {self.own[number]} does not end")
        await self._crew.check()
        if self.options.profile == "calm":
            self.watch.access.must_be_prompt()
        await load.find_ends(admin)
        await self._clientele.find_ends(admin)
        await self._readers_must_come_to_the_end(readers)
        await self._transactions_must_end()
        await self._clientele.check("auditor")
        summary = await load.check(admin)
        self.history.check_anomalies()
        for each in self.own:
            await each.check(load)
        await self._replicas_must_be_equal()
        admin.close()
        await self._stop()
        return {**summary, **self._figures()}

    async def _heal(self) -> None:
        """End all remaining faults, and wait until the cluster is whole. Raises `Liveness`."""
        world = self.world
        world.fabric.may_close_late = False
        if world.fabric.repeats is not None:
            world.fabric.repeats.is_over = True
        world.fabric.weather = world.fabric.weather.settled()
        if Random(f"{world.seed}/after the storm").random() < RESETS_PROBABILITY:
            world.fabric.reset_forgotten()
        for member in self.cluster.members:
            if not member.is_up():
                member.launch()
        if self._storm.may_wait_for_operator:
            world.spawn(self._operator.recover)
        if "unregister" in self.plan.kinds:
            world.spawn(self._operator.return_unregistered)
        await self._must_be_whole("after the storm", self._heal_seconds)
        if self.shape.older:
            await level_must_be_decided(self.cluster)

    def answers(self) -> AnswerCounts:
        """Return the counts of all nodes' answers, after the end of the run."""
        found = AnswerCounts()
        for member in self.cluster.members:
            found.merge(member.answers.counts, member.answers.served)
        return found

    def faults(self) -> Mapping[str, int]:
        """Count the faults by kind. (The storm counts them by their full texts, which also contain numbers and names of
        nodes.)
        """
        found: dict[str, int] = {}
        for what, times in self._storm.counts.items():
            words = takewhile(lambda word: word.isalpha(), what.replace(":", "").split())
            name = " ".join(words).removesuffix(" of")
            found[name] = found.get(name, 0) + times
        return found

    def _figures(self) -> dict[str, int]:
        """Return the counts of the run that do not belong to its basic workload."""
        world, cluster = self.world, self.cluster
        return {
            "starts": sum(world.machine(member.name).starts for member in cluster.members),
            "committed": self.committed.high_watermark,
            "troubles": sum(self._storm.counts.values()),
            "upgrades": sum(
                times for what, times in self._storm.counts.items() if what.startswith("upgrade ")
            ),
            **self._clientele.figures(),
            **self._crew.figures(),
            **{f"held {name}": times for name, times in self.watch.answers.statistics().items() if times},
            **{f"access {name}": times for name, times in self.watch.access.statistics().items() if times},
            "found dead": self.watch.found_dead.right,
            "found dead by mistake": self.watch.found_dead.wrong,
            "found silent": self.watch.found_dead.silent,
            "found silent but alive": self.watch.found_dead.silent_alive,
            **{f"repeated {what}": times for what, times in self._repeats().items()},
            "snapshots": sum(cluster.snapshot_end(member) > 0 for member in cluster.members),
        }

    def _repeats(self) -> Mapping[str, int]:
        """Count the requests between nodes that arrived twice, by API and way ("late" or "answered")."""
        repeats = self.world.fabric.repeats
        return {} if repeats is None else dict(sorted(repeats.counts.items()))

    def _configs(self, topic: str) -> dict[str, str]:
        return self._common_configs | configs_of_clients(topic, self.world.seed)

    @property
    def _common_configs(self) -> dict[str, str]:
        return {"min.insync.replicas": str(self.shape.in_sync_min), **self.shape.topic_configs}

    async def _must_be_whole(self, when: str, seconds: float) -> None:
        wrong = await self.cluster.wait_until_whole(seconds)
        if wrong is not None:
            raise Liveness(f"seed {self.world.seed}: {seconds} s {when} the cluster is not whole: {wrong}")

    async def _readers_must_come_to_the_end(self, readers: Mapping[str, Event]) -> None:
        deadline = self.world.now + READ_SECONDS_MAX
        for name, done in readers.items():
            await self.world.wait(done, deadline - self.world.now)
            if not done.is_set():
                raise Liveness(
                    f"seed {self.world.seed}: {name} does not come to {self.load.ends}: {self.load.positions}"
                )

    async def _transactions_must_end(self) -> None:
        """Wait until the coordinators have ended all abandoned transactions, except prepared transactions. Raises
        `Liveness`.
        """
        deadline = self.world.now + TRANSACTIONS_SECONDS_MAX
        while (wrong := still_open(self.watch.processes)) is not None:
            if self.world.now >= deadline:
                raise Liveness(f"seed {self.world.seed}: a transaction does not end: {wrong}")
            await self.world.sleep(1.0)

    async def _replicas_must_be_equal(self) -> None:
        """Wait until all metadata logs are equal, and all replicas of each partition, in their bytes and in the state
        that they have derived. Raises `SafetyViolation` if they still differ after `QUIET_SECONDS_MAX`.
        """
        deadline = self.world.now + QUIET_SECONDS_MAX
        while True:
            try:
                self._check_disks()
                check_agreement(self.watch.processes.hosted())
                return
            except SafetyViolation:
                if self.world.now >= deadline:
                    raise
            await self.world.sleep(1.0)

    def _check_disks(self) -> None:
        """Check that the contents of the disks agree. Raises `SafetyViolation`."""
        for topic, partition in self.load.partitions:
            logs = self.cluster.replica_logs(topic, partition)
            if len(logs) != self.shape.replicas:
                raise SafetyViolation(
                    f"{topic}-{partition}: the replicas are on {', '.join(logs)}, but there must be {self.shape.replicas}"
                )
            check_replicas_equal(f"{topic}-{partition}", logs, max(map(end_of, logs.values())))
        self._clientele.check_disks(self.cluster)
        metadata = self.cluster.metadata_logs()
        check_log_matching(metadata)
        snapshots = {member.name: self.cluster.snapshot_end(member) for member in self.cluster.members}
        for name, log in metadata.items():
            self.committed.check(name, log, snapshots[name])
            for other, other_log in metadata.items():
                at = first_difference(log, other_log)
                if at is not None:
                    raise SafetyViolation(f"metadata log: {name} and {other} differ at offset {at} for good")

    async def _stop(self) -> None:
        """Run all checks completely once. Then stop all nodes cleanly: first the brokers, then separate controllers."""
        self.watch.look_at_all()
        members = [*self.cluster.brokers, *self.cluster.controllers]
        for member in dict.fromkeys(members):
            running = member.running
            assert running is not None
            member.ask_to_stop()
            await self.world.wait(running.ended, STOP_SECONDS_MAX)
            if not running.ended.is_set():
                raise Liveness(f"seed {self.world.seed}: {member.name} does not stop")
