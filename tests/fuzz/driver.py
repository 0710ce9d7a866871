"""One target under libFuzzer, by atheris: `python -m tests.fuzz.driver TARGET LAUNCHER [libFuzzer's arguments]`.

It is a process of its own, because libFuzzer never returns, and because atheris must be set up before modules are
imported. `LAUNCHER` is a program that calls this one, since libFuzzer starts itself again to merge corpora.
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
    # Codecs are compiled at their first use. Compile most of them now, so that the order does not depend on the target.
    for data in target.seeds():
        target.run(data)
    atheris.Setup([launcher, *options], target.run)
    atheris.Fuzz()


def count_generated_code(codec: ModuleType) -> None:
    """Measure coverage of generated decoders and encoders, too, which are not imported as modules."""

    def counted(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **named: atheris.instrument_func(make(*args, **named))

    for name in ("make_decoder", "make_encoder"):
        setattr(codec, name, counted(getattr(codec, name)))


if __name__ == "__main__":
    main()
