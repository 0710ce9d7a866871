"""The files of the pages, read once: their types and their tags. SHELL.

Only these files are ever served. So no address, however written, leads to another file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import attrs

from odradek.console.http.compression import ZIP_BYTES_MIN, zipped

__all__ = ["PAGES", "PageFile", "read_page_files"]

PAGES = Path(__file__).parents[1] / "pages"
_WORTH = 0.9
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


@attrs.frozen
class PageFile:
    """A file: its bytes, its type for browsers, and a tag that changes with its bytes."""

    data: bytes = attrs.field(repr=False)
    content_type: str
    tag: str
    zipped: bytes | None = attrs.field(default=None, repr=False)
    """The bytes in gzip; None if they are hardly fewer."""

    @property
    def zipped_tag(self) -> str:
        """The tag of the bytes in gzip. It differs from the tag of the plain bytes."""
        return f'{self.tag[:-1]}-gzip"'


def read_page_files(directory: Path = PAGES) -> Mapping[str, PageFile]:
    """Read all files below the directory, by their path with a slash before it. Files of other types are left out."""
    found = {}
    for path in sorted(directory.rglob("*")):
        content_type = _TYPES.get(path.suffix)
        if content_type is not None and path.is_file():
            data = path.read_bytes()
            tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            small = zipped(data, level=9) if len(data) >= ZIP_BYTES_MIN else data
            found["/" + path.relative_to(directory).as_posix()] = PageFile(
                data, content_type, tag, small if len(small) < _WORTH * len(data) else None
            )
    return found
