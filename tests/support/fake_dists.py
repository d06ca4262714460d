"""Fake distributions on sys.path: real dist-info folders and real modules, so that nothing has to be mocked."""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tokendraw
from fake_candidates import LAPTOP
from tokendraw.errors import notices
from tokendraw_testing import fake_dist

EVERYTHING = (
    "device_types=None, dtypes=('float32',), logprobs_modes=('raw_logprobs', 'processed_logprobs'), "
    "filters=(('top_k', 'per_row'), ('top_p', 'per_row'), ('min_p', 'per_row')), "
    "filter_orders=('top_k_first', 'joint'), seeding='counter', greedy=True, valid_flag=True"
)
"""Arguments of Capabilities for a plugin that needs no companion."""


class FakeDists:
    """Writes distributions below one folder, each into a sub-folder of its own that goes on sys.path."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch
        self.folders: list[Path] = []
        """Those that went on sys.path, for PYTHONPATH."""
        self._modules: set[str] = set()

    def add(
        self, name: str, version: str = "1.0", *, modules: Mapping[str, str] | None = None, **options: Any
    ) -> Path:
        """Install ``name`` and return the folder that went on sys.path; arguments as of ``fake_dist``."""
        folder = fake_dist(self.folder, name, version, modules=modules, **options)
        self._modules |= set(modules or {})
        self.folders.insert(0, folder)
        self._patch.syspath_prepend(folder)
        importlib.invalidate_caches()
        return folder

    def add_plugin(self, name: str, source: str, *, distribution: str = "", version: str = "1.0") -> str:
        """Install a plugin whose module has ``source`` and an object ``plugin``; returns the module's name."""
        module = f"fake_{name.replace('-', '_')}"
        owner = distribution or f"{name}-tokendraw"
        self.add(owner, version, plugins={name: f"{module}:plugin"}, modules={module: source})
        return module

    def forget(self) -> None:
        """Take the modules out of sys.modules, so that another test may write its own of the same name."""
        for module in self._modules:
            sys.modules.pop(module, None)


@contextlib.contextmanager
def fake_dists(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[FakeDists]:
    """A place for fake distributions, free of the user's configuration file and of what was warned of before."""
    patch.setattr(notices, "_announced", set())
    patch.setenv("XDG_CONFIG_HOME", str(folder / "no-configuration"))
    dists = FakeDists(folder, patch)
    try:
        yield dists
    finally:
        dists.forget()


def discovered(name: str = "acme") -> tokendraw.resolution.Candidate:
    """The one candidate of this name, on a machine without a GPU."""
    (found,) = [c for c in tokendraw.discover(host=LAPTOP) if c.name == name]
    return found


def verdict(name: str = "acme") -> tuple[tokendraw.resolution.State, str | None]:
    """Its state and reason."""
    found = discovered(name)
    return found.state, found.reason


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
    """Source of a plugin that draws its proof and ``after`` batches, and then runs the statements ``fault`` first."""
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


def place(source: str, statement: str, name: str = "acme") -> str:
    """Where a reason says that ``statement`` of a plugin's source stands: ``(fake_acme.py:42)``."""
    (line,) = [i for i, text in enumerate(source.splitlines(), 1) if statement in text]
    return f"(fake_{name}.py:{line})"
