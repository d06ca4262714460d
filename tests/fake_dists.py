"""Fake distributions on sys.path: real dist-info folders and real modules, so that nothing has to be mocked."""

import contextlib
import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import tokendraw
from fake_candidates import LAPTOP
from tokendraw import _announce

GROUP = "tokendraw.plugins"
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
        self._modules: set[str] = set()

    def add(
        self,
        name: str,
        version: str = "1.0",
        *,
        plugins: Mapping[str, str] | None = None,
        modules: Mapping[str, str] | None = None,
        metadata: str | None = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        where: str | None = None,
    ) -> Path:
        """Install ``name`` and return the folder that went on sys.path.

        :param plugins: entry points by name, ``{"acme": "acme_plugin:plugin"}``.
        :param modules: sources by module name.
        :param metadata: text of METADATA; None leaves the file out.
        :param where: sub-folder, so that one distribution can be installed twice.
        """
        folder = self.folder / (where or f"{name}-{version}")
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        if metadata is not None:
            (info / "METADATA").write_text(metadata.format(name=name, version=version), encoding="utf-8")
        if plugins:
            lines = [f"[{GROUP}]", *(f"{key} = {value}" for key, value in plugins.items())]
            (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for module, source in (modules or {}).items():
            (folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
            self._modules.add(module)
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
    patch.setattr(_announce, "_said", set())
    patch.setenv("XDG_CONFIG_HOME", str(folder / "no-configuration"))
    dists = FakeDists(folder, patch)
    try:
        yield dists
    finally:
        dists.forget()


def discovered(name: str = "acme") -> tokendraw.Candidate:
    """The one candidate of this name, on a machine without a GPU."""
    (found,) = [c for c in tokendraw.discover(host=LAPTOP) if c.name == name]
    return found


def verdict(name: str = "acme") -> tuple[tokendraw.State, str | None]:
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
        or f"""return tokendraw.PluginInfo(
            name={name!r},
            api_version={api_version},
            priority={priority},
            upstream={upstream},
            operations={{"sample": tokendraw.Capabilities({capabilities})}},
        )"""
    )
    return f"""\
import tokendraw

BUILT = []


class ArgmaxSampler:
    def sample(self, logits, metadata, *, inplace=False):
        import torch

        valid = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return tokendraw.SamplerOutput(token_ids=logits.argmax(dim=-1), valid=valid)


class Plugin:
    @tokendraw.hookimpl
    def tokendraw_describe(self):
        {described}

    @tokendraw.hookimpl
    def tokendraw_probe(self, operation, host, need):
        return {probe}

    @tokendraw.hookimpl
    def tokendraw_build(self, operation, device, need):
        BUILT.append(device)
        {build}


plugin = Plugin()
"""
