"""Schedules for the two voices that fence a silent broker: one controller and several brokers, drawn from a seed. PURE.

What runs is the product's memory of sessions, of second voices, and of each broker's exchanges with others
(`BrokerSessions`, `SecondVoices`, `PeerSilence`). Around them are models of heartbeats, of fetches and of a TCP
connection that sends lost packets again.

For most of a schedule, every process lives. Now and then a process is paused for up to 1.5 s. Its work is late because
the machine is loaded. Links lose packets, and single links are down for seconds. **Nobody may be fenced in that time.** Then the host of one broker dies, and
this broker must be fenced soon. A schedule takes six minutes of virtual time, so 1,000 schedules take 100 hours.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random

import attrs

from odradek.data_plane.replication.peer_silence import PeerSilence
from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.image.metadata_image import BrokerImage, MetadataImage
from odradek.metadata_quorum.second_voices import SecondVoices
from odradek.wire.messages.broker_heartbeat import SilentBroker
from sim.history import SafetyViolation
from sim.machine.world import Liveness

__all__ = ["run"]

SUSPICION_MS, SESSION_MS, FETCH_WAIT_MS = 3_000, 9_000, 500
"""The defaults of `odradek.broker.suspicion.ms`, `broker.session.timeout.ms` and `replica.fetch.wait.max.ms`."""
HEARTBEAT_SECONDS = SUSPICION_MS / 4_000
ATTEMPT_SECONDS, RETRY_SECONDS = 1.0, 0.2
"""How long a broker waits for the answer to a heartbeat, and then until the next attempt (`BrokerLifecycle`)."""
COMPARE_SECONDS = 0.1
PEACE_SECONDS = 360.0
PAUSE_SECONDS_MAX = 1.5
REST_SECONDS = 3.0
"""The least time between two pauses of one process. Shorter ones would add up to a longer pause."""
OUTAGE_SECONDS = (1.0, 5.0)
"""How long nobody hears anybody, at least and at most."""
CUT_SECONDS = (2.0, 20.0)
"""How long a link between two processes is down, at least and at most."""
RESEND_SECONDS_MIN = 0.2
"""Linux sends a lost packet again after this time at the earliest, and doubles the time with each loss."""
NOTICED_SECONDS_MAX = 8.0
"""The host of a broker dies while others are paused and links are lossy. Undisturbed, 3.5 s are enough."""
CONTROLLER = 0


@attrs.define
class Process:
    """A process that is paused at times."""

    node_id: int
    paused_until: float = -10.0
    lives: bool = True


class Schedule:
    """One schedule. All times are virtual seconds from its begin."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(f"{seed}/silence")
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._entries = 0
        self.brokers = range(1, random.randint(3, 5) + 1)
        self._processes = {each: Process(each) for each in (CONTROLLER, *self.brokers)}
        self._late_seconds = random.choice((0.001, 0.01, 0.05, 0.1))
        """How late the work of a process begins on average."""
        self._loss = random.choice((0.0, 0.001, 0.01, 0.05))
        """The share of packets that a link loses."""
        self._pause_every_seconds = random.choice((10.0, 30.0, 100.0))
        self._image = attrs.evolve(
            MetadataImage(),
            brokers={
                each: BrokerImage(each, each, bytes(16), (), (), None, False, False, ())
                for each in self.brokers
            },
        )
        self._sessions = BrokerSessions(SESSION_MS)
        self._voices = SecondVoices(SUSPICION_MS)
        self._silence = {
            each: PeerSilence(SUSPICION_MS, FETCH_WAIT_MS, lambda broker_id: True) for each in self.brokers
        }
        self.fenced: dict[int, float] = {}
        self._cut: tuple[frozenset[int], float] = frozenset(), 0.0
        """The link that is down, and until when."""
        self._no_network_until = 0.0
        self.outages = self.cuts = self.pauses = self.losses = self.heartbeats = self.spoken_against = 0

    # -- time, pauses, links

    def at(self, time: float, step: Callable[[], None]) -> None:
        """Let `step` happen at this time."""
        self._entries += 1
        heapq.heappush(self._queue, (time, self._entries, step))

    def does(self, node_id: int, time: float, step: Callable[[], None]) -> None:
        """Let a process do something: a little later than it should, or after its pause, or never if it has died."""
        self.at(
            time + self._random.expovariate(1 / self._late_seconds),
            lambda: self._unless_paused(node_id, step),
        )

    def _unless_paused(self, node_id: int, step: Callable[[], None]) -> None:
        process = self._processes[node_id]
        if process.lives and process.paused_until > self.now:
            self.at(process.paused_until, lambda: self._unless_paused(node_id, step))
        elif process.lives:
            step()

    def sends(self, sender: int, receiver: int, step: Callable[[], None]) -> None:
        """Let a message arrive at a process, which then does `step`."""
        delay, resend = 0.0005, RESEND_SECONDS_MIN
        link, until = self._cut
        while self._random.random() < self._loss or (
            self.now + delay < (until if link == {sender, receiver} else self._no_network_until)
        ):
            self.losses += 1
            delay += resend
            resend *= 2
        self.does(receiver, self.now + delay, step)

    def pause_someone(self) -> None:
        """Pause a process, and plan the next pause."""
        process = self._processes[self._random.choice((CONTROLLER, *self.brokers))]
        if process.paused_until + REST_SECONDS < self.now:
            process.paused_until = self.now + self._random.uniform(0.05, PAUSE_SECONDS_MAX)
            self.pauses += 1
        self.at(self.now + self._random.expovariate(1 / self._pause_every_seconds), self.pause_someone)

    def cut_some_link(self) -> None:
        """Cut the link between two processes for a while, and plan the next cut."""
        ends = self._random.sample((CONTROLLER, *self.brokers), 2)
        until = self.now + self._random.uniform(*CUT_SECONDS)
        self._cut = frozenset(ends), until
        self.cuts += 1
        # A connection recovers only when it sends again, which takes as long as the cut has lasted. Two links of one
        # broker that are down at once are a silence of that broker.
        pause = 2 * CUT_SECONDS[1] + self._random.expovariate(1 / self._pause_every_seconds)
        if until + pause < PEACE_SECONDS - 2 * CUT_SECONDS[1]:
            self.at(until + pause, self.cut_some_link)

    def take_the_network_down(self) -> None:
        """Let no packet arrive for a while, as when a switch starts again, and plan the next outage."""
        seconds = self._random.uniform(*OUTAGE_SECONDS)
        self._no_network_until = self.now + seconds
        self.outages += 1
        if self.now < PEACE_SECONDS / 2:
            self.at(self.now + 2 * CUT_SECONDS[1] + seconds, self.take_the_network_down)

    # -- heartbeats

    def beat(self, broker_id: int) -> None:
        """Let a broker send a heartbeat, and wait for the answer."""
        silence, self.heartbeats = self._silence[broker_id], self.heartbeats + 1
        silence.look(self.now)
        said = [
            SilentBroker(each, each, int(seconds * 1000))
            for each, seconds in silence.silent(self.now).items()
        ]
        state = {"answered": False, "given up": False}

        def answered() -> None:
            if not state["given up"]:
                state["answered"] = True
                silence.reached(self.now)
                pause = min(HEARTBEAT_SECONDS, silence.next_at(self.now) - self.now)
                self.does(broker_id, self.now + pause, lambda: self.beat(broker_id))

        def given_up() -> None:
            if not state["answered"]:
                state["given up"] = True
                self.does(broker_id, self.now + RETRY_SECONDS, lambda: self.beat(broker_id))

        self.sends(broker_id, CONTROLLER, lambda: self._takes(broker_id, said, answered))
        self.does(broker_id, self.now + ATTEMPT_SECONDS, given_up)

    def _takes(self, broker_id: int, said: list[SilentBroker], answered: Callable[[], None]) -> None:
        self._sessions.touch(broker_id, self._now_ms(), 0)
        if self._voices.note(broker_id, broker_id, said, self._now_ms()):
            self.spoken_against += 1
            self.compare(SUSPICION_MS / 1000)
        self.sends(CONTROLLER, broker_id, answered)

    def compare(self, seconds: float) -> None:
        """Fence each broker that is silent for the controller and another broker, now or in the next `seconds`."""
        missed = self._sessions.silent(self._image, self._now_ms() - SUSPICION_MS)
        silent = [self._image.brokers[each] for each in missed]
        for each in self._voices.confirmed(silent, self._image, self._now_ms()):
            self.fenced.setdefault(each.broker_id, self.now)
        if seconds > 0:
            self.does(CONTROLLER, self.now + COMPARE_SECONDS, lambda: self.compare(seconds - COMPARE_SECONDS))

    def _now_ms(self) -> int:
        return int(self.now * 1000)

    # -- fetches

    def fetch(self, follower: int, leader: int) -> None:
        """Let a follower fetch from a leader, which has nothing new and answers when the wait is over."""
        self._silence[follower].asked(leader, self.now)
        self.sends(follower, leader, lambda: self._serve(follower, leader))

    def _serve(self, follower: int, leader: int) -> None:
        self._silence[leader].heard(follower, self.now)
        until = self.now + FETCH_WAIT_MS / 1000
        self.does(
            leader, until, lambda: self.sends(leader, follower, lambda: self._take_answer(follower, leader))
        )

    def _take_answer(self, follower: int, leader: int) -> None:
        self._silence[follower].heard(leader, self.now)
        self.fetch(follower, leader)

    # -- the schedule

    def play(self) -> dict[str, float]:
        """Run the schedule. Raises `SafetyViolation` if a living broker was fenced, and `Liveness` if the dead one was
        not.
        """
        self._sessions.start(self._image, 0)
        for each in self.brokers:
            self.does(each, 0.0, partial(self.beat, each))
            for other in self.brokers:
                if other != each:
                    self.does(each, 0.0, partial(self.fetch, each, other))
        self.at(self._random.uniform(0, self._pause_every_seconds), self.pause_someone)
        if self._random.random() < 0.3:
            self.at(self._random.uniform(0, PEACE_SECONDS / 2), self.take_the_network_down)
        else:
            self.at(self._random.uniform(0, self._pause_every_seconds), self.cut_some_link)
        self._run_until(PEACE_SECONDS)
        if self.fenced:
            raise SafetyViolation(f"living brokers were fenced, at these seconds: {self.fenced}")
        dead = self._random.choice(self.brokers)
        self._processes[dead].lives = False
        while dead not in self.fenced and self.now < PEACE_SECONDS + NOTICED_SECONDS_MAX:
            self._run_until(self.now + 0.1)
        if self.fenced.keys() != {dead}:
            raise Liveness(f"broker {dead} died at {PEACE_SECONDS} s, and these were fenced: {self.fenced}")
        return {
            "virtual_seconds": self.now,
            "heartbeats": self.heartbeats,
            "pauses": self.pauses,
            "losses": self.losses,
            "cuts": self.cuts,
            "outages": self.outages,
            "spoken_against": self.spoken_against,
            "noticed_ms": int((self.fenced[dead] - PEACE_SECONDS) * 1000),
        }

    def _run_until(self, time: float) -> None:
        while self._queue and self._queue[0][0] <= time:
            self.now, _, step = heapq.heappop(self._queue)
            step()
        self.now = time


def run(seed: int) -> dict[str, float]:
    """Run the schedule of a seed, and return counts of its events, each with a name. Raises `SafetyViolation` and
    `Liveness`.
    """
    return Schedule(seed).play()
