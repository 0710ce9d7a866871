"""XXH3, the 64-bit hash by which Kafka 4.3 detects that the topics of a group have changed. PURE.

The hash is stored in the group's record. A Kafka broker that reads this log finds the same hash that it would
compute. A wrong hash would only raise the group's epoch once. The algorithm is that of Yann Collet's
specification of xxHash, without a seed.
"""

from __future__ import annotations

from struct import Struct, unpack_from

__all__ = ["xxh3_64"]

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_M32 = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_STRIPE_BYTES = 64
_STRIPES_PER_BLOCK = (len(_SECRET) - _STRIPE_BYTES) // 8
_BLOCK_BYTES = _STRIPES_PER_BLOCK * _STRIPE_BYTES
_LANES = Struct("<8Q")


def _u32(data: bytes, at: int) -> int:
    return int(unpack_from("<I", data, at)[0])


def _u64(data: bytes, at: int) -> int:
    return int(unpack_from("<Q", data, at)[0])


def _folded(left: int, right: int) -> int:
    product = left * right
    return (product & _M64) ^ (product >> 64)


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * _MX1 & _M64
    return value ^ (value >> 32)


def _avalanche_of_xxh64(value: int) -> int:
    value ^= value >> 33
    value = value * _PRIME64_2 & _M64
    value ^= value >> 29
    value = value * _PRIME64_3 & _M64
    return value ^ (value >> 32)


def xxh3_64(data: bytes) -> int:
    """Compute the hash of `data`, as an unsigned 64-bit number."""
    length = len(data)
    if length <= 16:
        return _of_at_most_16(data, length)
    if length <= 128:
        return _of_at_most_128(data, length)
    if length <= 240:
        return _of_at_most_240(data, length)
    return _of_long(data, length)


def _of_at_most_16(data: bytes, length: int) -> int:
    if length > 8:
        flip1 = _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        flip2 = _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        low = _u64(data, 0) ^ flip1
        high = _u64(data, length - 8) ^ flip2
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((length + swapped + high + _folded(low, high)) & _M64)
    if length >= 4:
        flip = _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        value = (_u32(data, length - 4) + (_u32(data, 0) << 32)) ^ flip
        value ^= ((value << 49 | value >> 15) ^ (value << 24 | value >> 40)) & _M64
        value = value * _MX2 & _M64
        value ^= (value >> 35) + length
        value = value * _MX2 & _M64
        return value ^ (value >> 28)
    if length:
        flip = _u32(_SECRET, 0) ^ _u32(_SECRET, 4)
        combined = data[0] << 16 | data[length >> 1] << 24 | data[-1] | length << 8
        return _avalanche_of_xxh64(combined ^ flip)
    return _avalanche_of_xxh64(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))


def _mixed(data: bytes, at: int, secret_at: int) -> int:
    return _folded(
        _u64(data, at) ^ _u64(_SECRET, secret_at), _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8)
    )


def _of_at_most_128(data: bytes, length: int) -> int:
    total = length * _PRIME64_1
    for index in range((length - 1) // 32 + 1):
        total += _mixed(data, 16 * index, 32 * index)
        total += _mixed(data, length - 16 * (index + 1), 32 * index + 16)
    return _avalanche(total & _M64)


def _of_at_most_240(data: bytes, length: int) -> int:
    total = length * _PRIME64_1
    for index in range(8):
        total += _mixed(data, 16 * index, 16 * index)
    total = _avalanche(total & _M64)
    for index in range(8, length // 16):
        total += _mixed(data, 16 * index, 16 * (index - 8) + 3)
    total += _mixed(data, length - 16, 136 - 17)
    return _avalanche(total & _M64)


def _of_long(data: bytes, length: int) -> int:
    lanes = [
        _PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1,
    ]  # fmt: skip
    last_block = (length - 1) // _BLOCK_BYTES * _BLOCK_BYTES
    for block in range(0, last_block, _BLOCK_BYTES):
        for index in range(_STRIPES_PER_BLOCK):
            _take_stripe(lanes, data, block + index * _STRIPE_BYTES, 8 * index)
        _scramble(lanes)
    for index in range((length - 1 - last_block) // _STRIPE_BYTES):
        _take_stripe(lanes, data, last_block + index * _STRIPE_BYTES, 8 * index)
    _take_stripe(lanes, data, length - _STRIPE_BYTES, len(_SECRET) - _STRIPE_BYTES - 7)
    total = length * _PRIME64_1
    for index in range(4):
        total += _folded(
            lanes[2 * index] ^ _u64(_SECRET, 11 + 16 * index),
            lanes[2 * index + 1] ^ _u64(_SECRET, 11 + 16 * index + 8),
        )
    return _avalanche(total & _M64)


def _take_stripe(lanes: list[int], data: bytes, at: int, secret_at: int) -> None:
    values = _LANES.unpack_from(data, at)
    secrets = _LANES.unpack_from(_SECRET, secret_at)
    for index in range(8):
        value = values[index]
        key = value ^ secrets[index]
        lanes[index ^ 1] = (lanes[index ^ 1] + value) & _M64
        lanes[index] = (lanes[index] + (key & _M32) * (key >> 32)) & _M64


def _scramble(lanes: list[int]) -> None:
    secrets = _LANES.unpack_from(_SECRET, len(_SECRET) - _STRIPE_BYTES)
    for index, lane in enumerate(lanes):
        mixed = lane ^ (lane >> 47) ^ secrets[index]
        lanes[index] = mixed * _PRIME32_1 & _M64
