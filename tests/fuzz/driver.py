"""One target under libFuzzer, by atheris: `python -m tests.fuzz.driver TARGET LAUNCHER [libFuzzer's arguments]`.

A process of its own, since libFuzzer never returns, and since atheris must see modules before they are imported.
`LAUNCHER` is a program that calls this one: libFuzzer starts itself anew to merge corpora.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import atheris


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    name, launcher, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["odradek"]):
        from odradek.wire import codec
        from tests.fuzz.targets import TARGETS
    count_generated_code(codec)
    target = TARGETS[name]
    # Codecs are compiled at their first use: most of them now, in an order that does not depend on the target.
    for data in target.seeds():
        target.run(data)
    atheris.Setup([launcher, *options], target.run)
    atheris.Fuzz()


def count_generated_code(codec: ModuleType) -> None:
    """Let coverage count the generated decoders and encoders, which no import brings."""

    def counted(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **named: atheris.instrument_func(make(*args, **named))

    for name in ("make_decoder", "make_encoder"):
        setattr(codec, name, counted(getattr(codec, name)))


if __name__ == "__main__":
    main()
