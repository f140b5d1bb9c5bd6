"""Configs, which are nested frozen dataclasses, to JSON and back exactly; the classes' own types say how."""

import dataclasses
import enum
import math
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
# Strict JSON has no word for these; they stand as strings where a float is expected.
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_json(value: Any) -> Any:
    """What json.dumps takes for a config, its fields in their order, or for a value of a field.

    Raises ValueError for a value that JSON cannot carry and bring back.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in _fields(type(value))}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: to_json(item) for key, item in value.items()}
    raise ValueError(f"a config cannot hold {value!r} of type {type(value).__name__}: "
                     "use dataclasses, tuples, strings, numbers and paths")


def from_json(kind: type[T], data: Any, where: str = "") -> T:
    """The config of class `kind` that to_json turned into `data`; its own checks run again.

    `where` is the name of the field that holds it, for messages. Raises ValueError that names the field
    for an unknown, a missing (even one with a default: a replay must not depend on today's defaults) or a
    wrongly typed one.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where or 'the config'} must be an object with the fields of {kind.__name__}, "
                         f"not {data!r}")
    hints = typing.get_type_hints(kind)
    names = [field.name for field in _fields(kind)]
    prefix = f"{where}." if where else ""
    for name in data:
        if name not in names:
            raise ValueError(f"{prefix}{name} is not a field of {kind.__name__}: it has {', '.join(names)}")
    for name in names:
        if name not in data:
            raise ValueError(f"{prefix}{name} is missing: {kind.__name__} has {', '.join(names)}")
    return kind(**{name: _value(hints[name], data[name], prefix + name) for name in names})


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """The fields, by their names from `where` on, in which two configs as JSON differ."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [where]
    names = {**one, **other}
    return [found for name in names
            for found in differences(one.get(name), other.get(name), f"{where}.{name}" if where else name)]


def _fields(kind: type) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(kind) if field.init]


def _value(hint: Any, data: Any, where: str) -> Any:
    """`data` as a value of the type `hint`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return data
    if origin in (types.UnionType, typing.Union):
        return _one_of(arguments, data, where)
    if origin is typing.Literal and data in arguments:
        return data
    if origin is tuple and isinstance(data, list):
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
        if len(arguments) == len(data):
            pairs = enumerate(zip(arguments, data, strict=True))
            return tuple(_value(part, item, f"{where}[{i}]") for i, (part, item) in pairs)
    if origin is list and isinstance(data, list):
        return [_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data)]
    if origin is dict and isinstance(data, dict):
        return {key: _value(arguments[1], item, f"{where}.{key}") for key, item in data.items()}
    if isinstance(hint, type) and origin is None:
        return _plain(hint, data, where)
    raise _mismatch(hint, data, where)


def _plain(kind: type, data: Any, where: str) -> Any:
    """`data` as an instance of a class that is not generic."""
    if dataclasses.is_dataclass(kind):
        return from_json(kind, data, where)
    if issubclass(kind, enum.Enum) and data in kind.__members__:
        return kind[data]
    if kind is Path and isinstance(data, str):
        return Path(data)
    if kind is float and type(data) in (int, float):
        return float(data)
    if kind is float and isinstance(data, str) and data in _NOT_FINITE:
        return _NOT_FINITE[data]
    if kind in (str, int, bool) and type(data) is kind:
        return data
    if kind is type(None) and data is None:
        return None
    raise _mismatch(kind, data, where)


def _one_of(choices: tuple[Any, ...], data: Any, where: str) -> Any:
    """`data` as the first of the types that it fits; of several dataclasses the one with its fields."""
    classes = [choice for choice in choices if dataclasses.is_dataclass(choice)]
    if isinstance(data, dict) and classes:
        fits = [choice for choice in classes if {field.name for field in _fields(choice)} == set(data)]
        if len(fits) > 1:
            names = " and ".join(choice.__name__ for choice in fits)
            raise ValueError(f"{where} has the fields of {names}: give one of the classes another field")
        return from_json((fits or classes)[0], data, where)
    for choice in choices:
        try:
            return _value(choice, data, where)
        except _Mismatch:
            continue
    raise _Mismatch(f"{where} is {data!r}: it must be {' or '.join(_name(choice) for choice in choices)}")


class _Mismatch(ValueError):
    """A value of the wrong type, as against a config that refuses its own fields."""


def _mismatch(hint: Any, data: Any, where: str) -> _Mismatch:
    return _Mismatch(f"{where} is {data!r}: it must be {_name(hint)}")


def _name(hint: Any) -> str:
    if hint is type(None):
        return "null"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"one of {', '.join(hint.__members__)}"
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
