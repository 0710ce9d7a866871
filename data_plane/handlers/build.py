"""The API table of a broker: each handler behind its door."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from odradek.data_plane.broker import Broker
from odradek.data_plane.handlers.apis import APIS, Api, Place
from odradek.data_plane.handlers.doors.topic_doors import metadata_door
from odradek.metadata_quorum.features import KRAFT_VERSION
from odradek.security.acls.authorizer import Authorizer
from odradek.security.doors.door import GuardedHandler
from odradek.serving.api_table import ApiTable
from odradek.serving.api_versions import ApiVersionsHandler
from odradek.serving.contract import Handler
from odradek.wire.api import PRODUCE_ADVERTISED_MIN, ApiKey, api_versions

BETWEEN_BROKERS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.WRITE_TXN_MARKERS)
"""The APIs that brokers call on each other. For these APIs, brokers use the newest version that the cluster's
feature level allows, without negotiation.
"""


def build_table(
    broker: Broker, kraft_version: Callable[[], int] = lambda: 0, authorizer: Authorizer | None = None
) -> ApiTable:
    """Build the API table of a broker's client listener.

    With an authorizer, each handler is behind its door, which checks rights.
    """
    release = broker.settings.release
    served = {
        int(key): api_versions(key) if api.is_of_cluster else release.client_versions(key)
        for key, api in APIS.items()
    }
    if broker.transactions.settings.two_phase_commit:
        first, last = served[ApiKey.INIT_PRODUCER_ID]
        served[ApiKey.INIT_PRODUCER_ID] = (first, last + 1)
    advertised = dict(served)
    for key in BETWEEN_BROKERS:
        served[key] = api_versions(key)
    advertised[ApiKey.PRODUCE] = (PRODUCE_ADVERTISED_MIN, served[ApiKey.PRODUCE][1])
    versions = ApiVersionsHandler(
        advertised, release.features, lambda: broker.image, lambda: {KRAFT_VERSION: kraft_version()}
    )
    place = Place(broker, authorizer, versions)
    handlers = {int(key): api.handler(place) for key, api in APIS.items()}
    if authorizer is not None:
        handlers = {key: _guarded(broker, authorizer, key, handle) for key, handle in handlers.items()}
    return ApiTable(handlers, advertised, served, versions.unsupported)


def _guarded(broker: Broker, authorizer: Authorizer, key: int, handle: Handler) -> Handler:
    api: Api = APIS[ApiKey(key)]
    door = api.door
    if key == ApiKey.METADATA:
        door = metadata_door(lambda: broker.settings.auto_create_topics_enable)
    guarded = GuardedHandler(
        handle,
        door,
        authorizer,
        lambda: broker.image,
        api.again,
        long_work=broker.long_work,
        after_work=broker.run_woken,
        api_key=key,
    )
    return guarded.counting(None if api.decisions is None else partial(api.decisions, broker)).handle
