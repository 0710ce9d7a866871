"""The storm: its tasks of faults and what the fault model permits: killed processes, cut and slow links, full
and replaced disks. PORTED.

Each kind of trouble is a separate task with its own random generator, so that troubles overlap. The seed draws
which kinds a run has; few runs have all (swarm testing).

What the fault model permits
----------------------------
Processes may die at any time, even all at once. Page caches survive that, and the last replica of an ISR has all
acknowledged records. A controller's machine may lose power at any time, since a quorum syncs before it
acknowledges.

A broker's machine may lose power, or have a failing disk, only while the cluster is whole. Then every replica is in
sync, and no other trouble is active. Until the cluster is whole again, each partition of that broker keeps one
other replica whose broker stays up. A broker with the only replica of a partition keeps its power and its disks. In
short: guarantees hold while one in-sync replica keeps its synced data and its page cache.

These rules also apply to a broker whose disks are replaced by empty disks, with one exception. The processes of all
other brokers may die together after that, since their page caches survive. If a partition's last leader has the new
disk, the partition waits for an operator, who elects the replica with the longest log (`Operator.recover`). A machine
that loses some of its disks keeps the page caches of its other disks.

Several machines may lose power at once, even if the cluster is not whole. Each partition then keeps a replica that
may lead (`sim.storm.power_cuts`). All machines may lose power if brokers sync everything before they acknowledge
it.

A voter may lose its disk if voters have directory ids (KIP-853). Another voter may lose its disk once the first voter
has been replaced. A node whose disk reports errors or is full may stop, if it reports the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

from odradek.env.ports import Event
from odradek.wire.topic_partition import TopicPartition
from sim.load.operators import Operator
from sim.machine.cluster_members import Cluster
from sim.machine.members import Member
from sim.storm.fault_atlas import FaultAtlas
from sim.storm.storm_plan import StormPlan

CLOCK_OFF_MS_MAX = 1_800_000
"""The largest error of a clock in milliseconds. It is below one hour, because Kafka accepts timestamps of producers up
to one hour ahead of the broker's clock.
"""
CUT_SECONDS_MAX = 5.0
LONG_SECONDS_MAX = 15.0
"""The longest duration of a trouble in seconds: longer than a broker's session."""
FOLLOWS_PROBABILITY = 0.4
"""The probability that the processes of all other brokers are killed after one broker's disk was replaced."""
FULL_BYTES_MAX = 5000
"""How many bytes may remain free when a disk becomes full."""


Trouble = Callable[["Storm", Random], Awaitable[None]]
"""A kind of trouble: a coroutine function that causes the trouble again and again until the storm is over."""


