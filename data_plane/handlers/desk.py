"""The desk of a broker's handlers: the objects that nearly every request needs. PORTED.

Each handler gets the desk, and the part of the broker that its requests are about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from odradek.data_plane.broker_settings import BrokerSettings
from odradek.data_plane.disks.disk_errors import DiskErrors
from odradek.data_plane.ports import BrokerHost
from odradek.env.ports import TaskGroup
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.serving.long_work import LongWork
from odradek.serving.node_env import NodeEnv
from odradek.serving.steps import StepDriver
from odradek.serving.timers import Timers

__all__ = ["Desk"]


class Desk(BrokerHost, Protocol):
    """The broker as all of its handlers see it: settings, metadata, clock, tasks and timers."""

    @property
    def settings(self) -> BrokerSettings: ...

    @property
    def image(self) -> MetadataImage: ...

    @property
    def env(self) -> NodeEnv: ...

    @property
    def long_work(self) -> LongWork: ...

    @property
    def steps(self) -> StepDriver:
        """The driver that runs handlers which are generators (`Steps`)."""

    @property
    def tasks(self) -> TaskGroup: ...

    @property
    def timers(self) -> Timers: ...

    @property
    def disk_errors(self) -> DiskErrors: ...

    @property
    def woken(self) -> list[Callable[[], None]]:
        """Parked requests that will be served at the end of this turn.

        Each time the requests have been served, this property returns a new list.
        """

    def run_woken(self) -> None:
        """Serve the woken requests now."""
