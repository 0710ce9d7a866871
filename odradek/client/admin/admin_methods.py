"""Turns the operations of `odradek.client.admin` into methods of the blocking and the async clients. PORTED.

A method takes the arguments of its operation except `core`. It returns the operation's result, or an
awaitable for the result. It has the operation's docstring. `timeout` is in seconds; None stands for
`default.api.timeout.ms`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from odradek.client import admin
from odradek.client.core.annotated_arguments import judged
from odradek.client.core.client_core import ClientCore
from odradek.client.core.operation import Operation
from odradek.client.core.partition_offsets import list_offsets

__all__ = ["AsyncAdminMethods", "BlockingAdminMethods"]

P = ParamSpec("P")
T = TypeVar("T")


class _BlockingRun(Protocol):
    def __call__(self, operation: Operation[T]) -> T: ...


class _AsyncRun(Protocol):
    def __call__(self, operation: Operation[T]) -> Awaitable[T]: ...


class _Method:
    """A descriptor that imports an operation when its method is first called, because the operation's module
    may not be loaded yet.
    """

    def __init__(self, find: Callable[[], Callable[..., Any]], method_of: Callable[[Any], Any]) -> None:
        self._find = find
        self._method_of = method_of

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        operation = self._find()
        setattr(self._owner, self._name, wraps(operation)(self._method_of(operation)))
        return getattr(owner if instance is None else instance, self._name)


def _blocking(
    find: Callable[[], Callable[Concatenate[ClientCore, P], Operation[T]]],
) -> Callable[Concatenate[BlockingAdminMethods, P], T]:
    def method_of(operation: Callable[..., Operation[T]]) -> Callable[..., T]:
        def method(self: BlockingAdminMethods, /, *args: Any, **kwargs: Any) -> T:
            bound = judged(operation, args, kwargs)
            bound.arguments["core"] = self._core
            return self._run(operation(*bound.args, **bound.kwargs))

        return method

    return cast("Callable[Concatenate[BlockingAdminMethods, P], T]", _Method(find, method_of))


def _async(
    find: Callable[[], Callable[Concatenate[ClientCore, P], Operation[T]]],
) -> Callable[Concatenate[AsyncAdminMethods, P], Awaitable[T]]:
    def method_of(operation: Callable[..., Operation[T]]) -> Callable[..., Awaitable[T]]:
        async def method(self: AsyncAdminMethods, /, *args: Any, **kwargs: Any) -> T:
            bound = judged(operation, args, kwargs)
            bound.arguments["core"] = self._core
            return await self._run(operation(*bound.args, **bound.kwargs))

        return method

    return cast("Callable[Concatenate[AsyncAdminMethods, P], Awaitable[T]]", _Method(find, method_of))


class BlockingAdminMethods:
    """The admin methods of a shell whose `run` blocks until an operation has ended."""

    def __init__(self, core: ClientCore, run: _BlockingRun) -> None:
        self._core = core
        self._run = run

    # Topics and the cluster
    create_topics = _blocking(lambda: admin.create_topics)
    delete_topics = _blocking(lambda: admin.delete_topics)
    create_partitions = _blocking(lambda: admin.create_partitions)
    describe_topics = _blocking(lambda: admin.describe_topics)
    describe_topic_partitions = _blocking(lambda: admin.describe_topic_partitions)
    describe_cluster = _blocking(lambda: admin.describe_cluster)
    unregister_broker = _blocking(lambda: admin.unregister_broker)
    update_features = _blocking(lambda: admin.update_features)

    # Leaders and replicas of partitions
    elect_leaders = _blocking(lambda: admin.elect_leaders)
    alter_partition_reassignments = _blocking(lambda: admin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(lambda: admin.list_partition_reassignments)
    survey_cluster = _blocking(lambda: admin.survey_cluster)
    move_partitions = _blocking(lambda: admin.move_partitions)
    elect_preferred = _blocking(lambda: admin.elect_preferred)
    throttle_moves = _blocking(lambda: admin.throttle_moves)
    release_throttles = _blocking(lambda: admin.release_throttles)
    unthrottle = _blocking(lambda: admin.unthrottle)

    # The quorum of controllers
    describe_quorum = _blocking(lambda: admin.describe_quorum)
    describe_controllers = _blocking(lambda: admin.describe_controllers)
    add_raft_voter = _blocking(lambda: admin.add_raft_voter)
    remove_raft_voter = _blocking(lambda: admin.remove_raft_voter)

    # Configurations
    describe_configs = _blocking(lambda: admin.describe_configs)
    incremental_alter_configs = _blocking(lambda: admin.incremental_alter_configs)
    list_config_resources = _blocking(lambda: admin.list_config_resources)

    # ACLs
    describe_acls = _blocking(lambda: admin.describe_acls)
    create_acls = _blocking(lambda: admin.create_acls)
    delete_acls = _blocking(lambda: admin.delete_acls)
    describe_client_quotas = _blocking(lambda: admin.describe_client_quotas)
    alter_client_quotas = _blocking(lambda: admin.alter_client_quotas)
    describe_clients = _blocking(lambda: admin.describe_clients)

    # Users and delegation tokens
    describe_user_scram_credentials = _blocking(lambda: admin.describe_user_scram_credentials)
    alter_user_scram_credentials = _blocking(lambda: admin.alter_user_scram_credentials)
    create_delegation_token = _blocking(lambda: admin.create_delegation_token)
    renew_delegation_token = _blocking(lambda: admin.renew_delegation_token)
    expire_delegation_token = _blocking(lambda: admin.expire_delegation_token)
    describe_delegation_tokens = _blocking(lambda: admin.describe_delegation_tokens)

    # Groups and their offsets
    list_groups = _blocking(lambda: admin.list_groups)
    describe_groups = _blocking(lambda: admin.describe_groups)
    delete_groups = _blocking(lambda: admin.delete_groups)
    list_group_offsets = _blocking(lambda: admin.list_group_offsets)
    alter_group_offsets = _blocking(lambda: admin.alter_group_offsets)
    delete_group_offsets = _blocking(lambda: admin.delete_group_offsets)
    plan_offset_reset = _blocking(lambda: admin.plan_offset_reset)
    describe_group_lag = _blocking(lambda: admin.describe_group_lag)
    describe_lag = _blocking(lambda: admin.describe_lag)

    # Transactions
    list_transactions = _blocking(lambda: admin.list_transactions)
    describe_transactions = _blocking(lambda: admin.describe_transactions)
    describe_producers = _blocking(lambda: admin.describe_producers)
    find_hanging_transactions = _blocking(lambda: admin.find_hanging_transactions)
    fence_producer = _blocking(lambda: admin.fence_producer)
    abort_transaction = _blocking(lambda: admin.abort_transaction)

    # Logs
    list_offsets = _blocking(lambda: list_offsets)
    offset_spans = _blocking(lambda: admin.offset_spans)
    delete_records = _blocking(lambda: admin.delete_records)
    describe_log_dirs = _blocking(lambda: admin.describe_log_dirs)
    alter_replica_log_dirs = _blocking(lambda: admin.alter_replica_log_dirs)
    describe_replica_logs = _blocking(lambda: admin.describe_replica_logs)


class AsyncAdminMethods:
    """The admin methods of a shell whose `run` is awaited."""

    def __init__(self, core: ClientCore, run: _AsyncRun) -> None:
        self._core = core
        self._run = run

    # Topics and the cluster
    create_topics = _async(lambda: admin.create_topics)
    delete_topics = _async(lambda: admin.delete_topics)
    create_partitions = _async(lambda: admin.create_partitions)
    describe_topics = _async(lambda: admin.describe_topics)
    describe_topic_partitions = _async(lambda: admin.describe_topic_partitions)
    describe_cluster = _async(lambda: admin.describe_cluster)
    unregister_broker = _async(lambda: admin.unregister_broker)
    update_features = _async(lambda: admin.update_features)

    # Leaders and replicas of partitions
    elect_leaders = _async(lambda: admin.elect_leaders)
    alter_partition_reassignments = _async(lambda: admin.alter_partition_reassignments)
    list_partition_reassignments = _async(lambda: admin.list_partition_reassignments)
    survey_cluster = _async(lambda: admin.survey_cluster)
    move_partitions = _async(lambda: admin.move_partitions)
    elect_preferred = _async(lambda: admin.elect_preferred)
    throttle_moves = _async(lambda: admin.throttle_moves)
    release_throttles = _async(lambda: admin.release_throttles)
    unthrottle = _async(lambda: admin.unthrottle)

    # The quorum of controllers
    describe_quorum = _async(lambda: admin.describe_quorum)
    describe_controllers = _async(lambda: admin.describe_controllers)
    add_raft_voter = _async(lambda: admin.add_raft_voter)
    remove_raft_voter = _async(lambda: admin.remove_raft_voter)

    # Configurations
    describe_configs = _async(lambda: admin.describe_configs)
    incremental_alter_configs = _async(lambda: admin.incremental_alter_configs)
    list_config_resources = _async(lambda: admin.list_config_resources)

    # ACLs
    describe_acls = _async(lambda: admin.describe_acls)
    create_acls = _async(lambda: admin.create_acls)
    delete_acls = _async(lambda: admin.delete_acls)
    describe_client_quotas = _async(lambda: admin.describe_client_quotas)
    alter_client_quotas = _async(lambda: admin.alter_client_quotas)
    describe_clients = _async(lambda: admin.describe_clients)

    # Users and delegation tokens
    describe_user_scram_credentials = _async(lambda: admin.describe_user_scram_credentials)
    alter_user_scram_credentials = _async(lambda: admin.alter_user_scram_credentials)
    create_delegation_token = _async(lambda: admin.create_delegation_token)
    renew_delegation_token = _async(lambda: admin.renew_delegation_token)
    expire_delegation_token = _async(lambda: admin.expire_delegation_token)
    describe_delegation_tokens = _async(lambda: admin.describe_delegation_tokens)

    # Groups and their offsets
    list_groups = _async(lambda: admin.list_groups)
    describe_groups = _async(lambda: admin.describe_groups)
    delete_groups = _async(lambda: admin.delete_groups)
    list_group_offsets = _async(lambda: admin.list_group_offsets)
    alter_group_offsets = _async(lambda: admin.alter_group_offsets)
    delete_group_offsets = _async(lambda: admin.delete_group_offsets)
    plan_offset_reset = _async(lambda: admin.plan_offset_reset)
    describe_group_lag = _async(lambda: admin.describe_group_lag)
    describe_lag = _async(lambda: admin.describe_lag)

    # Transactions
    list_transactions = _async(lambda: admin.list_transactions)
    describe_transactions = _async(lambda: admin.describe_transactions)
    describe_producers = _async(lambda: admin.describe_producers)
    find_hanging_transactions = _async(lambda: admin.find_hanging_transactions)
    fence_producer = _async(lambda: admin.fence_producer)
    abort_transaction = _async(lambda: admin.abort_transaction)

    # Logs
    list_offsets = _async(lambda: list_offsets)
    offset_spans = _async(lambda: admin.offset_spans)
    delete_records = _async(lambda: admin.delete_records)
    describe_log_dirs = _async(lambda: admin.describe_log_dirs)
    alter_replica_log_dirs = _async(lambda: admin.alter_replica_log_dirs)
    describe_replica_logs = _async(lambda: admin.describe_replica_logs)
