"""Fake distributions on sys.path, made of real dist-info folders and modules."""

from __future__ import annotations

import contextlib
import importlib
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tokendraw
from checkout import ROOT
from fake_candidates import LAPTOP
from tokendraw import errors
from tokendraw_testing import fake_dist

EVERYTHING = (
    "device_types=None, dtypes=('float32',), logprobs_modes=('raw_logprobs', 'processed_logprobs'), "
    "filters=tuple((name, 'per_row') for name in tokendraw.plugin.FILTERS), "
    "filter_orders=tokendraw.plugin.FILTER_ORDERS, seeding='counter', greedy=True, valid_flag=True, threshold=True, "
    "logprob_token_ids=True, row_moments=tokendraw.plugin.MOMENTS"
)
"""Arguments of Capabilities for a plugin that needs no companion."""


FILTER = """
import math
import torch
from tokendraw.filters import Filter
from tokendraw import InvalidParameterError

class Acme(Filter):
    name = {name!r}
    moments = ({moments})
    {head}
    def floor(self, moments, value):
        {floor}
"""


class FakeDists:
    """Writes each distribution into a sub-folder, and puts the sub-folder on sys.path."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch
        self.folders: list[Path] = []
        """Those that went on sys.path, for PYTHONPATH."""
        self._modules: set[str] = set()

    def add(
        self,
        name: str,
        version: str = "1.0",
        *,
        modules: Mapping[str, str] | None = None,
        entry_points: str = "",
        **options: Any,
    ) -> Path:
        """Install ``name`` and return the folder on sys.path; arguments as of ``fake_dist``.

        :param entry_points: text of the file in place of the groups that ``fake_dist`` knows.
        """
        folder = fake_dist(self.folder, name, version, modules=modules, **options)
        if entry_points:
            (info,) = folder.glob("*.dist-info")
            (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
        self._modules |= set(modules or {})
        self.folders.insert(0, folder)
        self._patch.syspath_prepend(folder)
        importlib.invalidate_caches()
        return folder

    def add_plugin(self, name: str, source: str, *, distribution: str = "", version: str = "1.0") -> str:
        """Install a plugin from the ``source`` of a module with an object ``plugin``; return the module's name."""
        module = f"fake_{name.replace('-', '_')}"
        owner = distribution or f"{name}-tokendraw"
        self.add(owner, version, plugins={name: f"{module}:plugin"}, modules={module: source})
        return module

    def add_filter(
        self,
        floor: str,
        *,
        name: str = "acme",
        moments: str = "",
        head: str = "",
        distribution: str = "acme-filters",
    ) -> None:
        """Install a filter from moments.

        :param floor: the statements of its method.
        :param moments: a tuple of names, without brackets.
        :param head: other statements of the class.
        """
        module = f"filter_{name}_{len(self.folders)}"
        source = FILTER.format(name=name, floor=floor, moments=moments, head=head)
        self.add(distribution, filters={name: f"{module}:Acme"}, modules={module: source})

    def add_engine_ops(self) -> None:
        """Install tokendraw-engine-ops as in its project file."""
        project = tomllib.loads((ROOT / "engine_ops/pyproject.toml").read_text(encoding="utf-8"))["project"]
        groups = {name.removeprefix("tokendraw."): group for name, group in project["entry-points"].items()}
        self.add(project["name"], tokendraw.__version__, **groups)

    def forget(self) -> None:
        """Take the modules out of sys.modules, since another test may use the same names."""
        for module in self._modules:
            sys.modules.pop(module, None)


