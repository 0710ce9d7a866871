"""Makes errors for calls with the method or argument names of other Kafka clients. The errors name the
equivalent in this client. The blocking and the async clients share this module. PURE, except that it writes
to the log.

The names are in `odradek.client.core.familiar_names`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from odradek.client.core.familiar_names import FAMILIAR_ARGUMENTS, FAMILIAR_METHODS
from odradek.client.core.notes import WARNING, Note
from odradek.client.shells.client_log import write_notes

__all__ = ["SECONDS_USUAL_MAX", "FamiliarFace", "knows_other_names", "warns_of_milliseconds"]

F = TypeVar("F", bound=Callable[..., Any])
SECONDS_USUAL_MAX = 300.0
"""A positional timeout of a poll above this number was most likely meant in milliseconds."""


class _Elsewhere:
    """A descriptor for a method of other clients that has another name in this client. Reading the attribute raises an
    error that says what to use in this client instead.

    A `__getattr__` in the client's class would slow down all attributes, and `send` reads many attributes.
    """

    def __init__(self, name: str, ours: str) -> None:
        self._name = name
        self._ours = ours

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self._name!r}. In this client: {self._ours}"
        )


class FamiliarFace:
    """The base of clients that explain the method names of other libraries in errors. `known_as` is the class's name
    in the table of names.
    """

    def __init_subclass__(cls, known_as: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for method in FAMILIAR_METHODS:
            if method.of == known_as:
                setattr(cls, method.name, _Elsewhere(method.name, method.ours.replace("`", "")))


def knows_other_names(method_name: str) -> Callable[[F], F]:
    """Make a method explain the keyword arguments of other clients: it raises an error that names the
    argument to use instead.
    """
    known = {each.name: each.ours.replace("`", "") for each in FAMILIAR_ARGUMENTS if each.of == method_name}

    def decorate(method: F) -> F:
        @wraps(method)
        def called(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name in known:
                    raise TypeError(
                        f"{method.__name__} has no argument {name!r}. In this client: {known[name]}"
                    )
            return method(self, *args, **kwargs)

        return cast(F, called)

    return decorate


def warns_of_milliseconds(method: F) -> F:
    """Make a poll method log one warning if its positional timeout looks like milliseconds."""

    @wraps(method)
    def called(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if (
            args
            and not self._is_warned_of_seconds
            and isinstance(args[0], (int, float))
            and args[0] > SECONDS_USUAL_MAX
        ):
            self._is_warned_of_seconds = True
            text = (
                f"poll({args[0]:.10g}) waits for {args[0]:.10g} seconds, not milliseconds; "
                "poll(timeout=...) ends this warning"
            )
            write_notes([Note(WARNING, text)], self.settings.odradek_on_error)
        return method(self, *args, **kwargs)

    return cast(F, called)
