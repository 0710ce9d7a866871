"""The options of a run, all its choices except the seed: drawn from the seed, kept as JSON, made simpler for a
failing run.

The options follow swarm testing (Groce et al., 2012): most runs lack most kinds of trouble. A run with all kinds
would hide bugs that show only when some kinds are absent. `RunOptions.draw` draws the options from the seed.
`run(seed, options)` repeats a run, and a failing run is minimised by trying each of `RunOptions.simpler`.

Profiles:

* `default`: the fault model that a cluster must survive (`sim.storm.storm` and `sim.machine.disk` define it).
* `lite`: the same fault model, but a short storm of at most two kinds.
* `perf`: more clients, separate controllers and always the same kinds of trouble, to measure how fast the simulator
  is.
* `calm`: no trouble at all, so that a failure has another cause than a fault.
* `broken`: a fault outside the fault model is made once, on purpose (`sim.storm.breakage`). Any harm must be
  reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

import attrs

from sim.knobs.knob_table import draw_knobs
from sim.machine.cluster_members import LATER_AGED_SETTINGS, OFFSETS_STAY_MINUTES, Shape
from sim.machine.guards import CLIENTS_LOG_IN, draw_guards
from sim.machine.weather import Weather
from sim.storm.breakage import BREAKAGES
from sim.storm.storm_plan import StormPlan

PROFILES = ("default", "lite", "perf", "calm", "broken")
MORE_WORKLOADS = {"churn": 0.4, "pipeline": 0.4}
"""Workloads, each with the share of runs that have it. One separate random generator draws all of them."""
CLIENT_WORKLOADS = {
    "varied": 0.4,
    "crowd": 0.35,
    "offsets": 0.5,
    "keyed": 0.3,
    "copy": 0.35,
    "herd": 0.3,
}
"""More workloads, each with the share of runs that have it. Each is drawn by its own random generator."""
JOINT_WORKLOADS = {"wide": 0.12, "tally": 0.12, "prepare": 0.1, "names": 0.08}
"""Workloads of `sim.load.joint`, each with the share of runs that have it. Each is drawn by its own random generator."""
GROUP_SETTINGS = {
    "group.min.session.timeout.ms": ("1000", "1000", "6000"),
    "group.initial.rebalance.delay.ms": ("0", "500", "3000"),
}
"""The values from which runs with the workload `crowd` draw brokers' settings. With Kafka's defaults, which are
seconds, a storm would have too few rebalances.
"""
HERD_SETTINGS = {
    "group.consumer.min.session.timeout.ms": ("1000",),
    "group.consumer.session.timeout.ms": ("1000", "6000"),
    "group.consumer.min.heartbeat.interval.ms": ("200",),
    "group.consumer.heartbeat.interval.ms": ("200", "900"),
    "group.consumer.assignment.interval.ms": ("0", "200", "1000"),
    "group.consumer.migration.policy": ("bidirectional", "bidirectional", "upgrade"),
}
"""The values from which runs with the workload `herd` draw brokers' settings."""
CLEANER_SETTINGS = {
    "log.cleaner.backoff.ms": ("100", "1000"),
    "log.cleaner.threads": ("1", "2"),
    "log.cleaner.dedupe.buffer.size": ("2097152",),
    "log.cleaner.io.buffer.load.factor": ("0.9", "0.9", "0.0002"),
    "log.cleaner.io.buffer.size": ("524288", "1000"),
}
"""The values from which runs with the workload `keyed` draw brokers' settings. With the lowest load factor the
cleaner's map has room for only a few keys, so that it becomes full.
"""
TRANSACTION_SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": ("200", "1000", "10000"),
    "transaction.state.log.segment.bytes": ("1048576", "104857600"),
    "group.min.session.timeout.ms": ("1000",),
    "group.initial.rebalance.delay.ms": ("0", "0", "500"),
}
"""The values from which runs with the workload `copy` draw brokers' settings."""
TWO_PHASE_SETTINGS = {**TRANSACTION_SETTINGS, "transaction.two.phase.commit.enable": ("true",)}
WORKLOAD_SETTINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "crowd": GROUP_SETTINGS,
    "herd": HERD_SETTINGS,
    "keyed": CLEANER_SETTINGS,
    "copy": TRANSACTION_SETTINGS,
    "wide": TRANSACTION_SETTINGS,
    "tally": CLEANER_SETTINGS,
    "prepare": TWO_PHASE_SETTINGS,
}
WORKLOADS = (
    *("produce", "consume", "follow", "group", "trim"),
    *(*MORE_WORKLOADS, *CLIENT_WORKLOADS, *JOINT_WORKLOADS),
)
"""The names of all workloads. `produce`: half of the clients produce lists of records, the other half single records.
`consume`: a simple reader. `follow`: a consumer near a follower. `group`: a consumer group. `trim`: records that an
operator deletes. `churn`: topics that are created and deleted (`sim.load.churning`). `pipeline`: plain connections
(`sim.load.pipelining`). `varied`: producers with all kinds of settings (`sim.load.producers`). `crowd`: groups with
changing members that use the classic protocol. `herd`: the same with members of both protocols
(`sim.load.consumers`). `offsets`: ListOffsets requests (`sim.load.asking`). `keyed`: a compacted topic
(`sim.load.keyed`). `copy`: a topic that is copied in transactions (`sim.load.copying`). The others are joint
transactions (`sim.load.joint`).
"""
NODES = 3
"""The number of brokers if the shape is not drawn."""
DUTIES = {
    "moves": 0.35,
    "topics": 0.3,
    "settings": 0.35,
    "elections": 0.3,
    "directories": 0.3,
    "retirements": 0.15,
    "ask": 0.3,
    "access": 0.25,
    "quotas": 0.2,
    "lives": 0.2,
    "tokens": 0.15,
}
"""The operators, and the client `ask` that calls any API (`sim.load.operators`), with the share of runs that have
each of them. Each is drawn by its own random generator.
"""
GUARDED_DUTIES = ("access", "tokens")
"""Duties whose clients must log in."""
OPERATED_KINDS = {"rolling": 0.2, "unregister": 0.15, "descriptors": 0.15, "jumps": 0.5}
"""More kinds of trouble with the share of runs that have them. They are restarts and removals by operators
(`sim.storm.upkeep`), a lack of file descriptors, and clocks that jump by days. Each is drawn by its own random
generator.
"""
CLOCK_KINDS = ("clocks", "drift")
"""Kinds of trouble after which clocks stay wrong. A run with one of them has no jumps of clocks, since a jump must
return to the right time.
"""
TRANSACTION_KINDS = {"coordinators": 0.4, "markers": 0.3, "handovers": 0.3}
"""Kinds of trouble that disturb transactions (`sim.storm.transaction_troubles`), each with the share of the runs with
the workload `copy` that have it.
"""
FILE_KINDS = {"spoil": 0.2}
"""Damage to small files (`sim.storm.disk_damage`), with the share of runs that have it."""
POWER_KINDS = {"blackouts": 0.2, "eligible": 0.15}
"""Power losses of several machines, and elections of eligible leaders (`sim.storm.power_cuts`), with the share of runs
that have them.
"""
SYNCED_PROBABILITY = 0.12
"""The share of runs whose brokers sync all records before they acknowledge them."""
UNSYNCING = {"workloads": ("pipeline",), "duties": ("settings",)}
"""Workloads and duties that set `flush.messages` or its key for brokers. They are left out of runs whose brokers must
sync before they acknowledge.
"""
LITE_SECONDS = 8.0
LITE_KINDS_MAX = 2
PERF_SECONDS = 30.0
PERF_CLIENTS = 4
PERF_KINDS = ("deaths", "links", "pauses", "slow")
BROKEN_SECONDS = 12.0
AGED_PROBABILITY = 0.025
"""The share of runs that last for hours of virtual time."""
AGED_WORKLOADS = ("consume", "follow", "trim", "churn", "offsets")
AGED_SHARE = 0.4
LATER_AGED_WORKLOADS = ("group", "varied", "keyed", "copy", *JOINT_WORKLOADS)
"""More workloads of runs that last for hours, drawn by another random generator."""
LATER_AGED_SHARE = 0.3
LATER_AGED_MAX = 2
LATER_AGED_TIME = 0.35
"""The duration of a run of hours is multiplied by this if the run has any of `LATER_AGED_WORKLOADS`. So the run costs
about as much as other runs of hours.
"""
KEEPING_WORKLOADS = ("group", "copy")
"""Workloads whose groups need their committed offsets until the end, even if commits are rare."""
NEW_WORKLOADS = ("prepare", "herd")
"""Workloads that nodes of the previous release cannot serve."""
OLDER_PROBABILITY = 0.3
"""The share of runs that start with nodes of the previous release."""
_CALM = Weather()

