"""Methods and arguments of other clients: an error names ours. Both shells share this. PURE but for the log.

The names stand in `odradek.client.core.familiar_names`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from odradek.client.core.familiar_names import FAMILIAR_ARGUMENTS, FAMILIAR_METHODS
from odradek.client.core.notes import WARNING, Note
from odradek.client.shells.client_log import write_notes

__all__ = ["SECONDS_USUAL_MAX", "FamiliarFace", "knows_other_names", "warns_of_milliseconds"]

F = TypeVar("F", bound=Callable[..., Any])
SECONDS_USUAL_MAX = 300.0
"""A poll for longer, by position, was most likely meant in milliseconds."""

_METHODS = {(each.of, each.name): each.ours.replace("`", "") for each in FAMILIAR_METHODS}


class FamiliarFace:
    """A client that says what the methods of other clients are called here. `_known_as` is its class in the table."""

    _known_as = ""

    if not TYPE_CHECKING:  # a checker of types shall find what is not there

        def __getattr__(self, name: str) -> Any:
            ours = _METHODS.get((type(self)._known_as, name))
            hint = "" if ours is None else f": here it is {ours}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")


def knows_other_names(method_name: str) -> Callable[[F], F]:
    """Have a method name its own arguments where it is given another client's keywords."""
    known = {each.name: each.ours.replace("`", "") for each in FAMILIAR_ARGUMENTS if each.of == method_name}

    def decorate(method: F) -> F:
        @wraps(method)
        def called(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name in known:
                    raise TypeError(f"{method.__name__} has no argument {name!r}: here it is {known[name]}")
            return method(self, *args, **kwargs)

        return cast(F, called)

    return decorate


def warns_of_milliseconds(method: F) -> F:
    """Have a poll warn once if its time, given by position, looks like milliseconds."""

    @wraps(method)
    def called(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if (
            args
            and not self._is_warned_of_seconds
            and isinstance(args[0], (int, float))
            and args[0] > SECONDS_USUAL_MAX
        ):
            self._is_warned_of_seconds = True
            text = f"poll({args[0]:.10g}) waits for that many seconds; poll(timeout=...) says that they are meant"
            write_notes([Note(WARNING, text)], self.settings.odradek_on_error)
        return method(self, *args, **kwargs)

    return cast(F, called)
