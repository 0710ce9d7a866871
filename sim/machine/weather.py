"""The weather of a run, drawn from the seed: how slow and unreliable its network, disks and CPUs are."""

from __future__ import annotations

from random import Random

import attrs

TOIL_PROBABILITY = 0.15
"""The share of runs in which CPU work takes virtual time."""
PAUSES_PROBABILITY = 0.2
"""The share of runs in which workers' functions may be interrupted at their pauses. During an interruption the event
loop runs on.
"""
TORN_SHARE = 0.25
"""The share of torn connections in a run. If all connections were torn, a run would need twice the steps without
finding more.
"""
REPEATS_PROBABILITY = 0.35
"""The share of runs in which requests between nodes arrive twice."""
LIGHT_SPIKE_PROBABILITY = 0.001
SEGMENTS_PER_WINDOW = 8
"""How many segments may be delayed while one full socket buffer is transferred: four that open the window, and about
as many with data.
"""
CARRIED_MIN = 200_000
"""How many bytes per second a connection must carry, so that a follower keeps up with the workload of a run."""


@attrs.frozen
class Weather:
    """Probabilities and ranges (seconds, bytes) for all simulated ports. The defaults have no faults."""

    latency_seconds: tuple[float, float] = (0.0001, 0.0001)
    spike_probability: float = 0.0
    """The probability that a segment takes up to `spike_seconds` longer."""
    spike_seconds: float = 0.5
    torn_share: float = 1.0
    """The share of connections to which the next four probabilities apply."""
    split_probability: float = 0.0
    """The probability that sent bytes arrive in several segments, cut at random places."""
    short_send_probability: float = 0.0
    """The probability that `send` accepts only a part."""
    short_recv_probability: float = 0.0
    """The probability that `recv_into` returns only a part."""
    spurious_wake_probability: float = 0.0
    """The probability that `readable` returns although there is nothing to read."""
    loss_probability: float = 0.0
    """The probability that a segment is lost, and arrives only when it is sent again."""
    reset_probability: float = 0.0
    """The probability that a segment's connection is reset on the way."""
    late_probability: float = 0.0
    """The probability that bytes in flight on a closed connection arrive up to `late_seconds` later."""
    late_seconds: float = 5.0
    repeat_probability: float = 0.0
    """The probability that a request between nodes arrives twice (`sim.machine.links.Repeats`)."""
    socket_buffer_bytes: int = 1 << 18
    worker_seconds: tuple[float, float] = (0.0005, 0.0005)
    worker_spike_probability: float = 0.0
    """The probability that a worker's work takes up to `worker_spike_seconds` longer, as with a hung disk."""
    worker_spike_seconds: float = 2.0
    pause_probability: float = 0.0
    """The probability that a worker's function is interrupted at some of its pauses."""
    pause_seconds: float = 0.05
    """The longest interruption at one pause, in seconds."""
    wake_seconds: float = 0.0
    """The CPU time of each wake of a process, in seconds. CPU work takes virtual time only if this is above 0."""
    long_turn_probability: float = 0.0
    """The probability that a process which has worked since the last charge had a turn of its loop of up to
    `long_turn_seconds`.
    """
    long_turn_seconds: float = 1.0
    cold_probability: float = 0.0
    """The probability that `File.is_warm` returns False."""
    buggify_active_probability: float = 0.0
    """The share of buggify points that are active in this run."""
    buggify_fire_probability: float = 0.25

    @classmethod
    def draw(cls, random: Random) -> Weather:
        """Draw a weather. Independently of the others, each kind of fault is off, light or heavy (swarm testing)."""

        def chance(light: float, heavy: float) -> float:
            return random.choice((0.0, light, heavy))

        return cls(
            latency_seconds=random.choice(((0.0001, 0.0001), (0.00005, 0.001), (0.0001, 0.02))),
            spike_probability=chance(LIGHT_SPIKE_PROBABILITY, 0.02),
            spike_seconds=random.choice((0.1, 1.0)),
            split_probability=chance(0.05, 0.5),
            short_send_probability=chance(0.05, 0.5),
            short_recv_probability=chance(0.05, 0.5),
            spurious_wake_probability=chance(0.01, 0.2),
            socket_buffer_bytes=random.choice((4 << 10, 64 << 10, 1 << 20)),
            worker_seconds=random.choice(((0.0001, 0.001), (0.001, 0.05))),
            worker_spike_probability=chance(0.001, 0.02),
            cold_probability=chance(0.01, 0.5),
            buggify_active_probability=chance(0.25, 0.5),
            loss_probability=chance(0.0005, 0.01),
            reset_probability=chance(0.00005, 0.001),
            late_probability=chance(0.1, 0.5),
            late_seconds=random.choice((0.5, 5.0, 40.0)),
            torn_share=TORN_SHARE,
        )

    def with_toil(self, random: Random) -> Weather:
        """Return a copy in which, for some seeds, CPU work takes virtual time."""
        if random.random() >= TOIL_PROBABILITY:
            return self
        return attrs.evolve(
            self,
            wake_seconds=random.choice((0.0001, 0.0004, 0.001)),
            long_turn_probability=random.choice((0.0, 0.0002, 0.002)),
            long_turn_seconds=random.choice((0.2, 1.0)),
        )

    def with_repeats(self, random: Random) -> Weather:
        """Return a copy in which, for some seeds, requests between nodes arrive twice."""
        if random.random() >= REPEATS_PROBABILITY:
            return self
        return attrs.evolve(self, repeat_probability=random.choice((0.02, 0.1, 0.3)))

    def with_pauses(self, random: Random) -> Weather:
        """Return a copy in which, for some seeds, workers' functions are interrupted at pauses."""
        if random.random() >= PAUSES_PROBABILITY:
            return self
        probability, seconds = random.choice((0.1, 0.5)), random.choice((0.001, 0.05, 0.5))
        if probability > 0.1:
            # Otherwise half of all disk work would take longer than the quorum waits for a Fetch, and no leader stayed.
            seconds = min(seconds, 0.05)
        return attrs.evolve(self, pause_probability=probability, pause_seconds=seconds)

    def untorn(self) -> Weather:
        """Return a copy for connections that are not torn."""
        return attrs.evolve(
            self,
            split_probability=0.0,
            short_send_probability=0.0,
            short_recv_probability=0.0,
            spurious_wake_probability=0.0,
        )

    def settled(self) -> Weather:
        """Return a copy for the time after a storm, in which no connection is too slow for the workload.

        Bytes arrive in order, so each spike delays a whole buffer. With long spikes and a small buffer, a connection
        may carry fewer bytes than clients write. Then followers can never catch up.
        """
        held_up_seconds = SEGMENTS_PER_WINDOW * self.spike_probability * self.spike_seconds / 2
        if self.socket_buffer_bytes >= held_up_seconds * CARRIED_MIN:
            return self
        return attrs.evolve(self, spike_probability=LIGHT_SPIKE_PROBABILITY)

    def latency(self, random: Random) -> float:
        """Draw how many seconds one segment takes to arrive."""
        seconds = random.uniform(*self.latency_seconds)
        if self.spike_probability and random.random() < self.spike_probability:
            seconds += random.uniform(0.0, self.spike_seconds)
        return seconds

    def work(self, random: Random, factor: float) -> float:
        """Draw how many seconds one call to a worker takes on a machine that is slower by `factor`.

        A spike is the device's own delay, so it is no longer on a slow machine. Otherwise one call could outlast the
        storm by a minute and more.
        """
        seconds = random.uniform(*self.worker_seconds) * factor
        if self.worker_spike_probability and random.random() < self.worker_spike_probability:
            seconds += random.uniform(0.0, self.worker_spike_seconds)
        return seconds