@contextlib.contextmanager
def fake_dists(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[FakeDists]:
    """Yield a folder for fake distributions, without the user's configuration file and without earlier warnings."""
    patch.setattr(errors, "_announced", set())
    patch.setenv("XDG_CONFIG_HOME", str(folder / "no-configuration"))
    dists = FakeDists(folder, patch)
    try:
        yield dists
    finally:
        dists.forget()


def discovered(name: str = "acme") -> tokendraw.resolution.Candidate:
    """Return the candidate of this name on a machine without a GPU."""
    (result,) = [c for c in tokendraw.discover(host=LAPTOP) if c.name == name]
    return result


def verdict(name: str = "acme") -> tuple[tokendraw.resolution.State, str | None]:
    """Return the state and reason of a candidate."""
    result = discovered(name)
    return result.state, result.reason


def plugin(
    name: str,
    *,
    priority: int = 50,
    api_version: str = "1",
    capabilities: str = "dtypes=('float32',)",
    upstream: str = "None",
    describe: str = "",
    probe: str = "None",
    build: str = "return ArgmaxSampler()",
) -> str:
    """Source of a plugin that draws the argmax. The parts are expressions or statements, pasted in."""
    described = (
        describe
        or f"""return tokendraw.plugin.PluginInfo(
            name={name!r},
            api_version={api_version},
            priority={priority},
            upstream={upstream},
            operations={{"sample": tokendraw.plugin.Capabilities({capabilities})}},
        )"""
    )
    return f"""\
import tokendraw

BUILT = []


class ArgmaxSampler:
    def sample(self, logits, metadata):
        import torch

        tokens, best, mass = logits.argmax(dim=-1), None, None
        if metadata.facts.max_logprobs is not None:
            mass = torch.zeros(len(logits), device=logits.device)
            values = mass[:, None].repeat(1, 1 + metadata.facts.max_logprobs % (1 + logits.shape[1]))  # -1: all
            best = tokendraw.LogprobsTensors(values.long(), values, torch.ones_like(tokens))
        return tokendraw.SamplerOutput(tokens, torch.ones_like(tokens, dtype=torch.bool), best, mass)


class Plugin:
    @tokendraw.plugin.hookimpl
    def tokendraw_describe(self):
        {described}

    @tokendraw.plugin.hookimpl
    def tokendraw_probe(self, operation, host, need):
        return {probe}

    @tokendraw.plugin.hookimpl
    def tokendraw_build(self, operation, device, need):
        BUILT.append(device)
        {build}


plugin = Plugin()
"""


def faulty(name: str, fault: str, *, after: int = 0, **options: Any) -> str:
    """Source of a plugin that draws its proof and ``after`` batches, then runs ``fault`` before each draw."""
    source = plugin(name, **{"capabilities": EVERYTHING, "build": "return Faulty()"} | options)
    return f"""\
{source}
CALLED = []


class Faulty(ArgmaxSampler):
    calls = 0

    def sample(self, logits, metadata):
        import torch

        self.calls += 1
        if self.calls > {after} + 1:
            CALLED.append(self)
            {fault}
        return super().sample(logits, metadata)
"""


def offering(operation: str, capabilities: str, backend: str, name: str = "acme") -> str:
    """Source of a plugin for one operation.

    :param capabilities: an expression of names of ``tokendraw.plugin`` and of ``backend``.
    :param backend: source that defines ``build(device, need)``.
    """
    return f"""\
import tokendraw
from tokendraw.plugin import ProcessCapabilities

{backend}


class Plugin:
    @tokendraw.plugin.hookimpl
    def tokendraw_describe(self):
        operations = {{{operation!r}: {capabilities}}}
        return tokendraw.plugin.PluginInfo(name={name!r}, api_version=1, priority=50, operations=operations)

    @tokendraw.plugin.hookimpl
    def tokendraw_build(self, operation, device, need):
        return build(device, need)


plugin = Plugin()
"""


def place(source: str, statement: str, name: str = "acme") -> str:
    """Return the place of a ``statement`` of a plugin's source as reasons show it: ``(fake_acme.py:42)``."""
    (line,) = [i for i, text in enumerate(source.splitlines(), 1) if statement in text]
    return f"(fake_{name}.py:{line})"


# Plugins around native, with faults.


_AROUND_NATIVE = """\
import os
import signal

import tokendraw

BUILT, PROBED, DESCRIBED = [], [], []


def build(operation, device, need):
    import torch
    from tokendraw_native import plugin as native
    from tokendraw_native.logits_processing import NativeProcessor
    from tokendraw_native.sampler import NativeSampler

    class Sampler(NativeSampler):
        calls = -1

        def sample(self, logits, metadata, **options):
            self.calls += 1
            if {in_sample}:
                {sample}
            return super().sample(logits, metadata, **options)

        def verify(self, *arguments, **options):
            self.calls += 1
            if self.calls > 0:
                {verify}
            return super().verify(*arguments, **options)

    class Processor(NativeProcessor):
        def process(self, logits, slots, row_index, bitmask=None, drafts=None):
            if {in_process}:
                {process}
            return super().process(logits, slots, row_index, bitmask, drafts)

    if operation == "process_logits":
        return Processor()
    is_drawing = operation in ("sample", "verify")
    return Sampler(device, need) if is_drawing else native.tokendraw_build(operation, device, need)


class Plugin:
    @tokendraw.plugin.hookimpl
    def tokendraw_describe(self):
        from tokendraw_native import plugin as native

        DESCRIBED.append(1)
        offered = native.tokendraw_describe().operations
        offered = {{name: offered[name] for name in {operations}}}
        return tokendraw.plugin.PluginInfo(name="acme", api_version=1, priority=50, operations=offered)

    @tokendraw.plugin.hookimpl
    def tokendraw_probe(self, operation, host, need):
        PROBED.append(operation)

    @tokendraw.plugin.hookimpl
    def tokendraw_build(self, operation, device, need):
        BUILT.append(operation)
        {build}
        return build(operation, device, need)


plugin = Plugin()
"""


def serving_both(**parts: Any) -> str:
    """Source of a plugin ``acme`` around native, of both draws; without parts it equals native.

    :param parts: statements; ``build`` runs before an operation is built, ``operation`` being the name; ``sample`` and
        ``verify`` run before each draw and verification after the proof, ``self.calls`` being the number of calls.
    """
    faultless = dict.fromkeys(("build", "sample", "verify", "process"), "pass")
    conditions = {"in_sample": "self.calls > 0", "in_process": "False"}
    return _AROUND_NATIVE.format(**{"operations": ("sample", "verify")} | faultless | conditions | parts)


def deadly(
    *,
    death: str = "os._exit(3)",
    in_sample: str = "False",
    in_process: str = "False",
    operations: tuple[str, ...] = ("sample", "process_logits"),
) -> str:
    """Source of a plugin ``acme`` with a fatal statement.

    :param death: the statement that ends the process.
    :param in_sample: expression of ``logits`` and ``metadata`` for the fatal draws.
    :param in_process: the same for edits of ``logits``.
    :param operations: the offered operations.
    """
    return serving_both(
        sample=death, process=death, in_sample=in_sample, in_process=in_process, operations=operations
    )


# Names of operations in messages.


ONE_OF_THE_OPERATIONS = "sample, verify, score or process_logits"
NATIVE_SERVES = "process_logits, sample, score and verify"
SERVED_BY_NATIVE = dict.fromkeys(("sample", "verify", "score", "process_logits"), "native")
"""Who serves each operation where nothing else is installed."""


# A third operation.


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
    module="scale_operation.provider",
    capabilities=ScaleCapabilities,
    need=ScaleNeed,
    methods=("scale",),
    checks=(rounding,),
    requirements=(NEGATIVE_FACTORS,),
)
'''
PROVIDER = '''
"""The call of ``scale``, the object that ``tokendraw.load("scale")`` returns, and a call with a known result."""

