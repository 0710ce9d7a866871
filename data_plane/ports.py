"""The part of a broker that all its parts use; each part's own protocol adds the rest. PURE."""

from __future__ import annotations

from typing import Protocol

from data_plane.newest_image import NewestImage
from odradek.env.ports import Clock, Log


class BrokerHost(Protocol):
    """The broker as all of its parts see it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def log(self) -> Log: ...

    @property
    def newest(self) -> NewestImage: ...
