"""DescribeClientQuotas: the quotas that a filter matches (KIP-546), for brokers. PURE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TypeAlias

from odradek.metadata_quorum.image.access_image import QuotaEntity
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.serving.contract import Context, Result
from odradek.serving.long_work import LongWork
from odradek.serving.steps import Work, in_slices
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

__all__ = ["DescribeClientQuotasHandler", "MatchType"]

_TYPES = ("user", "client-id", "ip")


class MatchType(IntEnum):
    """The ways in which a filter matches names, with Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


_Wanted: TypeAlias = dict[str, tuple[MatchType, str | None]]


class DescribeClientQuotasHandler:
    """Handler of DescribeClientQuotas (API 48)."""

    def __init__(self, image: Callable[[], MetadataImage], long_work: LongWork) -> None:
        self._image = image
        self._long_work = long_work

    def handle(self, context: Context, request: DescribeClientQuotasRequest) -> Result:
        """Describe the quotas that match the filter.

        With `strict`, an entity is left out if it has a type that the filter does not name.
        """
        try:
            wanted = _wanted(request.components)
        except KafkaError as error:
            return DescribeClientQuotasResponse(0, error.code, error.message, None)
        return in_slices(self._long_work, _described(self._image(), wanted, request.strict))


def _described(image: MetadataImage, wanted: _Wanted, strict: bool) -> Work[DescribeClientQuotasResponse]:
    entries: dict[QuotaEntity, EntryData] = {}
    quotas = image.access.client_quotas
    for (entity, key), value in quotas.items():
        yield 1
        if not _matches(entity, wanted, strict):
            continue
        entry = entries.get(entity)
        if entry is None:
            entry = entries[entity] = EntryData([EntityData(kind, name) for kind, name in entity], [])
        entry.values.append(ValueData(key, value))
    return DescribeClientQuotasResponse(0, ErrorCode.NONE, "", list(entries.values()))


def _matches(entity: QuotaEntity, wanted: _Wanted, strict: bool) -> bool:
    left = len(wanted)
    for kind, name in entity:
        match = wanted.get(kind)
        if match is None:
            if strict:
                return False
            continue
        how, text = match
        if how is MatchType.EXACT and name != text:
            return False
        if how is MatchType.DEFAULT and name is not None:
            return False
        left -= 1
    return left == 0


def _wanted(components: Sequence[ComponentData]) -> _Wanted:
    """Parse a filter.

    The order of checks is Kafka's. Raises `KafkaError`: INVALID_REQUEST or UNSUPPORTED_VERSION.
    """
    wanted: _Wanted = {}
    for each in components:
        kind = each.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in wanted:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if each.match_type not in tuple(MatchType):
            raise _invalid(f"Unknown match type {each.match_type}")
        match = MatchType(each.match_type)
        if match is MatchType.EXACT and each.match is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match is not MatchType.EXACT and each.match is not None:
            raise _invalid(f"Request specified MATCH_TYPE_{match.name}, but also specified a match string.")
        wanted[kind] = (match, each.match)
    if "ip" in wanted and len(wanted) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should "
            "not be used with user or clientId filter component."
        )
    return wanted


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
