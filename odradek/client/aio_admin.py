"""The documented name of async administration, which lives in `shells/aio_admin.py`."""

from odradek.client.shells.aio_admin import AsyncAdmin

__all__ = ["AsyncAdmin"]
