"""Doors (checks of rights before a request handler) that are written in one line. They need rights for the whole
request, and a right for each element in it. PURE.

`needing(on_group(READ), each=on_topic(READ))` means: READ on the group and on each topic. A table says for
each API where the elements of a request are, and how to refuse one element or all elements
(`odradek.wire.schema.anatomy_rows`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from odradek.security.acls.rules import CLUSTER_NAME, Operation, ResourceType
from odradek.security.doors.door import Admitted, Asked, Door
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.anatomy import Anatomy, anatomy_of

__all__ = [
    "Right",
    "Text",
    "for_cluster",
    "hiding",
    "needing",
    "on_group",
    "on_topic",
    "on_transactional_id",
    "refusing",
    "then",
    "unless_on_cluster",
]

Text: TypeAlias = Callable[[Any, ErrorCode], str | None]
"""A function that returns the error message for a refused resource; None stands for no message."""
Finish: TypeAlias = Callable[[Asked, Any, Any], Any]
"""A function that makes the complete response from the client, the request and the handler's response."""

_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@attrs.frozen
class Right:
    """The right to do an operation on a resource that a request, or an element of it, names."""

    operation: Operation
    resource_type: ResourceType
    field: str
    """The name of the request's field that contains the resource's name, if the whole request is about one
    resource.
    """
    code: ErrorCode

    def allows(self, asked: Asked, name: str) -> bool:
        """True if the client has this right on the resource `name`."""
        return asked.rights.allows(self.operation, self.resource_type, name)

    def refused_code(self, asked: Asked, anatomy: Anatomy, head: Any) -> ErrorCode:
        """Return the error for an element of a request (NONE: admitted). A topic id that this node does not know is
        refused, too.
        """
        name = asked.name_of(head.topic_id) if anatomy.by_id else anatomy.name_of(head)
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.NONE if self.allows(asked, name) else self.code

    def __str__(self) -> str:
        return f"{self.operation.name} on the {self.resource_type.name.lower().replace('_', ' ')}"


def on_group(operation: Operation, field: str = "group_id") -> Right:
    """Make the right to do `operation` on the group that the request names in `field`."""
    return Right(operation, ResourceType.GROUP, field, ErrorCode.GROUP_AUTHORIZATION_FAILED)


def on_transactional_id(operation: Operation, field: str = "transactional_id") -> Right:
    """Make the right to do `operation` on the transactional id that the request names in `field`."""
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return Right(operation, ResourceType.TRANSACTIONAL_ID, field, code)


def on_topic(operation: Operation) -> Right:
    """Make the right to do `operation` on a topic in the request."""
    return Right(operation, ResourceType.TOPIC, "name", ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def needing(*rights: Right, each: Right | None = None, text: Text | None = None) -> Door:
    """Make a door that requires all `rights` for the request, and the right `each` for each of its elements."""

    def door(asked: Asked, request: Any) -> Any:
        for right in rights:
            if not right.allows(asked, getattr(request, right.field)):
                return anatomy_of(request, asked.version).refuse(request, right.code)
        if each is None:
            return None
        anatomy = anatomy_of(request, asked.version)
        codes = [each.refused_code(asked, anatomy, head) for head in anatomy.heads(request)]
        return refusing(anatomy, request, codes, text)

    door.__doc__ = _sentence(rights, each)
    return door


def for_cluster(*operations: Operation, refuse: Callable[[Any], Any] | None = None) -> Door:
    """Make a door that requires the right to do one of `operations` on the cluster. `refuse` makes the answer for
    other clients.
    """

    def door(asked: Asked, request: Any) -> Any:
        for operation in operations:
            if asked.would(operation, ResourceType.CLUSTER, CLUSTER_NAME):
                return None
        asked.may_cluster(operations[0])
        if refuse is not None:
            return refuse(request)
        return anatomy_of(request, asked.version).refuse(request, _DENIED, _DENIED.message)

    door.__doc__ = f"{' or '.join(each.name for each in operations)} on the cluster."
    return door


def refusing(
    anatomy: Anatomy, request: Any, codes: list[ErrorCode], text: Text | None = None
) -> Admitted | None:
    """Let in the elements of a request that have no error code. The answer refuses all other elements."""
    return Admitted(*anatomy.without(request, codes, text)) if any(codes) else None


def then(door: Door, finish: Finish, sentence: str) -> Door:
    """Make a door that changes each answer by `finish`, which may hide elements or add the client's rights.
    `sentence` becomes the docstring of the new door.
    """

    def both(asked: Asked, request: Any) -> Any:
        admitted = door(asked, request)
        if admitted is None:
            return Admitted(request, lambda response: finish(asked, request, response))
        if not isinstance(admitted, Admitted):
            return admitted
        return Admitted(admitted.request, lambda response: finish(asked, request, admitted.merge(response)))

    both.__doc__ = sentence
    return both


def hiding(asked: Asked, resource_type: ResourceType, things: list[Any], field: str) -> list[Any]:
    """Keep only those elements of an answer that the client may DESCRIBE. `field` holds the name of an element."""
    return [
        each for each in things if asked.would(Operation.DESCRIBE, resource_type, getattr(each, field) or "")
    ]


def unless_on_cluster(operation: Operation, door: Door) -> Door:
    """Make a door that admits clients with this right on the cluster; other clients must pass `door`."""

    def either(asked: Asked, request: Any) -> Any:
        acts = asked.would(operation, ResourceType.CLUSTER, CLUSTER_NAME)
        return None if acts else door(asked, request)

    either.__doc__ = f"{operation.name} on the cluster, or {door.__doc__}"
    return either


def _sentence(rights: tuple[Right, ...], each: Right | None) -> str:
    """Describe the required rights in one sentence, for the page of rights."""
    parts = [str(right) for right in rights]
    if each is not None:
        parts.append(str(each).replace(" on the ", " on each "))
    return ", ".join(parts) + "."
