"""``help()`` of a public class describes each field: shapes, dtypes, units and the meaning of None."""

import dataclasses
import importlib
import inspect
import re
import typing

import pytest

MODULES = [
    "tokendraw",
    "tokendraw_bench",
    "tokendraw_engine_ops.operations",
    "tokendraw_engine_ops.paged_kv",
    "tokendraw_engine_ops.sm90_w4",
    "tokendraw.engines",
    "tokendraw.philox",
    "tokendraw.plugin",
    "tokendraw.probabilities",
    "tokendraw.resolution",
    "tokendraw.row_parameters",
    "tokendraw.speculative",
    "tokendraw_testing",
]


def is_ours(cls):
    return cls.__module__.startswith("tokendraw") and not cls.__name__.startswith("_")


def own_fields(cls):
    """Return the public fields declared by a dataclass, a named tuple or a protocol, without inherited fields."""
    is_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    is_protocol = getattr(cls, "_is_protocol", False)
    if not ("__dataclass_fields__" in vars(cls) or is_tuple or is_protocol):
        return []
    names = list(vars(cls).get("__annotations__", {}))
    if dataclasses.is_dataclass(cls):
        declared = {field.name for field in dataclasses.fields(cls)}
        names = [name for name in names if name in declared]
    return [name for name in names if not name.startswith("_")]


def public_classes():
    """Return the public classes with fields, bases included."""
    classes = {}
    for name in MODULES:
        module = importlib.import_module(name)
        names = getattr(module, "__all__", None) or [
            name for name in vars(module) if not name.startswith("_")
        ]
        for public in names:
            value = getattr(module, public)
            if inspect.isclass(value):
                classes |= {cls: None for cls in value.__mro__ if is_ours(cls) and own_fields(cls)}
    return sorted(classes, key=lambda cls: (cls.__module__, cls.__qualname__))


CLASSES = public_classes()


def described(cls):
    return re.findall(r"^:ivar (\w+): \S", inspect.getdoc(cls) or "", re.MULTILINE)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__qualname__}")
def test_each_field_is_described_in_the_order_of_the_fields(cls):
    assert described(cls) == own_fields(cls)
    bases = [base for base in cls.__mro__[1:] if is_ours(base) and own_fields(base)]
    if bases:  # inherited fields are described by the class that is named
        assert f":class:`{bases[0].__name__}`" in typing.cast("str", inspect.getdoc(cls))
