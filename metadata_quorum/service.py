"""The running metadata of a node: quorum, publisher and controller wired together, started and stopped; the
active controller's timers and checks of sessions. PORTED.

There is one `MetadataService` per node. `start` opens the log and joins the quorum. `caught_up` waits until
the image has all records that were committed when the leader became known. Subscribers read `committed_image`
once, and get all later images by `subscribe`. This works in the same way on the active controller and on all
other nodes.

Who owns the image
------------------
While this node is not the active controller, the task `_follow` replays committed batches through the
publisher. No other task replays. The controller's state machine starts with the publisher's image. It starts
when this node leads the quorum, has committed a record in its epoch, and has replayed the whole log. The
machine's first decision is `Activate`. From then on the machine's committed states are published. When the
leadership is lost, the machine resigns (waiting requests get NOT_CONTROLLER). The publisher then continues
from the machine's committed state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from odradek.env.ports import DiskRefused, Log, Network, TaskGroup
from odradek.metadata_quorum.controller.audited_changes import audit_change
from odradek.metadata_quorum.controller.brokers.broker_registration import (
    FenceDeadBrokers,
    FenceExpiredBrokers,
)
from odradek.metadata_quorum.controller.controller import (
    Activate,
    Controller,
    PeriodicTask,
    periodic_tasks,
    session_check_ms,
)
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.decision_figures import DecisionFigures
from odradek.metadata_quorum.controller.doors import ControllerDoors
from odradek.metadata_quorum.controller.parts import PART_WEIGHT_MAX, LongRequest
from odradek.metadata_quorum.envelope import NODE_ITSELF, Sender
from odradek.metadata_quorum.features import THIS_RELEASE, Release, unsupported_feature
from odradek.metadata_quorum.image.metadata_image import (
    BrokerImage,
    InvalidMetadata,
    MetadataDelta,
    MetadataImage,
)
from odradek.metadata_quorum.image.unreadable_configs import MetadataErrors
from odradek.metadata_quorum.ports import PeerChannels, QuorumStateStore, ReplicatedLog, SnapshotStore
from odradek.metadata_quorum.process_watch import ProcessWatch
from odradek.metadata_quorum.quotas.mutation_quotas import MutationQuotas
from odradek.metadata_quorum.replica.driver_protocol import QuorumSettings
from odradek.metadata_quorum.replica.peers import Addresses, PeerConnections
from odradek.metadata_quorum.replica.publisher import MetadataPublisher
from odradek.metadata_quorum.replica.raft_quorum import RaftQuorum
from odradek.metadata_quorum.replica.snapshots import SnapshotSettings, Snapshotter
from odradek.metadata_quorum.replica.storage_format import bootstrap_records
from odradek.metadata_quorum.state_machine import Deferred, NotEncoded, ReplicatedStateMachine
from odradek.named_states import reached
from odradek.security.audit.auditor import Auditor
from odradek.security.doors.door import Admitted
from odradek.serving.node_env import NodeEnv
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.metadata_records import AbortTransactionRecord, FeatureLevelRecord
from odradek.wire.structure import Message

__all__ = ["LoopbackChannel", "MetadataService", "MetadataSettings"]

REPLAY_RETRY_SECONDS = 1.0


_Machine = ReplicatedStateMachine[MetadataImage, MetadataDelta, Any, Any]


def _or_usual(records: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(records) or bootstrap_records()


@attrs.frozen
class MetadataSettings:
    """The settings of a node's metadata, from its configuration and its log directory."""

    quorum: QuorumSettings
    controller: ControllerSettings | None
    """The controller's settings; None on a node that is only a broker."""
    snapshots: SnapshotSettings = attrs.field(factory=SnapshotSettings)
    bootstrap: tuple[Message, ...] = attrs.field(default=(), converter=_or_usual)
    """The first records of a new cluster; by default the first records of this release."""
    release: Release = THIS_RELEASE