from functools import partial

import torch

from scale_operation import OPERATION
from tokendraw import InvalidInputError, PluginError
from tokendraw.plugin import Call, Provider, dispatch


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


class ScaleProvider(Provider):
    _operations = (OPERATION,)

    def scale(self, rows, factor):
        return dispatch(self._negotiator, OPERATION, Scale(rows, factor))


CALLS = {"scale": Scale}
PROVIDER = ScaleProvider


def prove(backend, capabilities, device, need):
    found = backend.scale(torch.arange(3.0, device=device), 2.0).tolist()
    if found != [0.0, 2.0, 4.0]:
        raise PluginError(f"the proof call needs [0.0, 2.0, 4.0], found {found}")
'''


def add_third_operation(
    dists: FakeDists, name: str = "scale", *, distribution: str = "scale-ops", record: str = RECORD
) -> None:
    """Install a distribution with the operation ``scale``."""
    modules = {"scale_operation": record, "scale_operation.provider": PROVIDER}
    dists.add(distribution, operations={name: "scale_operation:OPERATION"}, modules=modules)


def scaler(name: str, *, capabilities: str = "", result: str = "rows * factor") -> str:
    """Source of a plugin for ``scale`` alone; ``result`` is the returned expression."""
    backend = f"""\
from scale_operation import ScaleCapabilities

BUILT = []


class Scaler:
    def scale(self, rows, factor):
        return {result}


def build(device, need):
    BUILT.append(("scale", device, need))
    return Scaler()
"""
    return offering("scale", f"ScaleCapabilities({capabilities})", backend, name)


def add_scaler(dists: FakeDists, name: str = "acme", **options: Any) -> str:
    """Install a plugin for ``scale``; return the module's name."""
    return dists.add_plugin(name, scaler(name, **options))
