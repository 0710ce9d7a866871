"""Producer ids, from blocks that the controller allocates (KIP-730). PORTED."""

from __future__ import annotations

from typing import Protocol

from odradek.data_plane.ports import BrokerHost
from odradek.env.ports import ConnectionLost, Env, Event
from odradek.metadata_quorum.ports import ControllerPort
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest


class ProducerIdHost(BrokerHost, Protocol):
    """The part of the broker that `ProducerIds` uses."""

    node_id: int
    request_timeout_ms: int

    @property
    def env(self) -> Env: ...

    @property
    def controller(self) -> ControllerPort: ...


class ProducerIds:
    """The block of producer ids of this broker.

    The ids from `next_id` up to, but not including, `end_id` are unused.
    """

    def __init__(self, broker: ProducerIdHost) -> None:
        self._broker = broker
        self.next_id = 0
        self.end_id = 0
        self._fetching: Event | None = None

    @property
    def is_empty(self) -> bool:
        return self.next_id >= self.end_id

    def take(self) -> int | None:
        """Take a new producer id from the block; None if the block is used up."""
        if self.is_empty:
            return None
        self.next_id += 1
        return self.next_id - 1

    async def fill(self) -> ErrorCode:
        """Fetch a new block from the controller if the block is used up.

        Returns NONE if the block has unused ids, or COORDINATOR_LOAD_IN_PROGRESS if the controller allocates
        no block.
        """
        while self.is_empty:
            if self._fetching is not None:
                reached("producer_ids.block_shared")
                await self._fetching.wait()
                continue
            self._fetching = fetching = self._broker.env.event()
            try:
                code = await self._fetch_block()
            finally:
                self._fetching = None
                fetching.set()
            if code:
                return code
        return ErrorCode.NONE

    async def _fetch_block(self) -> ErrorCode:
        broker = self._broker
        own = broker.newest.image.brokers.get(broker.node_id)
        if own is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        request = AllocateProducerIdsRequest(broker.node_id, own.epoch)
        try:
            deadline = broker.clock.monotonic() + broker.request_timeout_ms / 1000
            response = await broker.controller.request(request, deadline)
        except (KafkaError, ConnectionLost):
            reached("producer_ids.block_not_fetched")
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if response.error_code:
            broker.log.warning("producer_ids.refused", error=ErrorCode(response.error_code).name)
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self.next_id = response.producer_id_start
        self.end_id = response.producer_id_start + response.producer_id_len
        return ErrorCode.NONE
