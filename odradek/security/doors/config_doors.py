"""Doors of requests about configurations, for brokers and controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from odradek.security.acls.rules import Operation
from odradek.security.doors.door import Admitted, Asked, Door, split
from odradek.wire.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_configs import DescribeConfigsResult

__all__ = ["alter_configs_door", "describe_configs_door", "refused_code"]


def refused_code(asked: Asked, operation: Operation, kind: int, name: str) -> ErrorCode:
    """The error for a resource whose configuration the client may not describe or alter."""
    if kind == RESOURCE_TOPIC:
        return ErrorCode.NONE if asked.may(operation, name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if kind == RESOURCE_GROUP:
        return ErrorCode.NONE if asked.may_group(operation, name) else ErrorCode.GROUP_AUTHORIZATION_FAILED
    if kind in (RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_CLIENT_METRICS):
        return ErrorCode.NONE if asked.may_cluster(operation) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def describe_configs_door(asked: Asked, request: Any) -> Admitted | None:
    """DESCRIBE_CONFIGS on the topic, the group, or the cluster."""
    codes = {
        (each.resource_type, each.resource_name): refused_code(
            asked, Operation.DESCRIBE_CONFIGS, each.resource_type, each.resource_name
        )
        for each in request.resources
    }
    allowed, refused = split(
        request.resources, lambda each: not codes[each.resource_type, each.resource_name]
    )
    if not refused:
        return None
    told = []
    for each in refused:
        code = codes[each.resource_type, each.resource_name]
        told.append(DescribeConfigsResult(code, code.message, each.resource_type, each.resource_name, []))

    def merge(response: Any) -> Any:
        response.results = [*response.results, *told]
        return response

    return Admitted(attrs.evolve(request, resources=allowed), merge)


def alter_configs_door(
    result_class: Callable[[int, str | None, int, str], Any], kinds: tuple[int, ...] | None = None
) -> Door:
    """ALTER_CONFIGS on the topic, the group, or the cluster. With `kinds`, only those are judged here."""

    def door(asked: Asked, request: Any) -> Admitted | None:
        """ALTER_CONFIGS on the topic, the group, or (brokers, loggers, client metrics) the cluster."""

        def code_of(each: Any) -> ErrorCode:
            if kinds is not None and each.resource_type not in kinds:
                return ErrorCode.NONE
            return refused_code(asked, Operation.ALTER_CONFIGS, each.resource_type, each.resource_name)

        codes = [code_of(each) for each in request.resources]
        if not any(codes):
            return None
        allowed = [each for each, code in zip(request.resources, codes, strict=True) if not code]

        def merge(response: Any) -> Any:
            # In the order of the request: the broker that asks the controller finds its resources by their places.
            decided = iter(response.responses)
            response.responses = [
                _refused(result_class, each, code) if code else next(decided)
                for each, code in zip(request.resources, codes, strict=True)
            ]
            return response

        return Admitted(attrs.evolve(request, resources=allowed), merge)

    return door


def _refused(result_class: Callable[[int, str | None, int, str], Any], resource: Any, code: ErrorCode) -> Any:
    """The result for a resource that may not be altered. Kafka tells no reason for loggers, which brokers refuse."""
    text = None if resource.resource_type == RESOURCE_BROKER_LOGGER else code.message
    return result_class(code, text, resource.resource_type, resource.resource_name)
