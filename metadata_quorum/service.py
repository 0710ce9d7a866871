"""The controller of a node at work: machine, quorum and timers wired together (PORTED).

`ControllerService.start` replays the log and takes the lead; from then on `submit` decides requests and
`channel` answers them as messages. Observers take `committed_image` once and then follow with `subscribe`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from metadata_quorum.checkpoint_files import StoredSnapshot
from metadata_quorum.controller.brokers import FenceExpiredBrokers
from metadata_quorum.controller.controller import Activate, Controller
from metadata_quorum.controller.settings import ControllerSettings
from metadata_quorum.features import unsupported_feature
from metadata_quorum.image import InvalidMetadata, MetadataDelta, MetadataImage
from metadata_quorum.image_builder import ImageBuilder
from metadata_quorum.ports import QuorumStateStore, ReplicatedLog
from metadata_quorum.single_voter import SingleVoterQuorum
from metadata_quorum.state_machine import Deferred, ReplicatedStateMachine
from metadata_quorum.storage_format import bootstrap_records
from odradek.env.ports import Env, TaskGroup
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata_records import AbortTransactionRecord, FeatureLevelRecord
from wire.structure import Message

SESSION_CHECKS_PER_TIMEOUT = 9


class ControllerService:
    """One per node that is a controller. `start`, then `submit`; `stop` before the log is closed."""

    def __init__(
        self,
        settings: ControllerSettings,
        env: Env,
        log: ReplicatedLog,
        store: QuorumStateStore,
        *,
        cluster_id: str,
        node_id: int,
        snapshot: StoredSnapshot | None,
        bootstrap: tuple[Message, ...],
        logger: Any,
    ) -> None:
        """`bootstrap` are the first records of a new cluster; this version's own if they are missing."""
        self._settings = settings
        self._env = env
        self._cluster_id = cluster_id
        self._snapshot = snapshot
        self._bootstrap = bootstrap or bootstrap_records()
        self._logger = logger
        self._controller = Controller(settings)
        self.quorum = SingleVoterQuorum(
            log,
            store,
            node_id=node_id,
            clock=env.clock,
            workers=env.workers,
            new_event=env.event,
            logger=logger,
        )
        self._machine: ReplicatedStateMachine[MetadataImage, MetadataDelta] | None = None

    async def start(self, tasks: TaskGroup) -> None:
        """Replay, become the leader, commit the first decision; then keep running in `tasks`.

        Raises `MetadataLogCorrupt`, `InvalidMetadata` or `DiskError`; a task that fails later raises into `tasks`.
        """
        env = self._env
        builder = ImageBuilder(MetadataImage.empty(self._cluster_id))
        stored = self._snapshot
        if stored is None:
            await env.workers.run(self.quorum.replay, builder)
        else:
            await env.workers.run(self.quorum.replay, builder, stored.contents, stored.end_offset)
        await self.quorum.become_leader()
        if builder.in_transaction:
            # Whoever wrote the beginning is gone; as in Kafka the next leader says that it never happened.
            self._logger.warning("metadata.transaction_aborted")
            record = AbortTransactionRecord(reason="a new leader found it open")
            builder.replay(self.quorum.append_batch([record]), record, self.quorum.epoch)
        builder.advance(self.quorum.log_end_offset - 1, self.quorum.epoch)
        image, _ = builder.build()
        first = {
            each.name: each.feature_level for each in self._bootstrap if isinstance(each, FeatureLevelRecord)
        }
        problem = unsupported_feature(image.features or first)
        if problem is not None:
            raise InvalidMetadata(f"the metadata log is of a cluster that this version cannot run: {problem}")
        self._machine = ReplicatedStateMachine(
            self._controller, self.quorum, image, random=env.random, new_uuid=env.new_uuid
        )
        tasks.start_soon(self.quorum.run, name="metadata quorum")
        activated = env.event()
        self.submit(Activate(self._bootstrap)).on_release(lambda _: activated.set())
        await activated.wait()
        tasks.start_soon(self._fence_expired_brokers, name="broker sessions")
        self._logger.info(
            "controller.active",
            epoch=self.quorum.epoch,
            offset=self.quorum.log_end_offset,
            topics=len(self.committed_image.topics),
            metadata_version=self.committed_image.metadata_version,
        )

    async def stop(self) -> None:
        """Wait until every decision is committed; afterwards requests get NOT_CONTROLLER."""
        await self.quorum.drained()
        self._running.resign()

    @property
    def _running(self) -> ReplicatedStateMachine[MetadataImage, MetadataDelta]:
        assert self._machine is not None, "the controller service has not been started"
        return self._machine

    @property
    def committed_image(self) -> MetadataImage:
        return self._running.committed_state

    def subscribe(self, observer: Callable[[MetadataImage, MetadataDelta], None]) -> None:
        """Tell `observer` of every image committed from now on, in order."""
        self._running.subscribe(observer)

    def submit(self, request: Any, api_version: int | None = None) -> Deferred:
        """Decide a request at the time it is now."""
        return self._running.submit(request, self._now_ms(), api_version)

    def channel(self) -> LoopbackChannel:
        """How the broker of the same node asks its controller."""
        return LoopbackChannel(self, self._env)

    def _now_ms(self) -> int:
        return int(self._env.clock.monotonic() * 1000)

    async def _fence_expired_brokers(self) -> None:
        clock = self._env.clock
        period = self._settings.broker_session_timeout_ms / 1000 / SESSION_CHECKS_PER_TIMEOUT
        while True:
            await clock.sleep_until(clock.monotonic() + period)
            while self._controller.sessions.expired(self._running.state, self._now_ms()):
                self.submit(FenceExpiredBrokers()).on_release(self._tell_fenced)

    def _tell_fenced(self, broker_ids: list[int]) -> None:
        for broker_id in broker_ids or ():
            self._logger.warning("broker.fenced", broker=broker_id, reason="session expired")

    def statistics(self) -> dict[str, Any]:
        """Figures of the parts."""
        return {
            "quorum": self.quorum.statistics(),
            "machine": self._running.statistics(),
            "sessions": self._controller.sessions.statistics(),
        }


class LoopbackChannel:
    """A `PeerChannel` to the controller in the same process: messages, never calls into its state."""

    def __init__(self, service: ControllerService, env: Env) -> None:
        self._service = service
        self._env = env

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        """See `PeerChannel.request`. The message is copied, so both sides keep what is theirs."""
        deferred = self._service.submit(copy.deepcopy(message), version)
        answered = self._env.event()
        deferred.on_release(lambda _: answered.set())
        with self._env.clock.timeout_at(deadline):
            await answered.wait()
        if not deferred.is_released:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return deferred.response
