"""A broker's registration at the controller: register, send heartbeats, become unfenced, shut down in order. PORTED.

The broker and the controller exchange only messages, over a `PeerChannel`, even within one process. The
broker registers again when a heartbeat is refused because the controller knows another epoch of this broker.
A change of the active controller is no reason to register again, because the registration is in the metadata
log. A broker that was unregistered while it runs does not come back by itself: as in Kafka, an operator has
to start it again. A broker also registers again when a directory that hung answers again
(`odradek.data_plane.disks.directory_troubles`).

If two processes run on copies of one disk, each takes the registration from the other, again and again. (On one host,
the locks of the directories prevent that.) So a broker ends itself when the same other process has taken its
registration repeatedly. Before it ends, it waits until a late request of a dead process can no longer arrive. After its
end, the other process keeps the registration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from odradek.data_plane.broker import Broker
from odradek.env.ports import ConnectionLost, Log
from odradek.metadata_quorum.config.typed_settings import setting
from odradek.metadata_quorum.image.metadata_image import BrokerImage
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    SilentBroker,
)
from odradek.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from odradek.wire.primitives import INT32_MAX

CATCH_UP_SECONDS = 0.01
HEARTBEATS_PER_SUSPICION = 4
"""The least number of heartbeats in `odradek.broker.suspicion.ms`, so that no single late heartbeat is a suspicion."""
RETRY_SECONDS = 0.2
SHUTDOWN_SECONDS_MAX = 10.0
SHUTDOWN_SILENCE_SECONDS = 2.5
"""The seconds for which a broker that shuts down waits for a silent controller."""
ATTEMPT_SECONDS_MIN = 1.0
UNANSWERED_MAX = 2
"""The number of successive unanswered heartbeats after which a broker that shuts down stops waiting."""
DUPLICATE_SESSIONS = 2.5
"""Another incarnation counts as alive once it has held the registration for this number of session timeouts.

The number must be more than two, because a new controller gives a new session even to a dead incarnation of this
broker.
"""
DEFAULT_SESSION_SECONDS = 9.0
"""The session timeout in seconds that controllers have by default. The controllers may use this timeout even
if this broker is configured with a shorter one.
"""
RIVAL_TIMES = 3
"""The number of times that another incarnation must take the registration before this broker ends. These
takeovers must extend over more than `DUPLICATE_SESSIONS` session timeouts.
"""
RIVAL_SEEN_SECONDS_MAX = 1.0
"""If a heartbeat is refused, the broker waits at most this number of seconds for the metadata that show the
reason.
"""
FINAL_REFUSALS = (
    ErrorCode.INCONSISTENT_CLUSTER_ID,
    ErrorCode.INVALID_REGISTRATION,
    ErrorCode.UNSUPPORTED_VERSION,
)


class RegistrationRefused(Exception):
    """Raised if the controller refuses this broker for a reason that a new attempt would not change."""


class ControllerOutOfReach(Exception):
    """Raised if no controller could be reached in time with a registration or with the report of a failed directory."""


@attrs.frozen
class LifecycleSettings:
    """The timeouts of a broker's registration, of its heartbeats to the controller, and of its shutdown."""

    heartbeat_interval_ms: int = setting("broker.heartbeat.interval.ms")
    session_timeout_ms: int = setting("broker.session.timeout.ms")
    """The milliseconds without a heartbeat after which the controller fences a broker."""
    hands_over: bool = setting("controlled.shutdown.enable")
    """True if a broker has its leaderships moved to other brokers before it shuts down."""
    initial_registration_ms: int = setting("initial.broker.registration.timeout.ms")
    """The milliseconds after which a broker ends if no controller has registered it."""
    log_dir_failure_ms: int = setting("log.dir.failure.timeout.ms")
    """The milliseconds for which the broker tries to report a failed directory. Then the broker ends, so that the
    controllers elect other leaders for the partitions in that directory.
    """
    shutdown_retries_max: int | None = None
    """`controlled.shutdown.max.retries`: how many heartbeats of a shutdown may stay unanswered after the first one;
    None means 1.
    """
    shutdown_backoff_ms: int | None = None
    """`controlled.shutdown.retry.backoff.ms`: the milliseconds between two heartbeats of a shutdown; None means 200.
    """


