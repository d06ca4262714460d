"""tokendraw turns logits into tokens with the best installed sampler, and says why.

This is the face for callers; :mod:`tokendraw.plugin` is the one for authors of plugins, and
:mod:`tokendraw.resolution` the one for tools that look at decisions. Importing it imports neither torch nor any
backend: every name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokendraw._lazy import lazy_names
from tokendraw._version import __version__

if TYPE_CHECKING:
    from tokendraw.backends.description.capabilities import Need
    from tokendraw.errors.exceptions import (
        InvalidInputError,
        InvalidParameterError,
        PluginError,
        SamplerFallbackWarning,
        SamplerUnavailableError,
        SettingsError,
        SettingsWarning,
        TokendrawError,
        TokendrawWarning,
        UntestedUpstreamWarning,
    )
    from tokendraw.operations.verify.output import VerifyOutput
    from tokendraw.output import LogprobsTensors, SamplerOutput, TokenLogprob
    from tokendraw.paged_kv import PagedKVPlan
    from tokendraw.parameters.batch_facts import BatchFacts, RowKinds
    from tokendraw.parameters.drafts import Drafts
    from tokendraw.parameters.metadata import SamplingMetadata
    from tokendraw.parameters.params import SamplingParams
    from tokendraw.providers.load import load, load_sampler
    from tokendraw.providers.resolve import discover, resolve
    from tokendraw.providers.sampler import Sampler
    from tokendraw.request_slots.slots import RequestSlots
    from tokendraw.vocab_parallel.shard import VocabShard

_HOMES = {
    "backends.description.capabilities": ("Need",),
    "parameters.batch_facts": ("BatchFacts", "RowKinds"),
    "parameters.metadata": ("SamplingMetadata",),
    "output": ("LogprobsTensors", "SamplerOutput", "TokenLogprob"),
    "parameters.params": ("SamplingParams",),
    "request_slots.slots": ("RequestSlots",),
    "providers.load": ("load", "load_sampler"),
    "providers.resolve": ("discover", "resolve"),
    "providers.sampler": ("Sampler",),
    "errors.exceptions": (
        "InvalidInputError",
        "InvalidParameterError",
        "PluginError",
        "SamplerFallbackWarning",
        "SamplerUnavailableError",
        "SettingsError",
        "SettingsWarning",
        "TokendrawError",
        "TokendrawWarning",
        "UntestedUpstreamWarning",
    ),
    "parameters.drafts": ("Drafts",),
    "operations.verify.output": ("VerifyOutput",),
    "paged_kv": ("PagedKVPlan",),
    "vocab_parallel.shard": ("VocabShard",),
}

__all__ = [
    "BatchFacts",
    "Drafts",
    "InvalidInputError",
    "InvalidParameterError",
    "LogprobsTensors",
    "Need",
    "PagedKVPlan",
    "PluginError",
    "RequestSlots",
    "RowKinds",
    "Sampler",
    "SamplerFallbackWarning",
    "SamplerOutput",
    "SamplerUnavailableError",
    "SamplingMetadata",
    "SamplingParams",
    "SettingsError",
    "SettingsWarning",
    "TokenLogprob",
    "TokendrawError",
    "TokendrawWarning",
    "UntestedUpstreamWarning",
    "VerifyOutput",
    "VocabShard",
    "__version__",
    "discover",
    "load",
    "load_sampler",
    "resolve",
]

_OTHER_FACES = ("plugin", "resolution")
_MODULES = (*_OTHER_FACES, "paged_kv", "philox", "probabilities", "sm90_w4", "speculative", "vocab_parallel")
"""Public modules, which are imported when they are first asked for."""
_own = lazy_names(globals(), _HOMES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tokendraw.{name}")
    for face in () if name in __all__ or name.startswith("_") else _OTHER_FACES:
        # Their names were this module's once: plugins that were written then still load.
        module = importlib.import_module(f"tokendraw.{face}")
        if name in module.__all__:
            return getattr(module, name)
    return _own(name)


def __dir__() -> list[str]:
    return __all__
