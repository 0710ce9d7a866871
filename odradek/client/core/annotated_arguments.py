"""Checks the arguments of operations against their annotations. PURE.

`Admin` has some sixty operations. Their annotations give the type of each argument. If an argument is an object that
the caller has made, the annotations of its class give the types of its fields. `judged` checks a call before the
operation begins. So a wrong value raises an error in the call, with the path to the value (`topics[3].configs`). A
generator can be read only once, so `judged` reads it into a list, and the operation gets the list.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs

from odradek.client.core.arguments import (
    INT64_MAX,
    as_bytes,
    as_callback,
    as_integer,
    as_seconds,
    as_text,
    by_partition,
    kind_of,
)
from odradek.client.core.partition_keys import ByPartition

__all__ = ["hints_of", "judge", "judged"]

INT64_MIN = -INT64_MAX - 1
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping)


def judged(
    operation: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Check the arguments of a call of `operation`, and return them as the client uses them (lists, tuples, ...). The
    first parameter, the core, must not be among them.

    Raises `TypeError` and `ValueError`, which name the argument.
    """
    bound = inspect.signature(operation).bind(None, *args, **kwargs)
    hints = hints_of(inspect.unwrap(operation))
    for name, value in list(bound.arguments.items())[1:]:
        if name == "timeout":
            bound.arguments[name] = as_seconds(name, value)
        else:
            bound.arguments[name] = judge(name, value, hints.get(name, Any))
    return bound


@lru_cache(maxsize=256)
def hints_of(annotated: Any) -> dict[str, Any]:
    """Return the annotated types of a class's fields, or of an operation's parameters, by name.

    The types of `core` and of the result are left out, because their modules may be imported for type
    checkers only.
    """
    wanted = {
        name: text for name, text in annotated.__annotations__.items() if name not in ("core", "return")
    }
    return get_type_hints(
        type("_Wanted", (), {"__annotations__": wanted}), vars(inspect.getmodule(annotated))
    )


def judge(what: str, value: Any, hint: Any) -> Any:
    """Check a value against a type, and return it as the client uses it. `what` names the value in error texts."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _judge_union(what, value, get_args(hint))
    if origin in _LISTS:
        return _judge_list(what, value, get_args(hint)[0])
    if origin in _MAPPINGS:
        return _judge_mapping(what, value, *get_args(hint))
    if origin is ByPartition:
        return by_partition(what, value, lambda name, each: judge(name, each, get_args(hint)[0]))
    if origin is tuple:
        return _judge_tuple(what, value, get_args(hint))
    if origin is collections.abc.Callable:
        return as_callback(what, value)
    return _judge_one(what, value, hint)


def _judge_one(what: str, value: Any, kind: type) -> Any:
    if kind is str:
        return as_text(what, value, may_be_empty=True)
    if kind is bytes:
        if value is None:
            raise TypeError(f"{what} is None, expected bytes")
        return as_bytes(what, value)
    if kind is int:
        return as_integer(what, value, INT64_MIN, INT64_MAX)
    if kind is float:
        if isinstance(value, type) or not hasattr(value, "__float__"):
            raise TypeError(f"{what} is {kind_of(value)}, expected a number")
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{what} is a number that is too large") from None
    if isinstance(kind, type) and issubclass(kind, Enum) and not isinstance(value, kind):
        return _member(what, value, kind)
    if isinstance(kind, type) and not isinstance(value, kind):
        raise TypeError(f"{what} is {kind_of(value)}, expected a {kind.__name__}")
    cls: Any = type(value)
    if attrs.has(cls):
        for name, hint in hints_of(cls).items():
            if hasattr(value, name) and not name.startswith("_"):
                judge(f"{what}.{name}", getattr(value, name), hint)
    return value


def _member(what: str, value: Any, kind: type[Enum]) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.name for each in kind)
        raise TypeError(
            f"{what} is a {type(value).__name__}, expected one of {kind.__name__}: {known}"
        ) from None


def _judge_union(what: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    if value is None and type(None) in kinds:
        return None
    errors: list[Exception] = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return judge(what, value, kind)
            except (TypeError, ValueError) as error:
                errors.append(error)
    # Prefer the error of a value that is out of range but has the right type: it explains more.
    raise next((error for error in errors if isinstance(error, ValueError)), errors[0])


def _judge_list(what: str, value: Any, hint: Any) -> list[Any]:
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{what} is {kind_of(value)}, expected a list")
    return [judge(f"{what}[{place}]", each, hint) for place, each in enumerate(value)]


def _judge_mapping(what: str, value: Any, key_hint: Any, value_hint: Any) -> dict[Any, Any]:
    if not hasattr(value, "items"):
        raise TypeError(f"{what} is {kind_of(value)}, expected a mapping")
    return {
        judge(f"a key of {what}", key, key_hint): judge(f"{what}[{key!r:.80}]", each, value_hint)
        for key, each in value.items()
    }


def _judge_tuple(what: str, value: Any, hints: tuple[Any, ...]) -> Any:
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{what} is {kind_of(value)}, expected a tuple")
    if len(hints) == 2 and hints[1] is Ellipsis:
        return tuple(judge(f"{what}[{place}]", each, hints[0]) for place, each in enumerate(value))
    if len(value) != len(hints):
        raise TypeError(f"{what} has {len(value)} parts, expected {len(hints)}")
    parts = [
        judge(f"{what}[{place}]", each, hint)
        for place, (each, hint) in enumerate(zip(value, hints, strict=True))
    ]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
