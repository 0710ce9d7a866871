"""Answers in gzip (RFC 1952), for clients that take it (RFC 9110, section 12.5.3). PURE.

Which answers are compressed
----------------------------
The length of a compressed text shows how much its parts are alike. So somebody who can place texts of his own beside a
secret, and sees lengths on the wire, may guess the secret (CRIME, BREACH). In the console:

* Pages and scripts are the same for everybody.
* Answers of the API have names and figures. They have neither cookies nor tokens nor passwords, and requests of other
  sites are refused. But users can give names to topics and groups, which stand beside the names of others. So a random number
  of bytes is added to the head of each such answer ("Heal the BREACH", Palacios, Pérez-Sola and others, 2022).
* Texts of records may be secrets. Answers with records are never compressed, and so are streams and errors.
"""

from __future__ import annotations

import zlib
from random import Random

__all__ = ["ZIP_BYTES_MIN", "accepts_gzip", "zipped"]

ZIP_BYTES_MIN = 2048
"""Shorter answers fit in a packet or two anyway."""
PAD_BYTES_MAX = 128
_LEVEL = 5
_HEAD = bytes((0x1F, 0x8B, 8, 8, 0, 0, 0, 0, 0, 255))
"""The head of a gzip file that has a name: deflate, no time, an unknown system."""


def accepts_gzip(header: str | None) -> bool:
    """True if a client with this header Accept-Encoding takes gzip. Without a word about it, it gets plain bytes."""
    for each in (header or "").split(","):
        name, *parameters = (part.strip().lower() for part in each.split(";"))
        if name in ("gzip", "x-gzip"):
            return all(_weight(parameter) > 0 for parameter in parameters if parameter.startswith("q="))
    return False


def _weight(parameter: str) -> float:
    try:
        return float(parameter.removeprefix("q="))
    except ValueError:
        return 0.0


def zipped(data: bytes, random: Random | None = None, *, level: int = _LEVEL) -> bytes:
    """Compress bytes. With `random`, a name of random length is added, up to `PAD_BYTES_MAX` bytes."""
    pad = 0 if random is None else random.randrange(PAD_BYTES_MAX)
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    size = len(data) & 0xFFFF_FFFF
    tail = zlib.crc32(data).to_bytes(4, "little") + size.to_bytes(4, "little")
    return b"".join((_HEAD, b"a" * pad, b"\0", packer.compress(data), packer.flush(), tail))