class BrokerLifecycle:
    """Keeps one broker registered at the controllers, by heartbeats."""

    def __init__(
        self,
        broker: Broker,
        *,
        listeners: Sequence[Listener],
        rack: str | None,
        previous_broker_epoch: int,
        settings: LifecycleSettings,
        log: Log,
    ) -> None:
        self._broker = broker
        self._listeners = listeners
        self._rack = rack
        self._previous_broker_epoch = previous_broker_epoch
        interval_ms, self._silence = settings.heartbeat_interval_ms, broker.replication.silence
        if self._silence.suspicion_ms:
            interval_ms = min(interval_ms, self._silence.suspicion_ms // HEARTBEATS_PER_SUSPICION)
        self._interval_seconds = interval_ms / 1000
        self._session_seconds = settings.session_timeout_ms / 1000
        self._duplicate_seconds = DUPLICATE_SESSIONS * max(self._session_seconds, DEFAULT_SESSION_SECONDS)
        self._settings = settings
        self._log = log
        self._incarnation_id = broker.env.new_uuid()
        self._reported: dict[bytes, None] = {}
        """Ids of the hung directories that were reported as offline since the last registration."""
        self._wants_shut_down = False
        self._knows_more = False
        """True if there is news for the controller since the last heartbeat was made."""
        self._answered_at = float("-inf")
        self._rival = b""
        self._rival_since = 0.0
        self._rival_times = 0
        self._register_until = math.inf
        self._report_until: dict[bytes, float] = {}
        """For each failed directory, the time by which a controller must have received the report; infinite
        once a controller has received it.
        """
        self.broker_epoch = -1
        self.is_unfenced = broker.env.event()
        self.may_shut_down = broker.env.event()
        self._heartbeat_now = broker.env.event()

    async def run(self) -> None:
        """Register, then send heartbeats until the controller has allowed the shutdown, or no longer knows this
        broker.

        Raises `RegistrationRefused` if the controller refuses this broker, or if another live process
        repeatedly registers as this broker. Raises `ControllerOutOfReach` when no controller can be reached
        in time.
        """
        self._register_until = self._broker.clock.monotonic() + self._settings.initial_registration_ms / 1000
        await self._register()
        self._register_until = math.inf
        unanswered = 0
        while not self.may_shut_down.is_set():
            if not self._wants_shut_down and self._misses_directory():
                await self._register()
            response = await self._send_heartbeat()
            if response is None:
                unanswered = unanswered + 1 if self._wants_shut_down else 0
                if unanswered == self._unanswered_max:
                    self._log.warning("broker.left_unannounced", reason="no controller answers")
                    self.may_shut_down.set()
                    return
                await self._pause(self._stop_pause_seconds if self._wants_shut_down else RETRY_SECONDS)
                continue
            unanswered = 0
            if response.error_code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
                if not self._wants_shut_down:
                    await self._watch_rival()
                    if self._was_unregistered():
                        await self._stay_away()
                        return
                await self._register()
                continue
            if response.error_code:
                self._log.warning("broker.heartbeat_refused", error=ErrorCode(response.error_code).name)
                await self._pause(RETRY_SECONDS)
                continue
            self.metadata_applied()
            if response.should_shut_down:
                self.may_shut_down.set()
                return
            is_hurried = not self.is_unfenced.is_set() or self._broker.leaderless.is_urgent
            await self._pause(CATCH_UP_SECONDS if is_hurried else self._seconds_to_next())

    def _seconds_to_next(self) -> float:
        """Return the seconds until the next heartbeat. It is early if another broker becomes silent before."""
        now = self._broker.clock.monotonic()
        return min(self._interval_seconds, self._silence.next_at(now) - now)

    def _silent_brokers(self) -> list[SilentBroker] | None:
        """List the brokers with which this broker has exchanged nothing for too long; None if it keeps to Kafka's rule
        (`odradek.broker.suspicion.ms=0`).
        """
        if not self._silence.suspicion_ms:
            return None
        now, brokers = self._broker.clock.monotonic(), self._broker.image.brokers
        self._silence.look(now)
        silent = self._silence.silent(now)
        return [
            SilentBroker(broker_id, brokers[broker_id].epoch, min(int(seconds * 1000), INT32_MAX))
            for broker_id, seconds in silent.items()
            if broker_id in brokers
        ]

    @property
    def _unanswered_max(self) -> int:
        retries = self._settings.shutdown_retries_max
        return UNANSWERED_MAX if retries is None else retries + 1

    @property
    def _stop_pause_seconds(self) -> float:
        backoff_ms = self._settings.shutdown_backoff_ms
        return RETRY_SECONDS if backoff_ms is None else backoff_ms / 1000

    def _check_times(self) -> None:
        """Raise `ControllerOutOfReach` if the time for the registration, or for the report of a failed directory, is
        over.
        """
        if self._wants_shut_down:
            return
        now = self._broker.clock.monotonic()
        if now >= self._register_until:
            raise ControllerOutOfReach(
                "no controller has registered this broker within "
                f"initial.broker.registration.timeout.ms ({self._settings.initial_registration_ms} "
                "ms): check that the controllers have a leader, and that this broker reaches them"
            )
        for log_dir in self._broker.log_dirs:
            if log_dir.offline_reason is None:
                self._report_until.pop(log_dir.directory_id, None)
                continue
            until = self._report_until.setdefault(
                log_dir.directory_id, now + self._settings.log_dir_failure_ms / 1000
            )
            if now >= until:
                raise ControllerOutOfReach(
                    f"log directory {log_dir.path} has failed ({log_dir.offline_reason}), and no "
                    "controller has accepted the report within log.dir.failure.timeout.ms "
                    f"({self._settings.log_dir_failure_ms} ms): this broker ends, so that other "
                    "brokers lead its partitions"
                )

    async def _watch_rival(self) -> None:
        """Find out whether another process has taken the registration. Raises `RegistrationRefused` if a live
        process takes it repeatedly.
        """
        clock = self._broker.clock
        patience = clock.monotonic() + RIVAL_SEEN_SECONDS_MAX
        while (own := self.registration) is not None and own.epoch <= self.broker_epoch:
            if clock.monotonic() >= patience:
                return
            await clock.sleep_until(clock.monotonic() + CATCH_UP_SECONDS)
        if own is None or own.incarnation_id == self._incarnation_id:
            return
        if own.incarnation_id != self._rival:
            self._rival, self._rival_since, self._rival_times = own.incarnation_id, clock.monotonic(), 0
        self._rival_times += 1
        lasted = clock.monotonic() - self._rival_since
        if self._rival_times >= RIVAL_TIMES and lasted > DUPLICATE_SESSIONS * self._session_seconds:
            where = ", ".join(f"{each.host}:{each.port}" for each in own.listeners)
            raise RegistrationRefused(
                f"another process at {where} registers as broker {own.broker_id} with the same "
                "directories, again and again. One of the two nodes runs on a copy of the other node's disk. Only one may run, so this node ends: stop the node on the copy for good"
            )

    def _was_unregistered(self) -> bool:
        """True if the metadata show that this broker's registration was removed after it was made."""
        return self.registration is None and self._broker.image.offset >= self.broker_epoch >= 0

    async def _stay_away(self) -> None:
        """Wait until the node is stopped, because a broker that an operator has unregistered stays out of the
        cluster until its next start.
        """
        self._log.error(
            "broker.unregistered",
            broker_epoch=self.broker_epoch,
            reason="an operator has removed this broker from the cluster: stop it, or start it again to add it again",
        )
        while not self._wants_shut_down:
            await self._pause(self._interval_seconds)
        self.may_shut_down.set()

    @property
    def registration(self) -> BrokerImage | None:
        """This broker in the metadata; None before it is registered, and after its removal."""
        return self._broker.image.brokers.get(self._broker.settings.node_id)

    def metadata_applied(self) -> None:
        """Called when new metadata are applied: begins to serve clients once the metadata show that this
        broker is not fenced.

        The broker does not wait for the answer to its heartbeat, because the controller that unfenced the
        broker may hang by now.
        """
        own = self.registration
        if own is not None and own.epoch == self.broker_epoch:
            self._broker.release_leadership()
            if not self.is_unfenced.is_set() and not own.fenced:
                self.is_unfenced.set()
                self._log.info("broker.unfenced", broker_epoch=self.broker_epoch)
        if self._broker.leaderless.is_urgent:
            self._heartbeat_now.set()

    def brokers_changed(self, broker_ids: Sequence[int]) -> None:
        """Send the next heartbeat at once if one of these brokers has begun to shut down, or is fenced.

        A broker that shuts down waits until all other brokers know the new leaders of its partitions. A broker that is
        fenced may have to stay in ISRs until their other members were heard (`leaving_isrs`), and holds up acks=all
        there. Heartbeats report both, so an early heartbeat shortens the wait.
        """
        brokers, own_id = self._broker.image.brokers, self._broker.settings.node_id
        changed = [brokers[each] for each in broker_ids if each in brokers and each != own_id]
        if any(each.in_controlled_shutdown and not each.fenced for each in changed):
            reached("broker.heartbeat_for_a_stopping_broker")
            self.heartbeat_now()
        elif any(each.fenced for each in changed):
            reached("broker.heartbeat_for_a_fenced_broker")
            self.heartbeat_now()

    async def shut_down(self) -> None:
        """Ask the controller to move this broker's leaderships to other brokers, and wait for its answer, at most
        `SHUTDOWN_SECONDS_MAX`.

        Does nothing when `controlled.shutdown.enable` is off.
        """
        if not self._settings.hands_over:
            return
        self._wants_shut_down = True
        self._heartbeat_now.set()
        clock = self._broker.clock
        asked_seconds = self._unanswered_max * (ATTEMPT_SECONDS_MIN + self._stop_pause_seconds)
        silence, longest = (
            max(SHUTDOWN_SILENCE_SECONDS, asked_seconds),
            max(SHUTDOWN_SECONDS_MAX, asked_seconds),
        )
        began_at = clock.monotonic()
        while not self.may_shut_down.is_set():
            until = min(began_at + longest, max(began_at, self._answered_at) + silence)
            if clock.monotonic() >= until:
                self._log.warning("broker.left_unannounced", reason="no controller answers")
                return
            with clock.timeout_at(until):
                await self.may_shut_down.wait()

    def heartbeat_now(self) -> None:
        """Send the next heartbeat at once, because there is news for the controller. If a heartbeat is under way,
        which may lack the news, another one follows it.
        """
        self._knows_more = True
        self._heartbeat_now.set()

    async def _pause(self, seconds: float) -> None:
        clock = self._broker.clock
        if self._wants_shut_down:
            await clock.sleep_until(clock.monotonic() + min(seconds, self._stop_pause_seconds))
            return
        if self._knows_more:
            self._knows_more = False
            return
        self._heartbeat_now = self._broker.env.event()
        with clock.timeout_at(clock.monotonic() + seconds):
            await self._heartbeat_now.wait()

    async def _register(self) -> None:
        broker = self._broker
        request = BrokerRegistrationRequest(
            broker_id=broker.settings.node_id,
            cluster_id=broker.settings.cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=list(self._listeners),
            features=[
                Feature(name, low, high)
                for name, (low, high) in broker.settings.release.registered_features.items()
            ],
            rack=self._rack,
            log_dirs=self._directories_to_register(),
            previous_broker_epoch=self._previous_broker_epoch,
        )
        clock = broker.clock
        duplicate_since: float | None = None
        leader_epoch = -1
        while True:
            response: BrokerRegistrationResponse | None = await self._ask(request)
            if response is None or broker.controller.leader_epoch != leader_epoch:
                # A new controller gives every incarnation a new session, even a dead one. So count the time
                # anew.
                duplicate_since = None
                leader_epoch = broker.controller.leader_epoch
            if response is not None and response.error_code == ErrorCode.NONE:
                self.broker_epoch = response.broker_epoch
                broker.replication.registered(response.broker_epoch)
                self._previous_broker_epoch = response.broker_epoch
                self._log.info("broker.registered", broker_epoch=self.broker_epoch)
                return
            if response is not None:
                code = ErrorCode(response.error_code)
                if code in FINAL_REFUSALS:
                    raise RegistrationRefused(
                        f"the controller refuses to register this broker: {code.name}, {code.message}"
                    )
                if code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                    duplicate_since = clock.monotonic() if duplicate_since is None else duplicate_since
                    if clock.monotonic() - duplicate_since > self._duplicate_seconds:
                        raise RegistrationRefused(
                            f"another running broker has the node.id {request.broker_id}: give each "
                            "node its own node.id"
                        )
                self._log.warning("broker.registration_refused", error=code.name)
            if self._wants_shut_down:
                self.may_shut_down.set()
                return
            await self._pause(RETRY_SECONDS)

    def _directories_to_register(self) -> list[bytes]:
        """List the directories that are online and answer. If all of them hang, list all, because a registration
        needs at least one."""
        online = sorted(each.directory_id for each in self._broker.log_dirs if each.offline_reason is None)
        hung = self._broker.troubles.given_up()
        answering = [each for each in online if each not in hung]
        self._reported = dict.fromkeys(each for each in hung if answering)
        return answering or online

    def _misses_directory(self) -> bool:
        """True if a hung directory that was reported as offline works again."""
        failed = [each.directory_id for each in self._broker.log_dirs if each.offline_reason is not None]
        hung = self._broker.troubles.given_up()
        return any(each not in hung and each not in failed for each in self._reported)

    async def _send_heartbeat(self) -> BrokerHeartbeatResponse | None:
        broker = self._broker
        self._knows_more = False
        failed = [each.directory_id for each in broker.log_dirs if each.offline_reason is not None]
        hung = broker.troubles.given_up()
        # If the last working directory were reported as offline, it could never come back. So if all directories hang,
        # only ask to be fenced: a later heartbeat can lift the fence.
        all_hang = bool(hung) and len(failed) + len(hung) == len(broker.log_dirs)
        if not all_hang:
            self._reported.update(dict.fromkeys(hung))
        request = BrokerHeartbeatRequest(
            broker_id=broker.settings.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=broker.image.offset,
            want_fence=all_hang,
            want_shut_down=self._wants_shut_down,
            offline_log_dirs=sorted((*failed, *self._reported)),
            cordoned_log_dirs=sorted(dict.fromkeys((*broker.placement.cordoned, *broker.troubles.full))),
            topic_partition_log_info_list=broker.leaderless.next_reports(),
            silent_brokers=self._silent_brokers(),
        )
        response: BrokerHeartbeatResponse | None = await self._ask(request)
        if response is not None and response.error_code == ErrorCode.NONE:
            broker.leaderless.were_heard()
            self._report_until.update(dict.fromkeys(request.offline_log_dirs, math.inf))
        return response

    async def _ask(self, request: Any) -> Any:
        """Send a request to the controller and return the answer; None if no controller answered in time. The
        time limit is short, so that another attempt fits into the same session.
        """
        self._check_times()
        broker = self._broker
        seconds = max(self._interval_seconds, ATTEMPT_SECONDS_MIN)
        if self._wants_shut_down:
            seconds = ATTEMPT_SECONDS_MIN
        deadline = broker.clock.monotonic() + min(seconds, broker.settings.request_timeout_ms / 1000)
        try:
            response = await broker.controller.request(request, deadline)
            self._answered_at = broker.clock.monotonic()
            return response
        except (KafkaError, ConnectionLost) as error:
            self._log.warning("broker.controller_unreachable", error=str(error))
            return None
