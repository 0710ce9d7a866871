"""The operations of `admin.py` as methods, once for blocking shells and once for async ones. PURE.

A method takes what its operation takes but for the core, and returns (or is awaited for) what that returns; the
documentation is the operation's. `timeout` is in seconds, and None is `default.api.timeout.ms`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from odradek.client import admin
from odradek.client.core import ClientCore
from odradek.client.offsets import list_offsets
from odradek.client.operation import Operation

__all__ = ["AsyncAdminMethods", "BlockingAdminMethods"]

P = ParamSpec("P")
T = TypeVar("T")


class _BlockingRun(Protocol):
    def __call__(self, operation: Operation[T]) -> T: ...


class _AsyncRun(Protocol):
    def __call__(self, operation: Operation[T]) -> Awaitable[T]: ...


def _blocking(
    operation: Callable[Concatenate[ClientCore, P], Operation[T]],
) -> Callable[Concatenate[BlockingAdminMethods, P], T]:
    @wraps(operation)
    def method(self: BlockingAdminMethods, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(operation(self._core, *args, **kwargs))

    return method


def _async(
    operation: Callable[Concatenate[ClientCore, P], Operation[T]],
) -> Callable[Concatenate[AsyncAdminMethods, P], Awaitable[T]]:
    @wraps(operation)
    async def method(self: AsyncAdminMethods, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(operation(self._core, *args, **kwargs))

    return method


class BlockingAdminMethods:
    """Administration for a shell whose `run` blocks until an operation is over."""

    def __init__(self, core: ClientCore, run: _BlockingRun) -> None:
        self._core = core
        self._run = run

    # Topics and the cluster
    create_topics = _blocking(admin.create_topics)
    delete_topics = _blocking(admin.delete_topics)
    create_partitions = _blocking(admin.create_partitions)
    describe_topics = _blocking(admin.describe_topics)
    describe_topic_partitions = _blocking(admin.describe_topic_partitions)
    describe_cluster = _blocking(admin.describe_cluster)
    unregister_broker = _blocking(admin.unregister_broker)
    update_features = _blocking(admin.update_features)

    # Leaders and replicas of partitions
    elect_leaders = _blocking(admin.elect_leaders)
    alter_partition_reassignments = _blocking(admin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(admin.list_partition_reassignments)
    survey_cluster = _blocking(admin.survey_cluster)
    move_partitions = _blocking(admin.move_partitions)
    elect_preferred = _blocking(admin.elect_preferred)
    throttle_moves = _blocking(admin.throttle_moves)
    unthrottle = _blocking(admin.unthrottle)

    # The quorum of controllers
    describe_quorum = _blocking(admin.describe_quorum)
    describe_controllers = _blocking(admin.describe_controllers)
    add_raft_voter = _blocking(admin.add_raft_voter)
    remove_raft_voter = _blocking(admin.remove_raft_voter)

    # Configurations
    describe_configs = _blocking(admin.describe_configs)
    incremental_alter_configs = _blocking(admin.incremental_alter_configs)
    list_config_resources = _blocking(admin.list_config_resources)

    # Groups and their offsets
    list_groups = _blocking(admin.list_groups)
    describe_groups = _blocking(admin.describe_groups)
    delete_groups = _blocking(admin.delete_groups)
    list_group_offsets = _blocking(admin.list_group_offsets)
    alter_group_offsets = _blocking(admin.alter_group_offsets)
    delete_group_offsets = _blocking(admin.delete_group_offsets)
    plan_offset_reset = _blocking(admin.plan_offset_reset)
    describe_group_lag = _blocking(admin.describe_group_lag)

    # Logs
    list_offsets = _blocking(list_offsets)
    offset_spans = _blocking(admin.offset_spans)
    delete_records = _blocking(admin.delete_records)
    describe_log_dirs = _blocking(admin.describe_log_dirs)
    alter_replica_log_dirs = _blocking(admin.alter_replica_log_dirs)
    describe_producers = _blocking(admin.describe_producers)


class AsyncAdminMethods:
    """Administration for a shell whose `run` is awaited."""

    def __init__(self, core: ClientCore, run: _AsyncRun) -> None:
        self._core = core
        self._run = run

    # Topics and the cluster
    create_topics = _async(admin.create_topics)
    delete_topics = _async(admin.delete_topics)
    create_partitions = _async(admin.create_partitions)
    describe_topics = _async(admin.describe_topics)
    describe_topic_partitions = _async(admin.describe_topic_partitions)
    describe_cluster = _async(admin.describe_cluster)
    unregister_broker = _async(admin.unregister_broker)
    update_features = _async(admin.update_features)

    # Leaders and replicas of partitions
    elect_leaders = _async(admin.elect_leaders)
    alter_partition_reassignments = _async(admin.alter_partition_reassignments)
    list_partition_reassignments = _async(admin.list_partition_reassignments)
    survey_cluster = _async(admin.survey_cluster)
    move_partitions = _async(admin.move_partitions)
    elect_preferred = _async(admin.elect_preferred)
    throttle_moves = _async(admin.throttle_moves)
    unthrottle = _async(admin.unthrottle)

    # The quorum of controllers
    describe_quorum = _async(admin.describe_quorum)
    describe_controllers = _async(admin.describe_controllers)
    add_raft_voter = _async(admin.add_raft_voter)
    remove_raft_voter = _async(admin.remove_raft_voter)

    # Configurations
    describe_configs = _async(admin.describe_configs)
    incremental_alter_configs = _async(admin.incremental_alter_configs)
    list_config_resources = _async(admin.list_config_resources)

    # Groups and their offsets
    list_groups = _async(admin.list_groups)
    describe_groups = _async(admin.describe_groups)
    delete_groups = _async(admin.delete_groups)
    list_group_offsets = _async(admin.list_group_offsets)
    alter_group_offsets = _async(admin.alter_group_offsets)
    delete_group_offsets = _async(admin.delete_group_offsets)
    plan_offset_reset = _async(admin.plan_offset_reset)
    describe_group_lag = _async(admin.describe_group_lag)

    # Logs
    list_offsets = _async(list_offsets)
    offset_spans = _async(admin.offset_spans)
    delete_records = _async(admin.delete_records)
    describe_log_dirs = _async(admin.describe_log_dirs)
    alter_replica_log_dirs = _async(admin.alter_replica_log_dirs)
    describe_producers = _async(admin.describe_producers)
