"""The decorator of all message classes. It makes the same class as `attrs.define`, but postpones the costly
parts until the class is first used.
"""

from __future__ import annotations

from types import new_class
from typing import TypeVar, cast, dataclass_transform

import attrs

from odradek.wire.structure import Structure, UnmadeAttributes

__all__ = ["structure"]


S = TypeVar("S", bound=Structure)


@dataclass_transform(eq_default=False, field_specifiers=(attrs.field,))
def structure(cls: type[S]) -> type[S]:
    """Return the class with a slot for each of its fields, as `attrs.define` does. The attributes and
    `__init__` are made at the first use.
    """
    kinds = cls.__annotations__
    fields = {name: cls.__dict__[name] for name in kinds if not kinds[name].startswith("ClassVar")}
    left_out = {*fields, "__dict__", "__weakref__"}
    inherited = cls._unmade_fields
    body: dict[str, object] = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    body |= {
        "__slots__": (*fields, *(() if inherited else ("__weakref__",))),
        "__match_args__": (*inherited, *fields),
        "__attrs_attrs__": UnmadeAttributes(),
        "_unmade_fields": inherited | fields,
    }
    return cast(
        "type[S]", new_class(cls.__name__, cls.__bases__, {}, lambda namespace: namespace.update(body))
    )
