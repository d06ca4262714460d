"""An operation that the core does not have: one folder, one line of the registry, and a plugin that serves it.

``scale`` multiplies rows of numbers on a device. A provider says which factors it knows.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_dists import FakeDists
from tokendraw import operations

RECORD = '''
"""The operation ``scale``: rows of numbers, each times a factor."""

from dataclasses import dataclass
from typing import Literal

from tokendraw.plugin import Host, HostCapabilities, HostNeed, Operation, Requirement

Rounding = Literal["nearest", "down"]


@dataclass(frozen=True, kw_only=True)
class ScaleCapabilities(HostCapabilities):
    roundings: tuple[Rounding, ...] = ("nearest",)
    negative: bool = False


@dataclass(frozen=True, kw_only=True)
class ScaleNeed(HostNeed):
    rounding: Rounding = "nearest"


def rounding(capabilities: ScaleCapabilities, host: Host, need: ScaleNeed) -> str | None:
    if need.rounding in capabilities.roundings:
        return None
    return f"the request needs rounding {need.rounding}, found {', '.join(capabilities.roundings)}"


NEGATIVE_FACTORS = Requirement(
    kind="negative factors",
    is_supported=lambda capabilities, need: capabilities.negative,
    is_asked=lambda call, capabilities: call.factor < 0,
)


OPERATION = Operation(
    name="scale",
    summary="rows of numbers, each times a factor",
    module="scale_operation.provider",
    capabilities=ScaleCapabilities,
    need=ScaleNeed,
    methods=("scale",),
    checks=(rounding,),
    requirements=(NEGATIVE_FACTORS,),
)
'''
CALLS = '''
"""The call that a provider of ``scale`` makes of the arguments of its method."""

from functools import partial

import torch

from tokendraw import InvalidInputError
from tokendraw.plugin import Call


class Scale(Call):
    def __init__(self, rows, factor):
        self.rows_given, self.factor = rows, factor

    def check(self, device, need):
        if self.rows_given.device != device:
            raise InvalidInputError(f"'rows' needs the device {device}, found {self.rows_given.device}.")

    def tensors(self):
        return {"rows": self.rows_given}

    def with_tensors(self, tensors):
        return type(self)(tensors["rows"], self.factor)

    def run(self, backend):
        return backend.scale(self.rows_given, self.factor)

    def output_check(self, need):
        return partial(wrong_shape, shape=self.rows_given.shape)

    @property
    def num_rows(self):
        return len(self.rows_given)


def wrong_shape(output, shape):
    if isinstance(output, torch.Tensor) and output.shape == shape:
        return None
    return f"rows {list(shape)}, found {type(output).__name__}"
'''
PROVIDER = '''
"""What ``tokendraw.load("scale")`` returns, and a call whose result is known."""

import torch

from scale_operation.calls import Scale
from tokendraw import PluginError
from tokendraw.calls.provider import Provider


class Scaler(Provider):
    def scale(self, rows, factor):
        return self._dispatcher.dispatch(Scale(rows, factor))


CALLS = {"scale": Scale}
PROVIDER = Scaler


def prove(backend, capabilities, device, need):
    found = backend.scale(torch.arange(3.0, device=device), 2.0).tolist()
    if found != [0.0, 2.0, 4.0]:
        raise PluginError(f"the proof call needs [0.0, 2.0, 4.0], found {found}")
'''


@contextmanager
def third_operation(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write the folder of ``scale`` and put it into the registry."""
    package = folder / "operations" / "scale_operation"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(RECORD)
    (package / "provider.py").write_text(PROVIDER)
    (package / "calls.py").write_text(CALLS)
    patch.syspath_prepend(folder / "operations")
    importlib.invalidate_caches()
    patch.setitem(operations.FOLDERS, "scale", "scale_operation")
    try:
        yield
    finally:
        for module in [name for name in sys.modules if name.partition(".")[0] == "scale_operation"]:
            sys.modules.pop(module)


def scaler(
    name: str,
    *,
    priority: int = 50,
    capabilities: str = "",
    probe: str = "None",
    result: str = "rows * factor",
) -> str:
    """Source of a plugin that serves ``scale`` alone; ``result`` is the expression that it returns."""
    return f"""\
import tokendraw

BUILT, PROBED = [], []


class Scaler:
    def scale(self, rows, factor):
        return {result}


class Plugin:
    @tokendraw.plugin.hookimpl
    def tokendraw_describe(self):
        from scale_operation import ScaleCapabilities

        return tokendraw.plugin.PluginInfo(
            name={name!r}, api_version=1, priority={priority}, summary="scales rows",
            operations={{"scale": ScaleCapabilities({capabilities})}},
        )

    @tokendraw.plugin.hookimpl
    def tokendraw_probe(self, operation, host, need):
        PROBED.append(operation)
        return {probe}

    @tokendraw.plugin.hookimpl
    def tokendraw_build(self, operation, device, need):
        BUILT.append((operation, device, need))
        return Scaler()


plugin = Plugin()
"""


def add_scaler(dists: FakeDists, name: str = "acme", **options: Any) -> str:
    """Install such a plugin; returns the module's name."""
    return dists.add_plugin(name, scaler(name, **options))