class MetadataService:
    """The quorum, the publisher and the controller of one node, connected with each other.

    Call `start` first, and `stop` before the log is closed.
    """

    def __init__(
        self,
        env: NodeEnv,
        log: ReplicatedLog,
        snapshots: SnapshotStore,
        store: QuorumStateStore,
        settings: MetadataSettings,
        logger: Log,
        addresses: Addresses | None = None,
        plain_network: Network | None = None,
    ) -> None:
        """`addresses` resolves host names, and is shared with the node's other connections. `plain_network` makes
        connections without encryption and logins; by default the network of `env` does.
        """
        self._env = env
        self._addresses = addresses
        self._settings = settings
        self._logger = logger
        self.quorum = RaftQuorum(env, log, snapshots, store, settings.quorum, logger)
        self._publisher = MetadataPublisher(
            settings.quorum.cluster_id, self._read_committed, self.quorum.reading, env.workers
        )
        self._snapshotter = Snapshotter(
            env,
            snapshots,
            settings.snapshots,
            control_records_below=self.quorum.snapshots.control_records_below,
            written=self.quorum.snapshots.written,
            logger=logger,
        )
        self._publisher.on_committed = self._snapshotter.note
        self.errors = MetadataErrors(logger)
        self._publisher.subscribe(self.errors.look)
        self._published_bytes = 0
        self._controller = Controller(settings.controller or ControllerSettings())
        self._machine: _Machine | None = None
        self.decided = DecisionFigures()
        self.not_encoded = NotEncoded(env.clock, logger)
        self.doors: ControllerDoors | None = None
        """The checks of clients' rights for requests to the controller; None without an authorizer."""
        self.auditor: Auditor | None = None
        """The audit log, which gets the author of each change of the metadata log; None if there is none."""
        self.watch: ProcessWatch | None = None
        """The watch over the processes of brokers; None on a node that is only a broker, or if it is disabled."""
        if settings.controller is not None and settings.controller.suspicion_ms:
            node_id, suspicion_ms = settings.quorum.me.node_id, settings.controller.suspicion_ms
            self.watch = ProcessWatch(env, plain_network or env.network, self, logger, node_id, suspicion_ms)
        self.mutation_quotas = MutationQuotas(settings.controller or ControllerSettings())
        self._is_active = False
        self._is_stopping = False
        self._followed = env.event()
        """Set when `_follow` has ended, so that it no longer uses the log."""
        self._peers: PeerChannels | None = None
        self._news = env.event()
        self._caught_up = env.event()
        self.quorum.on_change(self._look)
        self.quorum.decisions.subscribe(lambda _: self._look())

    def _read_committed(self, offset: int, bytes_max: int) -> bytes:
        return self.quorum.decisions.read_committed(
            offset, 1 if self._env.buggify("metadata.small_replay") else bytes_max
        )

    # -- start and stop ---------------------------------------------------------------------------------------

    async def start(self, tasks: TaskGroup) -> None:
        """Open the log, join the quorum, and start the tasks of both in `tasks`.

        Raises `MetadataLogCorrupt`, `InvalidMetadata` or `DiskError`. A task that fails later raises its
        error in `tasks`.
        """
        peers = PeerConnections(
            self._env,
            tasks,
            client_id=f"raft-client-{self._settings.quorum.me.node_id}",
            log=self._logger,
            addresses=self._addresses,
        )
        await self.join(tasks, peers)
        settings = self._settings.controller
        if settings is not None:
            for task in periodic_tasks(settings):
                tasks.start_soon(self._ask_periodically, task, name=task.name)
            period_ms = session_check_ms(settings)
            tasks.start_soon(self._check_sessions, period_ms / 1000, name="broker sessions")
        if self.watch is not None:
            self._publisher.subscribe(self.watch.look)
            tasks.start_soon(self.watch.run, tasks, name="watch over brokers")

    async def join(self, tasks: TaskGroup, peers: PeerChannels) -> None:
        """Do the same as `start`, but without the controller's timers. Connections to other nodes are made
        through `peers`.
        """
        self._peers = peers
        snapshot = await self.quorum.open(tasks, peers)
        if snapshot is not None and snapshot.end_offset > 0:
            await self._publisher.load(snapshot)
            self._snapshotter.begin_after(snapshot.end_offset)
        tasks.start_soon(self.quorum.run, name="metadata quorum")
        tasks.start_soon(self._follow, name="metadata publisher")
        tasks.start_soon(self._snapshotter.run, name="metadata snapshots")
        tasks.start_soon(self.quorum.snapshots.expire_old, name="metadata retention")

    async def caught_up(self) -> None:
        """Wait until a leader is known, and the image has all records that were committed when it became known."""
        await self._caught_up.wait()

    async def stop(self, others_until: float = float("inf")) -> None:
        """Resign, wait until all decisions are committed, and leave the quorum. From then on requests get
        NOT_CONTROLLER.

        The wait for other voters ends at `others_until` at the latest (monotonic seconds).
        """
        self._is_stopping = True
        await self.quorum.resign_and_drain(others_until)
        self._resign()
        self._news.set()
        await self._followed.wait()
        if self._peers is not None:
            self._peers.close()

    # -- methods for other parts ------------------------------------------------------------------------------

    @property
    def env(self) -> NodeEnv:
        """The ports of the node."""
        return self._env

    @property
    def is_active(self) -> bool:
        """True while this node is the active controller."""
        return self._is_active

    def silent_brokers(self, since_ms: int) -> list[BrokerImage]:
        """List the unfenced brokers from which this active controller has heard nothing since `since_ms`."""
        image = self._newest_image
        return [image.brokers[each] for each in self._controller.sessions.silent(image, since_ms)]

    def fence_dead(self, request: FenceDeadBrokers, told: Callable[[list[int] | None], None]) -> None:
        """Fence a broker whose process has ended. `told` gets the response once it is committed."""
        self.submit(request).on_release(told)

    def charge_changes(self, sender: Sender, request: Message, version: int) -> Admitted | None:
        """Return the part of a client's request that its quota of changes allows; None if no quota applies.

        The charge is computed from the newest state, including topics that are not committed yet.
        """
        now = self._env.clock.monotonic()
        return self.mutation_quotas.admit(self._newest_image, sender, request, version, now)

    def charge_token_change(self, sender: Sender) -> float:
        """Charge a client for a change of a delegation token.

        If the client is in debt, the change must be refused: return the seconds to wait. Otherwise return 0.
        """
        return self.mutation_quotas.charge_one(self._newest_image, sender, self._env.clock.monotonic())

    @property
    def _newest_image(self) -> MetadataImage:
        """The image from which the next decision is made."""
        machine = self._machine
        return self._publisher.image if machine is None else machine.state

    @property
    def committed_image(self) -> MetadataImage:
        return self._publisher.image

    async def image_reaches(self, offset: int, deadline: float) -> bool:
        """Wait until this node's image includes the record at `offset`.

        Returns False if `deadline` (monotonic seconds) passes first.
        """
        return await self._publisher.image_reaches(offset, self._env, deadline)

    @property
    def lag_records(self) -> int:
        """The number of records that are committed, as far as this node knows, but not in its image yet."""
        if self._machine is not None:
            return 0
        committed = max(self.quorum.peers.leader_high_watermark, self.quorum.decisions.high_watermark)
        return max(0, committed - self._publisher.next_offset)

    def subscribe(self, observer: Callable[[MetadataImage, MetadataDelta], None]) -> None:
        """Call `observer` with every image that is committed from now on, in order, and with the image's
        difference from the previous image.
        """
        self._publisher.subscribe(observer)

    def submit(
        self, request: Any, api_version: int | None = None, sender: Sender = NODE_ITSELF
    ) -> Deferred[Any, Any]:
        """Let the active controller decide a request now.

        If this node is not the active controller, the answer is NOT_CONTROLLER. `sender` is for the audit
        log.
        """
        if self._machine is None or not self._is_active:
            deferred = Deferred(request, self._controller.refuse(request, ErrorCode.NOT_CONTROLLER), 0)
            deferred.release()
            return deferred
        clock, figures, end_offset = self._env.clock, self.decided, self.quorum.decisions.log_end_offset
        machine, began_at = self._machine, clock.monotonic()
        deferred = machine.submit(request, int(began_at * 1000), api_version)
        figures.decisions += 1
        figures.decision_seconds += clock.monotonic() - began_at
        if self.quorum.decisions.log_end_offset > end_offset:
            deferred.on_release(lambda _: self._note_commit(machine, clock.monotonic() - began_at))
            if self.auditor is not None:
                self._audit(self.auditor, deferred, request, sender, end_offset, machine)
        return deferred

    def _audit(
        self,
        auditor: Auditor,
        deferred: Deferred[Any, Any],
        request: Any,
        sender: Sender,
        first_offset: int,
        machine: _Machine,
    ) -> None:
        """Write the author of these records to the audit log, once the records are committed or the
        leadership is lost.
        """
        decisions = self.quorum.decisions
        last_offset, epoch = decisions.log_end_offset - 1, decisions.epoch
        deferred.on_release(
            lambda _: audit_change(
                auditor,
                sender,
                request,
                epoch,
                (first_offset, last_offset),
                is_committed=self._machine is machine,
            )
        )

    def change_voters(
        self, request: Message, version: int, respond: Callable[[Message], None], sender: Sender
    ) -> None:
        """Pass a change of the voters to the quorum (KIP-853).

        `respond` gets the response. `sender` is for the audit log.
        """
        quorum, auditor = self.quorum, self.auditor
        before = quorum.voters_written

        def answer(response: Any) -> None:
            written = quorum.voters_written
            if auditor is not None and written is not None and written != before:
                offset, epoch = written
                is_committed = quorum.decisions.high_watermark > offset and not response.error_code
                audit_change(auditor, sender, request, epoch, (offset, offset), is_committed=is_committed)
            respond(response)

        quorum.receive(request, version, answer)

    def long_request(self, request: Any) -> LongRequest | None:
        """Return the request as a `LongRequest` if it must be decided in parts; otherwise None."""
        weight_max = 1 if self._env.buggify("controller.small_parts") else PART_WEIGHT_MAX
        return self._controller.long_request(self._newest_image, request, weight_max)

    def _note_commit(self, machine: _Machine, seconds: float) -> None:
        if self._machine is not machine:
            reached("controller.committed_after_lost_lead")
            # The leadership is lost. The next leader decides whether the records stay in the log.
            return
        self.decided.commits += 1
        self.decided.commit_seconds += seconds

    def channel(self) -> LoopbackChannel:
        """Make a channel through which the broker on this node sends requests to this node's controller."""
        return LoopbackChannel(self, self._env)

    def _now_ms(self) -> int:
        return int(self._env.clock.monotonic() * 1000)

    # -- replay and decisions ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Called when the quorum reports a change: resign if the leadership is lost, and wake `_follow`."""
        if self._machine is not None and self.quorum.decisions.epoch < 0:
            self._resign()
        self._news.set()

    def _resign(self) -> None:
        machine, self._machine = self._machine, None
        if machine is None:
            return
        self._is_active = False
        self.quorum.decisions.unsubscribe(machine.on_high_watermark)
        self._publisher.take_over(machine.committed_state, machine.committed_end)
        machine.resign()
        self._logger.info("controller.resigned")

    async def _follow(self) -> None:
        quorum, publisher = self.quorum, self._publisher
        while not self._is_stopping:
            self._news = self._env.event()
            if self._machine is None:
                await self._replay()
                self._check_features(publisher.image)
                if self._may_decide():
                    await self._decide()
                    continue
            self._note_caught_up()
            if publisher.next_offset >= quorum.decisions.high_watermark or self._machine is not None:
                await self._news.wait()
        self._followed.set()

    async def _replay(self) -> None:
        """Replay committed records up to the high watermark.

        If a leader's snapshot has replaced the log, load that snapshot.
        """
        quorum, publisher = self.quorum, self._publisher
        try:
            await publisher.replay(quorum.decisions.high_watermark, lambda: self._is_stopping)
        except DiskRefused as error:
            reached("controller.replay_put_off")
            # The part of the log that could not be read was not replayed, so a later attempt continues there.
            self._logger.warning("metadata.replay_waits", error=str(error))
            await self._env.clock.sleep_until(self._env.clock.monotonic() + REPLAY_RETRY_SECONDS)
        except KafkaError:
            installed = quorum.snapshots.take_installed()
            if installed is None:
                raise
            await publisher.load(installed)
            self._snapshotter.begin_after(installed.end_offset)

    def _note_caught_up(self) -> None:
        leader_high_watermark = self.quorum.peers.leader_high_watermark
        if self._is_active or 0 <= leader_high_watermark <= self._publisher.next_offset:
            self._caught_up.set()

    def _may_decide(self) -> bool:
        return (
            self._settings.controller is not None
            and not self._is_stopping
            and self.quorum.decisions.is_leading
            and self._publisher.next_offset == self.quorum.decisions.log_end_offset
        )

    async def _decide(self) -> None:
        """Start the controller's machine, and submit its first decision.

        If a metadata transaction is open, first abort it.
        """
        env, quorum, publisher = self._env, self.quorum, self._publisher
        settings = self._settings
        assert settings.controller is not None
        if publisher.in_transaction:
            reached("controller.open_transaction_aborted")
            # The leader that began the transaction is gone. As in Kafka, the next leader aborts the
            # transaction.
            self._logger.warning("metadata.transaction_aborted")
            abort = AbortTransactionRecord(reason="the previous leader left it open")
            quorum.decisions.append_batch(quorum.decisions.encode_batch([abort]))
            return
        image = publisher.image
        first = {
            each.name: each.feature_level
            for each in settings.bootstrap
            if isinstance(each, FeatureLevelRecord)
        }
        self._check_features(image, first)
        self._controller = Controller(settings.controller)
        machine = self._machine = ReplicatedStateMachine(
            self._controller,
            quorum.decisions,
            image,
            random=env.random,
            new_uuid=env.new_uuid,
            fail=quorum.fail,
            not_encoded=lambda request, error: self.not_encoded.note("controller", request, error),
        )
        self._published_bytes = quorum.decisions.written_bytes
        machine.subscribe(self._publish_decided)
        heard = quorum.heard_leader
        quiet = None if heard is None else (heard[0], int(heard[1] * 1000))
        first_offset, activate = quorum.decisions.log_end_offset, Activate(settings.bootstrap, quiet)
        activation = machine.submit(activate, self._now_ms())
        activation.on_release(lambda offset: self._activated(machine, offset))
        if self.auditor is not None and quorum.decisions.log_end_offset > first_offset:
            self._audit(self.auditor, activation, activate, NODE_ITSELF, first_offset, machine)

    def _publish_decided(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Publish a state of the controller's machine that has been committed."""
        written = self.quorum.decisions.written_bytes
        size, self._published_bytes = written - self._published_bytes, written
        self.decided.committed(self._publisher.image, image, delta)
        self._publisher.publish(image, delta, size, self._env.clock.wall_ms())

    def _activated(self, machine: _Machine, offset: int | None) -> None:
        """Called when the machine's first decision is committed: the controller is active from now on.

        `offset` is None if the decision was refused.
        """
        if self._machine is not machine:
            return
        if offset is None:
            self.quorum.fail(
                InvalidMetadata("the controller could not write the first records of a new cluster")
            )
            return
        self._is_active = True
        image = self.committed_image
        self._logger.info(
            "controller.active",
            epoch=self.quorum.decisions.epoch,
            offset=self.quorum.decisions.log_end_offset,
            topics=len(image.topics),
            metadata_version=image.metadata_version,
        )
        self._caught_up.set()
        if self.watch is not None:
            self.watch.suspect_all()
        self.quorum.notify_observers()

    def _check_features(self, image: MetadataImage, first: dict[str, int] | None = None) -> None:
        problem = unsupported_feature(image.features or first or {}, self._settings.release)
        if problem is not None:
            raise InvalidMetadata(
                f"this version cannot run the cluster that this metadata log belongs to: {problem}"
            )

    # The controller's periodic requests to itself. Each answer is committed before the next request is sent.

    async def _ask_periodically(self, task: PeriodicTask) -> None:
        """Submit a periodic request of the controller to itself, again and again.

        Each answer is committed before the next request.
        """
        clock = self._env.clock
        while True:
            await clock.sleep_until(clock.monotonic() + task.period_ms / 1000)
            has_more = True
            while has_more and self._is_active:
                response = await self._ask(task.request_at(self._env.agreed_clock.earliest_ms()))
                has_more = task.has_more(response)

    async def _check_sessions(self, period: float) -> None:
        """Fence brokers whose sessions have expired, in periodic checks.

        A check does not wait until earlier fencing is committed. The reason is that commits are slow just
        when a disk or node fails, which is when brokers must be fenced. If the timer is late, this process
        itself was paused for that time.
        """
        clock = self._env.clock
        while True:
            due = clock.monotonic() + period
            await clock.sleep_until(due)
            slept_ms = round((clock.monotonic() - due) * 1000)
            has_more = True
            while has_more and self._is_active:
                end_offset = self.quorum.decisions.log_end_offset
                self.submit(FenceExpiredBrokers(slept_ms)).on_release(self._log_fenced)
                has_more = self.quorum.decisions.log_end_offset > end_offset
                slept_ms = 0
                await clock.sleep_until(0.0)

    async def _ask(self, request: Any) -> Any:
        deferred = self.submit(request)
        answered = self._env.event()
        deferred.on_release(lambda _: answered.set())
        await answered.wait()
        return deferred.response

    def _log_fenced(self, broker_ids: list[int] | None) -> None:
        for broker_id in broker_ids or ():
            self.decided.fenced_by_timeout += 1
            self._logger.warning("broker.fenced", broker=broker_id, reason="session expired")

    def statistics(self) -> dict[str, Any]:
        """Return figures of the quorum, the publisher, the snapshots, the machine and the broker sessions,
        for metrics.
        """
        machine = self._machine
        return {
            "quorum": self.quorum.statistics(),
            "publisher": self._publisher.statistics(),
            "snapshots": self._snapshotter.statistics(),
            **({} if machine is None else {"machine": machine.statistics()}),
            "sessions": self._controller.sessions.statistics(),
        }


class LoopbackChannel:
    """A `PeerChannel` to the controller in the same process.

    Messages are copied, so that no object is shared.
    """

    def __init__(self, service: MetadataService, env: NodeEnv) -> None:
        self._service = service
        self._env = env

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        """Send a request as `PeerChannel.request` does.

        The message is copied, so that the two sides share no object.
        """
        deferred = self._service.submit(copy.deepcopy(message), version)
        answered = self._env.event()
        deferred.on_release(lambda _: answered.set())
        with self._env.clock.timeout_at(deadline):
            await answered.wait()
        if not deferred.is_released:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return deferred.response
