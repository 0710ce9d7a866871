"""Doors of Produce (checked again for delayed answers) and Fetch, by the decisions that a connection remembers.
These requests are the hot path, so their doors use the decisions that the connection has cached by topic name.

The rights of a Fetch are checked when its partitions are read (`fetch_job.py`), since a fetch session
contains partitions that later requests do not name. The door of Fetch only refuses clients that fetch as a
follower and lack CLUSTER_ACTION.
"""

from __future__ import annotations

from typing import Any

from odradek.security.acls.rules import Operation, ResourceType
from odradek.security.doors.door import Admitted, Asked
from odradek.serving.contract import CLOSE, Outcome
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.fetch import FetchRequest, FetchResponse
from odradek.wire.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse
from odradek.wire.schema.anatomy import anatomy_of
from odradek.wire.schema.versions import FETCH_REPLICA_STATE, PRODUCE_TOPIC_IDS

__all__ = ["fetch_door", "produce_again", "produce_door"]

_WRITE, _TOPIC = int(Operation.WRITE), int(ResourceType.TOPIC)
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def produce_door(asked: Asked, request: ProduceRequest) -> Admitted | ProduceResponse | Outcome | None:
    """Require WRITE on each topic and on the transactional id."""
    named = request.transactional_id
    if named is not None and not asked.may_transact(Operation.WRITE, named):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not request.acks:
            return CLOSE
        refused: ProduceResponse = anatomy_of(request, asked.version).refuse(request, code, code.message)
        return refused
    remembered, by_id = asked.rights.remembered(), asked.version >= PRODUCE_TOPIC_IDS
    topics_by_id = asked.topics.topics_by_id
    for topic in request.topic_data:
        name = topic.name
        if by_id:
            found = topics_by_id.get(topic.topic_id)
            if found is None:
                return _sorted_out(asked, request)
            name = found.name
        if remembered.get((_WRITE, _TOPIC, name)) is not True and not asked.may(Operation.WRITE, name):
            return _sorted_out(asked, request)
    return None


def _write_refused(asked: Asked, topic: Any) -> ErrorCode:
    """Return the error for a topic that the client may not write to, otherwise NONE.

    An unknown topic id is refused here with UNKNOWN_TOPIC_ID. If the append resolved the id in a later turn,
    the rights on its topic would be unchecked.
    """
    name = asked.name_of(topic.topic_id) if asked.version >= PRODUCE_TOPIC_IDS else topic.name
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.NONE if asked.may(Operation.WRITE, name) else _DENIED


def _sorted_out(asked: Asked, request: ProduceRequest) -> Admitted | ProduceResponse | Outcome:
    """Keep the topics that the client may write to, and refuse the rest.

    With acks=0 a refusal cannot be answered, so it closes the connection.
    """
    anatomy = anatomy_of(request, asked.version)
    codes = [_write_refused(asked, topic) for topic in request.topic_data]
    allowed, add = anatomy.without(request, codes)
    if not allowed.topic_data:
        if not request.acks:
            return CLOSE
        answer: ProduceResponse = add(ProduceResponse([]))
        return answer

    def merge(response: Any) -> Any:
        return add(response) if isinstance(response, ProduceResponse) else CLOSE

    return Admitted(allowed, merge)


def produce_again(asked: Asked, response: Any) -> Any:
    """Check the rights again for an answer that was delayed. A topic that the client may no longer write to
    gets an error.
    """
    if isinstance(response, ProduceResponse):
        response.responses = [
            each
            if _write_refused(asked, each) != _DENIED
            else each.replaced(
                partition_responses=[
                    PartitionProduceResponse(p.index, _DENIED, -1, -1, -1) for p in each.partition_responses
                ],
            )
            for each in response.responses
        ]
    return response


def fetch_door(asked: Asked, request: FetchRequest) -> FetchResponse | None:
    """Require CLUSTER_ACTION from followers. Other clients need READ on each topic, which is checked when the
    topic is read.
    """
    replica_id = (
        request.replica_state.replica_id if asked.version >= FETCH_REPLICA_STATE else request.replica_id
    )
    if replica_id < 0 or asked.may_cluster(Operation.CLUSTER_ACTION):
        return None
    refused: FetchResponse = anatomy_of(request, asked.version).refuse_each(request, _DENIED)
    return refused
