"""Doors (checks of rights before a request handler) for requests about configurations, used by brokers and
controllers.
"""

from __future__ import annotations

from typing import Any

from odradek.security.acls.rules import Operation
from odradek.security.doors.door import Admitted, Asked, Door
from odradek.security.doors.needing import refusing
from odradek.wire.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.anatomy import anatomy_of

__all__ = ["alter_configs_door", "describe_configs_door", "refused_code"]


def refused_code(asked: Asked, operation: Operation, kind: int, name: str) -> ErrorCode:
    """Return the error for a resource on which the client lacks the right `operation`; NONE if the client has it."""
    if kind == RESOURCE_TOPIC:
        return ErrorCode.NONE if asked.may(operation, name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if kind == RESOURCE_GROUP:
        return ErrorCode.NONE if asked.may_group(operation, name) else ErrorCode.GROUP_AUTHORIZATION_FAILED
    if kind in (RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_CLIENT_METRICS):
        return ErrorCode.NONE if asked.may_cluster(operation) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def describe_configs_door(asked: Asked, request: Any) -> Admitted | None:
    """Require DESCRIBE_CONFIGS on the topic, the group, or the cluster."""
    named = [(each.resource_type, each.resource_name) for each in request.resources]
    codes = {
        (kind, name): refused_code(asked, Operation.DESCRIBE_CONFIGS, kind, name) for kind, name in named
    }
    return refusing(
        anatomy_of(request), request, [codes[each] for each in named], lambda _, code: code.message
    )


def alter_configs_door(*kinds: int) -> Door:
    """Make a door that requires ALTER_CONFIGS; with `kinds`, it judges only resources of these types."""

    def door(asked: Asked, request: Any) -> Admitted | None:
        """Require ALTER_CONFIGS on the topic, the group, or (brokers, loggers, client metrics) the cluster."""

        def code_of(each: Any) -> ErrorCode:
            if kinds and each.resource_type not in kinds:
                return ErrorCode.NONE
            return refused_code(asked, Operation.ALTER_CONFIGS, each.resource_type, each.resource_name)

        codes = [code_of(each) for each in request.resources]
        return refusing(anatomy_of(request), request, codes, _alter_text)

    return door


def _alter_text(resource: Any, code: ErrorCode) -> str | None:
    """Return the error message for a resource that the client may not alter. As in Kafka, there is none for loggers."""
    return None if resource.resource_type == RESOURCE_BROKER_LOGGER else code.message
