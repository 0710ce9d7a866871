"""A holder of the newest metadata image that a broker has. PURE."""

from __future__ import annotations

from odradek.metadata_quorum.image.metadata_image import MetadataImage


class NewestImage:
    """The newest metadata image, in an object that all parts of a broker share. The broker replaces `image`;
    the parts read it when they need it.
    """

    __slots__ = ("image",)

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