__all__ = ["PROFILES", "WORKLOADS", "RunOptions"]


@attrs.frozen
class RunOptions:
    """All options of a run, without its seed. `delivery_seconds` is how many seconds producers retry. `knobs` has, by
    path, the values of the product's constants that the run changes.
    """

    profile: str = "default"
    shape: Shape = attrs.Factory(Shape)
    storm: StormPlan = attrs.Factory(lambda: StormPlan(10.0, ()))
    weather: Weather = attrs.Factory(Weather)
    workloads: tuple[str, ...] = ("produce", "consume", "follow")
    clients: int = 2
    delivery_seconds: float = 60.0
    duties: tuple[str, ...] = ()
    knobs: Mapping[str, int] = attrs.Factory(dict)

    @classmethod
    def draw(
        cls,
        seed: int,
        profile: str = "default",
        *,
        nodes: int | None = None,
        controllers: int | None = None,
        seconds: float | None = None,
    ) -> RunOptions:
        """Draw the options for a seed. Options that are given as arguments are not drawn. Raises `ValueError` for an
        unknown profile.
        """
        if profile not in PROFILES:
            raise ValueError(f"unknown profile {profile!r}; the profiles are {', '.join(PROFILES)}")
        weather = _drawn_weather(seed, profile)
        random = Random(f"{seed}/cluster")
        shape = Shape.draw(random, nodes or NODES, controllers)
        storm = StormPlan.draw(random, seconds).with_more(Random(f"{seed}/more trouble"))
        workloads = ["produce", "consume", "follow"]
        if random.random() >= 0.5:
            workloads.append("trim")
        delivery_seconds = random.choice((60.0, 60.0, 8.0, 2.0))
        if random.random() < 0.5:
            workloads.append("group")
        more = Random(f"{seed}/more workloads")
        workloads += [name for name, share in MORE_WORKLOADS.items() if more.random() < share]
        shape = _with_client_workloads(seed, shape, workloads)
        shape = shape.with_upkeep(Random(f"{seed}/upkeep"))
        shape = shape.with_small_intervals(Random(f"{seed}/small intervals"))
        if nodes is None and controllers is None and profile in ("default", "lite", "calm"):
            shape = shape.widened(Random(f"{seed}/shapes"))
            # The storm is shorter if the cluster has more machines. So a run costs about as much as with few machines.
            if seconds is None:
                storm = attrs.evolve(storm, seconds=storm.seconds * NODES / shape.nodes)
        releases = Random(f"{seed}/releases")
        if profile in ("default", "lite") and releases.random() < OLDER_PROBABILITY:
            shape = attrs.evolve(shape, older=releases.randint(1, shape.nodes + shape.controllers))
            storm = attrs.evolve(storm, kinds=(*storm.kinds, "upgrade"))
            workloads = [name for name in workloads if name not in NEW_WORKLOADS]
        storm = attrs.evolve(storm, kinds=(*storm.kinds, *_drawn_kinds(seed, storm, workloads)))
        duties = _drawn_alone(seed, DUTIES)
        if {*GUARDED_DUTIES} & {*duties} and profile in ("default", "lite", "calm"):
            guarded, session_ms = draw_guards(Random(f"{seed}/guards"))
            shape = attrs.evolve(shape, guarded=guarded, session_ms=session_ms)
        knobs = (
            draw_knobs(Random(f"{seed}/knobs"), may_be_many=False) if profile in ("default", "lite") else {}
        )
        drawn = cls(profile, shape, storm, weather, tuple(workloads), 2, delivery_seconds, duties, knobs)
        drawn = drawn._synced(Random(f"{seed}/synced"))
        if profile == "default" and seconds is None and nodes is None and controllers is None:
            ages = Random(f"{seed}/hours of age")
            if ages.random() < AGED_PROBABILITY:
                return drawn._aged(ages, Random(f"{seed}/hours of more"))
        return drawn._fit_to_profile(random, controllers, seconds)

    def _synced(self, random: Random) -> RunOptions:
        """Return a copy in which, for some seeds, brokers sync each batch before they acknowledge it."""
        if random.random() >= SYNCED_PROBABILITY:
            return self
        return attrs.evolve(
            self,
            shape=self.shape.synced(),
            workloads=tuple(name for name in self.workloads if name not in UNSYNCING["workloads"]),
            duties=tuple(name for name in self.duties if name not in UNSYNCING["duties"]),
        )

    def _aged(self, random: Random, more: Random) -> RunOptions:
        """Return a copy for a run of hours with few requests."""
        storm = self.storm.aged(random)
        kinds = tuple(kind for kind in storm.kinds if kind not in ("upgrade", *TRANSACTION_KINDS))
        shape = self.shape.aged(random)
        workloads = ("produce", *(name for name in AGED_WORKLOADS if random.random() < AGED_SHARE))
        later = [name for name in LATER_AGED_WORKLOADS if more.random() < LATER_AGED_SHARE]
        later = more.sample(later, min(len(later), LATER_AGED_MAX))
        if later:
            storm = attrs.evolve(storm, seconds=storm.seconds * LATER_AGED_TIME)
        workloads += tuple(later)
        settings = {key: more.choice(values) for key, values in LATER_AGED_SETTINGS.items()}
        if {*KEEPING_WORKLOADS} & {*workloads}:
            settings["offsets.retention.minutes"] = OFFSETS_STAY_MINUTES
        return attrs.evolve(
            self,
            shape=attrs.evolve(shape, settings={**shape.settings, **settings}),
            storm=attrs.evolve(storm, kinds=kinds),
            workloads=workloads,
            delivery_seconds=60.0,
        )

    def _fit_to_profile(self, random: Random, controllers: int | None, seconds: float | None) -> RunOptions:
        if self.profile == "lite":
            kinds = self.storm.kinds
            fewer = tuple(random.sample(kinds, min(len(kinds), LITE_KINDS_MAX)))
            storm = attrs.evolve(
                self.storm, kinds=fewer, seconds=LITE_SECONDS if seconds is None else seconds
            )
            return attrs.evolve(self, storm=storm)
        if self.profile == "perf":
            storm = StormPlan(PERF_SECONDS if seconds is None else seconds, PERF_KINDS)
            shape = attrs.evolve(self.shape, controllers=3 if controllers is None else controllers)
            return attrs.evolve(
                self,
                storm=storm,
                shape=shape.without_upkeep(),
                workloads=tuple(
                    name
                    for name in self.workloads
                    if name not in (*MORE_WORKLOADS, *CLIENT_WORKLOADS, *JOINT_WORKLOADS)
                ),
                clients=PERF_CLIENTS,
                duties=(),
            )
        if self.profile == "broken":
            storm = StormPlan(
                BROKEN_SECONDS if seconds is None else seconds, (random.choice(tuple(BREAKAGES)),)
            )
            return attrs.evolve(self, storm=storm, workloads=("produce", "consume"), duties=())
        if self.profile == "calm":
            return attrs.evolve(self, storm=attrs.evolve(self.storm, kinds=()), weather=_CALM)
        return self

    def simpler(self) -> list[tuple[str, RunOptions]]:
        """List (name, copy). In each copy one option is simpler than in this object. The largest simplifications come
        first.
        """
        found: list[tuple[str, RunOptions]] = []
        if self.weather != _CALM:
            found.append(("weather calm", attrs.evolve(self, weather=_CALM)))
        found += self._with_fewer_knobs()
        for index, kind in enumerate(self.storm.kinds):
            kinds = self.storm.kinds[:index] + self.storm.kinds[index + 1 :]
            found.append((f"storm -{kind}", attrs.evolve(self, storm=attrs.evolve(self.storm, kinds=kinds))))
        for name in self.workloads:
            if name != "produce":
                left = tuple(each for each in self.workloads if each != name)
                found.append((f"workload -{name}", attrs.evolve(self, workloads=left)))
        for name in self.duties:
            fewer = tuple(each for each in self.duties if each != name)
            found.append((f"duty -{name}", attrs.evolve(self, duties=fewer)))
        if self.storm.power:
            storm = attrs.evolve(self.storm, power=False)
            found.append(("storm -power", attrs.evolve(self, storm=storm)))
        if self.storm.seconds > 2.0:
            storm = attrs.evolve(self.storm, seconds=self.storm.seconds / 2)
            found.append(("storm shorter", attrs.evolve(self, storm=storm)))
        if self.clients > 1:
            found.append(("fewer clients", attrs.evolve(self, clients=self.clients // 2)))
        plainer = (
            ("older", attrs.evolve(self.shape, older=0)),
            ("upkeep", self.shape.without_upkeep()),
            ("log_dirs", attrs.evolve(self.shape, log_dirs=1, broker_log_dirs=())),
            ("brokers", self.shape.narrowed()),
            ("synced", self.shape.unsynced()),
            ("racks", attrs.evolve(self.shape, racks=0)),
            ("voters", attrs.evolve(self.shape, voters=0)),
            ("dynamic_voters", attrs.evolve(self.shape, dynamic_voters=False)),
            ("controllers", attrs.evolve(self.shape, controllers=0)),
            ("guarded", attrs.evolve(self.shape, guarded=self._guarded_least, session_ms=0)),
        )
        found += [
            (f"shape {name}", attrs.evolve(self, shape=shape))
            for name, shape in plainer
            if shape != self.shape
        ]
        for field in attrs.fields(Weather):
            plain = getattr(_CALM, field.name)
            if getattr(self.weather, field.name) != plain:
                weather = attrs.evolve(self.weather, **{field.name: plain})
                found.append((f"weather {field.name}", attrs.evolve(self, weather=weather)))
        return found

    def _with_fewer_knobs(self) -> list[tuple[str, RunOptions]]:
        """List (name, copy): one copy without knobs, copies with half of the knobs, and copies in which one knob is
        missing.
        """
        paths = tuple(self.knobs)
        if not paths:
            return []
        half = len(paths) // 2
        left_out = {"all": paths}
        if half > 1:
            left_out |= {
                f"{len(paths)} to {half}": paths[half:],
                f"{len(paths)} to the later {half}": paths[:half],
            }
        left_out |= {path: (path,) for path in paths if len(paths) > 1}
        return [
            (
                f"knobs -{name}",
                attrs.evolve(self, knobs={path: self.knobs[path] for path in paths if path not in out}),
            )
            for name, out in left_out.items()
        ]

    @property
    def _guarded_least(self) -> int:
        return min(self.shape.guarded, CLIENTS_LOG_IN) if {*GUARDED_DUTIES} & {*self.duties} else 0

    def to_json(self) -> str:
        """Encode the options as one line, with sorted keys, so that equal options give equal text."""
        return json.dumps(attrs.asdict(self, value_serializer=_plain), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunOptions:
        """Decode a text of `to_json`. A text from before duties or knobs existed may lack them: the run has none then.

        Raises `ValueError` for any other text.
        """
        try:
            given: Any = json.loads(text)
            return cls(
                **(
                    given
                    | {
                        "shape": Shape(**_tuples(given["shape"])),
                        "storm": StormPlan(**_tuples(given["storm"])),
                        "weather": Weather(**_tuples(given["weather"])),
                        "workloads": tuple(given["workloads"]),
                        "duties": tuple(given.get("duties", ())),
                        "knobs": dict(given.get("knobs", {})),
                    }
                )
            )
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"not the options of a run: {error}") from None


def _drawn_weather(seed: int, profile: str) -> Weather:
    """Draw the weather for a seed."""
    weather = Weather.draw(Random(f"{seed}/weather"))
    if profile in ("default", "lite"):
        weather = weather.with_toil(Random(f"{seed}/toil"))
        weather = weather.with_pauses(Random(f"{seed}/pauses"))
        weather = weather.with_repeats(Random(f"{seed}/repeats?"))
    return weather


def _with_client_workloads(seed: int, shape: Shape, workloads: list[str]) -> Shape:
    """Append the client workloads that the seed draws to `workloads`. Return the shape with the settings that these
    need.
    """
    for name, share in (CLIENT_WORKLOADS | JOINT_WORKLOADS).items():
        clients = Random(f"{seed}/{name}?")
        if clients.random() < share:
            workloads.append(name)
        if name in WORKLOAD_SETTINGS and name in workloads:
            drawn = {key: clients.choice(values) for key, values in WORKLOAD_SETTINGS[name].items()}
            shape = attrs.evolve(shape, settings={**shape.settings, **drawn})
    return shape


def _drawn_kinds(seed: int, storm: StormPlan, workloads: list[str]) -> tuple[str, ...]:
    """Draw the kinds of trouble that have a separate share."""
    kinds = OPERATED_KINDS | FILE_KINDS
    if "copy" in workloads:
        kinds |= TRANSACTION_KINDS
    if storm.power:
        kinds |= POWER_KINDS
    if {*CLOCK_KINDS} & {*storm.kinds}:
        kinds.pop("jumps")
    return _drawn_alone(seed, kinds)


def _drawn_alone(seed: int, shares: Mapping[str, float]) -> tuple[str, ...]:
    """Draw a subset of the names. Each name has a probability, its share, and a separate random generator."""
    return tuple(name for name, share in shares.items() if Random(f"{seed}/{name}?").random() < share)


def _plain(_: object, __: object, value: object) -> object:
    return dict(sorted(value.items())) if isinstance(value, Mapping) else value


def _tuples(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
