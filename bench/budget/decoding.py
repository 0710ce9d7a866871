"""The cost of decoding frames of every API and version, each with one field that has as many elements as fit."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

from bench.budget.frames import Costly, Stage, costly_request, count_elements, paths_of
from odradek.wire.api import api_versions, request_class
from odradek.wire.api_keys import APIS
from odradek.wire.codec import bounded_decoder, encode

NOWHERE = Stage("", bytes(16), 1, ("",), (bytes(16),), "", ("",), "", 0, "", 0, "", "", 0)


def decodings(bytes_max: int) -> Iterator[tuple[str, int, str, int, float]]:
    """Yield (API, version, field, elements, CPU milliseconds) of the most expensive frames of `bytes_max` bytes."""
    for key in APIS:
        cls = request_class(key)
        low, high = api_versions(key)
        for version in sorted({low, high}):
            for path, is_array in paths_of(cls, version):
                if not is_array:
                    continue
                message = costly_request(Costly("", (path,)), key, version, bytes_max, NOWHERE)
                elements = count_elements(message)
                data = encode(message, version)
                decode = bounded_decoder(cls, version)
                best = float("inf")
                for _ in range(3):
                    gc.collect()
                    started = time.process_time()
                    decode(data, 0)
                    best = min(best, time.process_time() - started)
                yield APIS[key].module, version, path, elements, best * 1000


def main() -> None:
    """Print the twenty most expensive frames."""
    for api, version, path, elements, milliseconds in sorted(decodings(1 << 20), key=lambda each: -each[4])[
        :20
    ]:
        print(f"{milliseconds:6.1f} ms  {api} {version} {path}: {elements} elements")


if __name__ == "__main__":
    main()
