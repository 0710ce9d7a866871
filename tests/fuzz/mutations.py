"""Changes of bytes that are drawn from a seed. `make test` fuzzes with them, without measuring coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

EDGES = (0, 1, 0x7F, 0x80, 0xFF)


def mutated(inputs: Sequence[bytes], count: int, random: Random) -> Iterator[bytes]:
    """Return `count` inputs, each of which differs from one of `inputs` in one to four places."""
    for _ in range(count):
        data = bytearray(random.choice(inputs))
        for _ in range(random.randint(1, 4)):
            _change(data, inputs, random)
        yield bytes(data)


def _change(data: bytearray, inputs: Sequence[bytes], random: Random) -> None:
    """Set, flip, cut, repeat or insert bytes, or copy bytes from another input."""
    place = random.randrange(len(data) + 1)
    size = random.randint(1, 8)
    match random.randrange(7):
        case 0 if place < len(data):
            data[place] = random.choice(EDGES)
        case 1 if place < len(data):
            data[place] ^= 1 << random.randrange(8)
        case 2:
            del data[place : place + size]
        case 3:
            data[place:place] = data[place : place + size]
        case 4:
            data[place:place] = random.randbytes(size)
        case 5:
            other = random.choice(inputs)
            start = random.randrange(len(other) + 1)
            data[place : place + size] = other[start : start + size]
        case _:
            number = random.choice((-1, 0, 1, len(data), 1 << 31, (1 << 31) - 1, random.getrandbits(31)))
            data[place : place + 4] = (number & 0xFFFFFFFF).to_bytes(4, "big")
