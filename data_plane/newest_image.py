"""The newest image of the metadata that a broker has. PURE."""

from __future__ import annotations

from odradek.metadata_quorum.image.metadata_image import MetadataImage


class NewestImage:
    """One object for all parts of a broker. The broker replaces `image`; its parts read the image when they need it."""

    __slots__ = ("image",)

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