class Storm:
    """One storm. `counts` has how often each fault and action occurred."""

    def __init__(
        self,
        cluster: Cluster,
        plan: StormPlan,
        clients: tuple[str, ...],
        operator: Operator,
        troubles: Mapping[str, Trouble],
        partitions: Sequence[TopicPartition] = (),
    ) -> None:
        """Create the storm. `troubles` are kinds of trouble in addition to the storm's own kinds. `partitions` are
        those of the workload, whose bytes may rot.
        """
        self._troubles = troubles
        self.atlas = FaultAtlas()
        self.partitions = partitions
        self._operator = operator
        self.counts: dict[str, int] = {}
        self.cluster = cluster
        self.world = cluster.world
        self.plan = plan
        self.clients = clients
        self._ends_at = 0.0
        self._under_way = 0
        """How many troubles are active now."""
        self._begun = 0
        self._voter_away: Member | None = None
        """The voter whose disk was replaced, until it is made a voter again; otherwise None."""
        self.lost_power: Member | None = None
        """The broker that has lost its page cache, until its replicas are in sync again; otherwise None."""
        self._without_cache: frozenset[str] = frozenset()
        """The names of all brokers that have lost their page caches since the cluster was last whole."""
        self._replica_sets: frozenset[frozenset[str]] = frozenset()
        """For each partition, the names of its brokers when the page cache was lost."""
        self.may_wait_for_operator = False
        """True once a partition may need an operator to get a leader again. In that case the former leader was the only
        replica in the ISR when it lost its disk.
        """
        self.died_since: tuple[str, ...] = ()
        """The names of brokers that have died since the page cache was lost, including `lost_power`."""
        self.doomed: set[str] = set()
        """Names of nodes that will soon be ended, although they are still up. No other node's data may depend on them.
        """

    async def run(self) -> None:
        """Cause trouble until the time is over. At the end each trouble is undone, except that nodes which are down
        remain down.
        """
        world = self.world
        self._ends_at = world.now + self.plan.seconds
        tasks: list[Event] = []
        makers = {
            "deaths": self._deaths,
            "links": self._links,
            "pauses": self._pauses,
            "clocks": self._clocks,
            "slow": self._slow,
            "operator": self._operate,
            "full": self._full,
            "wipes": self._wipes,
            "voters": self._change_voters,
        }
        for number, kind in enumerate(self.plan.kinds):
            random = Random(f"{world.seed}/storm {number} {kind}")
            if kind in makers:
                tasks.append(world.spawn(makers[kind], random))
            else:
                tasks.append(world.spawn(self._troubles[kind], self, random))
        for task in tasks:
            await task.wait()
        await world.sleep(max(0.0, self._ends_at - world.now))

    # --- bookkeeping

    def begin(self, what: str) -> None:
        self._begun += 1
        self._under_way += 1
        self.counts[what] = self.counts.get(what, 0) + 1
        self.world.trace.record(self.world.now, "storm", "log", what)

    def end(self) -> None:
        self._under_way -= 1

    @property
    def under_way(self) -> int:
        """How many troubles are active now."""
        return self._under_way

    @property
    def seconds_left(self) -> float:
        """How many seconds of the storm are left."""
        return max(0.0, self._ends_at - self.world.now)

    async def calm(self, random: Random, seconds_max: float) -> bool:
        """Wait before the next trouble. Return False if the storm is over."""
        seconds = random.uniform(0.0, seconds_max) * self.plan.pace
        await self.world.sleep(max(0.0, min(seconds, self._ends_at - self.world.now)))
        return self.world.now < self._ends_at

    async def last(self, random: Random, seconds: float | None = None) -> None:
        """Wait while a trouble lasts. It lasts for `seconds` if given. Otherwise the duration is drawn: a moment, some
        seconds, or longer than a session.
        """
        if seconds is None:
            seconds = random.uniform(0.0, random.choice((0.1, 3.0, LONG_SECONDS_MAX)))
        await self.world.sleep(max(0.0, min(seconds, self._ends_at - self.world.now)))

    # -- ends of processes

    async def _deaths(self, random: Random) -> None:
        while await self.calm(random, 8.0):
            how = random.choice(
                ("stop", "all", "all", "all", "everybody", "synced", "random", "cut", "error")
            )
            member = random.choice(self.cluster.members)
            if how == "everybody":
                await self._everybody(random)
            elif how in ("stop", "all"):
                await self.process_dies(member, how, random)
            elif self.plan.power:
                await self._power_fails(member, how, random)

    async def process_dies(self, member: Member, how: str, random: Random, why: str = "") -> None:
        """Kill a process (`how` is `all`) or stop it (`stop`), if the fault model permits this, and start it again.
        `why` is for the trace.
        """
        if not member.is_up() or not self.may_die(member):
            return
        running = member.running
        assert running is not None
        self.begin(f"{how} {member.name} {why}".rstrip())
        # Record the death already now: a broker that is asked to stop leaves the ISRs at once, long before its
        # process has ended.
        self.note_death(member)
        if how == "stop" and member.serves():
            member.ask_to_stop()
            await self.world.wait(running.ended, LONG_SECONDS_MAX)
        await member.kill("all")
        await self._stay_down(member, random)

    async def stop(self, member: Member) -> None:
        """Stop a process, cleanly if possible. Its page cache is kept."""
        running = member.running
        self.note_death(member)
        if running is not None and member.serves():
            member.ask_to_stop()
            await self.world.wait(running.ended, LONG_SECONDS_MAX)
        await member.kill("all")

    async def _everybody(self, random: Random) -> None:
        """Kill all processes at once, and restart them one after another."""
        if self.lost_power is not None:
            return
        self.begin("everybody")
        victims = [member for member in self.cluster.members if member.is_up()]
        for member in victims:
            self.note_death(member)
            self.world.crash(member.name, "all")
        random.shuffle(victims)
        for member in victims:
            await self.world.sleep(random.uniform(0.0, random.choice((0.01, 1.0, 5.0))))
            if not member.is_up():
                member.launch()
        self.end()

    async def _power_fails(self, member: Member, how: str, random: Random) -> None:
        is_broker = member in self.cluster.brokers
        if not member.is_up() or (is_broker and not await self.may_lose_power(member)):
            return
        if not member.is_up():
            return
        if is_broker:
            self.note_loss(member)
        self.begin(f"power {how} {member.name}")
        if how == "cut":
            await member.cut(random, 100, CUT_SECONDS_MAX)
        elif how == "error" and not member.disk_is_bad:
            await member.fail_the_disk(random)
        else:
            await member.kill("synced" if how == "synced" else "random")
        await self._stay_down(member, random)

    async def _stay_down(self, member: Member, random: Random) -> None:
        await self.last(random)
        if not member.is_up():
            member.launch()
        while random.random() < 0.2:  # Sometimes crash again before the node is up.
            await self.world.sleep(random.uniform(0.0, 0.5))
            if member.is_up() and self.may_die(member):
                await member.kill("all")
            if not member.is_up():
                member.launch()
        self.end()

    def note_death(self, member: Member) -> None:
        if self.lost_power is not None and member in self.cluster.brokers:
            self.died_since = tuple(dict.fromkeys((*self.died_since, member.name)))

    def may_die(self, member: Member) -> bool:
        """True if this node may be killed. Suppose that a broker has lost its page cache. Then each partition of that
        broker must keep a replica whose broker has stayed up since the loss.
        """
        if self.lost_power is None or member not in self.cluster.brokers:
            return True
        return self._keeps_a_replica(member, self._without_cache)

    def may_lose_disks_too(self, member: Member) -> bool:
        """True if this broker's disks may be damaged while another broker has lost its page cache. Each affected
        partition must have one more replica, on a broker that has been up since that page cache was lost.
        """
        return self._keeps_a_replica(member, self._without_cache | {member.name})

    def _keeps_a_replica(self, member: Member, without_cache: frozenset[str]) -> bool:
        dead = {*self.died_since, member.name}
        return all(names - dead for names in self._replica_sets if names & without_cache)

    def note_loss(self, member: Member) -> None:
        """Record that this broker has lost its page cache in a cluster that was whole."""
        self.lost_power = member
        self.died_since = (member.name,)
        self._without_cache = frozenset(self.died_since)
        self._replica_sets = self.cluster.replica_sets

    def note_losses(self, members: Sequence[Member], replica_sets: frozenset[frozenset[str]]) -> None:
        """Record that these brokers have lost their page caches. `replica_sets` has, for each partition, the brokers
        that may lead it.
        """
        self.lost_power = members[0]
        self.died_since = tuple(member.name for member in members)
        self._without_cache = frozenset(self.died_since)
        self._replica_sets = replica_sets

    def note_second_loss(self, member: Member) -> None:
        """Record that another broker has lost its page cache before the cluster was whole again."""
        self.note_death(member)
        self._without_cache |= {member.name}

    async def may_lose_power(self, member: Member) -> bool:
        """True if this broker's machine may lose power. The cluster must be whole, all other trouble must be over, and
        each of the broker's partitions must have other replicas.
        """
        if self._under_way or not self.atlas.is_clear:
            return False
        begun = self._begun
        if await self.cluster.trouble() is not None or self._begun != begun:
            return False
        self.lost_power = None
        return frozenset((member.name,)) not in self.cluster.replica_sets

    async def is_settled(self) -> bool:
        """True if all disks are undamaged, and the cluster is whole again after the last loss of a page cache."""
        if not self.plan.power or not self.atlas.is_clear:
            return False
        if any(member.disk_is_bad for member in self.cluster.members):
            return False
        if self.lost_power is None:
            return True
        begun = self._begun
        if self._under_way or await self.cluster.trouble() is not None or self._begun != begun:
            return False
        self.lost_power = None
        return True

    async def may_damage(self, member: Member) -> bool:
        """True if a node's disk may be damaged now. If the answer for a broker is True, the broker counts as having
        lost its page cache from now on.
        """
        if not self.plan.power or not member.is_up() or member.disk_is_bad:
            return False
        if member in self.cluster.brokers:
            if not await self.may_lose_power(member) or not member.is_up():
                return False
            self.note_loss(member)
        return True

    def paths_to_lose(self, member: Member) -> tuple[str, ...]:
        """Return the log directories that a node may lose. A voter keeps its first directory, where its votes are
        stored.

        A voter may lose that directory, too, if a voter with a new directory can replace it (KIP-853). Only one voter
        at a time may lose its first directory.
        """
        paths = member.config.log_dirs
        if self._operator.is_voter(member) and (
            self._voter_away is not None or not self._operator.may_replace_voters(self.plan.kinds)
        ):
            return paths[1:]
        return paths

    def lose(self, member: Member) -> tuple[str, ...]:
        """Choose the log directories that a node loses now. `bring_back` ends the loss."""
        paths = self.paths_to_lose(member)
        if paths[:1] == member.config.log_dirs[:1] and self._operator.is_voter(member):
            self._voter_away = member
        return paths

    async def bring_back(self, member: Member, paths: Sequence[str]) -> None:
        """Start a node whose directories `paths` were replaced. A voter that has lost its first directory is made a
        voter again.
        """
        if not member.is_up():
            member.launch()
        if paths[0] == member.config.log_dirs[0] and self._operator.is_voter(member):
            await self._operator.replace_voter(member)
            self._voter_away = None

    # --- troubles of links, processes and clocks

    async def _links(self, random: Random) -> None:
        """Isolate one node, split the cluster, or cut one direction between two nodes."""
        everybody = [member.name for member in self.cluster.members]
        while await self.calm(random, 10.0):
            shuffled = random.sample(everybody, len(everybody))
            how = random.choice(("isolate", "isolate", "split", "one way", "one way"))
            if how == "one way":
                source, target = random.sample([*everybody, *self.clients], 2)
                links = [(source, target)]
            else:
                size = 1 if how == "isolate" else len(shuffled) // 2
                inside = shuffled[:size]
                outside = shuffled[size:] + [name for name in self.clients if random.random() < 0.5]
                links = [(one, other) for one in inside for other in outside]
                links += [(other, one) for one, other in links]
            await self.cut(links, how, random)

    async def cut(self, links: Sequence[tuple[str, str]], what: str, random: Random) -> None:
        """Cut these links (source, target) for a while. `what` is for the trace."""
        self.begin(f"links {what}")
        for source, target in links:
            self.world.cut(source, target)
        await self.last(random)
        for source, target in links:
            self.world.fabric.heal(source, target)
        self.end()

    async def _slow(self, random: Random) -> None:
        """Make one link slow for a while."""
        everybody = [member.name for member in self.cluster.members]
        while await self.calm(random, 10.0):
            one, other = random.sample([*everybody, *self.clients], 2)
            self.begin("slow link")
            self.world.slow(one, other, random.choice((0.05, 0.5, 2.0)))
            await self.last(random)
            self.world.slow(one, other, 0.0)
            self.end()

    async def _pauses(self, random: Random) -> None:
        """Freeze a process for a while, as SIGSTOP or a long garbage collection does."""
        while await self.calm(random, 10.0):
            member = random.choice(self.cluster.members)
            await self.freeze(member, random)

    async def freeze(self, member: Member, random: Random, why: str = "") -> None:
        """Freeze a process for a while, if it runs. `why` is for the trace."""
        if not member.is_up():
            return
        self.begin(f"pause {member.name} {why}".rstrip())
        self.world.pause(member.name)
        await self.last(random)
        self.world.resume(member.name)
        self.end()

    async def _clocks(self, random: Random) -> None:
        """Set a machine's wall clock wrong, as an operator may do by mistake. Nothing important may depend on it."""
        while await self.calm(random, 10.0):
            member = random.choice(self.cluster.members)
            offset_ms = random.randint(-CLOCK_OFF_MS_MAX, CLOCK_OFF_MS_MAX)
            self.world.machine(member.name).wall_offset_ms = offset_ms
            if member.is_up():
                self.world.node_env(member.name).clock.wall_offset_ms = offset_ms

    async def _operate(self, random: Random) -> None:
        """Let an operator do one action, at any moment."""
        while await self.calm(random, 6.0):
            self.begin(f"operator {await self._operator.work(random)}")
            self.end()

    async def _change_voters(self, random: Random) -> None:
        """Let an operator make voters observers, and observers voters."""
        while await self.calm(random, 6.0):
            if not self._operator.may_change_voters:
                return
            self.begin(f"voters {await self._operator.change_voters(random)}")
            self.end()

    # --- disks

    async def _full(self, random: Random) -> None:
        """Let a disk become full, and later have space again. Its contents are kept."""
        while await self.calm(random, 10.0):
            member = random.choice(self.cluster.members)
            if not member.is_up() or member.disk_is_bad or not self.may_die(member):
                continue
            self.begin(f"full {member.name}")
            self.note_death(member)  # it may stop
            disk = self.world.machine(member.name).disk
            member.disk_is_bad = True
            disk.capacity_bytes = disk.used_bytes + random.randint(0, FULL_BYTES_MAX)
            await self.last(random)
            disk.capacity_bytes = None
            if member.log.directory_is_offline:
                await member.kill("all")
            if not member.is_up():
                member.launch()
            member.disk_is_bad = False
            self.end()

    async def _wipes(self, random: Random) -> None:
        """Replace the disks of a broker, or of a voter that can be replaced (KIP-853), by empty disks."""
        while await self.calm(random, 10.0):
            member = random.choice(self.cluster.members)
            paths = self.paths_to_lose(member)
            if not paths or not await self.may_damage(member) or not (paths := self.lose(member)):
                continue
            self.begin(f"wipe {len(paths)} of {member.name}")
            await member.kill("all")
            self.cluster.replace_disks(member, paths)
            # If this disk belongs to a controller, a broker may have lost its page cache before. Then one more broker
            # must stay up.
            is_alone = member is self.lost_power or self.lost_power is None
            if random.random() < FOLLOWS_PROBABILITY and is_alone:
                await self._other_brokers_die(member, random)
            await self.last(random)
            await self.bring_back(member, paths)
            self.end()

    async def _other_brokers_die(self, member: Member, random: Random) -> None:
        """Kill the processes of all brokers except `member`, whose disk was replaced. Restart the killed brokers one
        after another.
        """
        self.may_wait_for_operator = True
        await self.world.sleep(random.uniform(0.0, random.choice((0.01, 1.0, LONG_SECONDS_MAX))))
        victims = [each for each in self.cluster.brokers if each is not member and each.is_up()]
        self.begin(f"others than {member.name}")
        for victim in victims:
            self.world.crash(victim.name, "all")
        random.shuffle(victims)
        for victim in victims:
            await self.world.sleep(random.uniform(0.0, random.choice((0.01, 1.0, 5.0))))
            if not victim.is_up():
                victim.launch()
        self.end()
