"""Opens the metrics page of a node. PORTED."""

from __future__ import annotations

from collections.abc import Callable

from odradek.env.ports import Log, TaskGroup
from odradek.node.configuration.metrics_config import MetricsConfig
from odradek.node.directories import NodeCannotStartYet
from odradek.node.metrics.groups.remote_ends import RemoteEnds
from odradek.node.metrics.metrics_page import MetricsSources, rendered
from odradek.node.metrics.page.loop_lateness import watch_loop
from odradek.node.metrics.page.metrics_server import MetricsServer
from odradek.node.metrics.page.page_guard import PageGuard
from odradek.node.metrics.page.page_maker import PageMaker
from odradek.serving.node_env import NodeEnv

__all__ = ["serve_metrics"]


def serve_metrics(
    settings: MetricsConfig,
    sources: MetricsSources,
    env: NodeEnv,
    tasks: TaskGroup,
    log: Log,
    *,
    ends: RemoteEnds | None,
    unready: Callable[[], str | None],
    guard: PageGuard,
) -> MetricsServer:
    """Open the listener of the metrics page, and serve what `sources` have. Raises `NodeCannotStartYet` if the address
    cannot be used.

    `ends` fetches the ends of other brokers' partitions before each page. `unready` returns why the node is not ready, or
    None if it is.
    """
    host, port = settings.host, settings.port
    try:
        listener = env.network.listen(host, port)
    except OSError as error:
        raise NodeCannotStartYet(
            f"cannot listen on {host or '*'}:{port} for metrics: {error.strerror or error}"
        ) from error
    prepare = None if ends is None else ends.refresh
    pages = PageMaker(env, log, lambda form: rendered(sources, form), prepare, sources.costs)
    server = MetricsServer(
        listener, clock=env.clock, tasks=tasks, log=log, pages=pages, unready=unready, guard=guard
    )
    tasks.start_soon(server.accept_loop)
    tasks.start_soon(watch_loop, env.clock, sources.lateness)
    log.info("node.metrics", address=f"{host or '0.0.0.0'}:{server.port}")
    return server
