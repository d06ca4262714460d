"""tokendraw turns logits into tokens with the best sampler that is installed, and says why.

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
    from tokendraw._exchange.capabilities import Need
    from tokendraw._exchange.drafts import Drafts
    from tokendraw._exchange.facts import BatchFacts, RowKinds
    from tokendraw._exchange.metadata import SamplingMetadata
    from tokendraw._exchange.output import LogprobsTensors, SamplerOutput, TokenLogprob
    from tokendraw._exchange.params import SamplingParams
    from tokendraw._exchange.request_slots.slots import RequestSlots
    from tokendraw._loading.load import load, load_sampler
    from tokendraw._loading.resolve import discover, resolve
    from tokendraw._loading.sampler import Sampler
    from tokendraw._messages.errors import (
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
    from tokendraw.paged_kv import PagedKVPlan
    from tokendraw.vocab_parallel.shard import VocabShard

_HOMES = {
    "_exchange.capabilities": ("Need",),
    "_exchange.facts": ("BatchFacts", "RowKinds"),
    "_exchange.metadata": ("SamplingMetadata",),
    "_exchange.output": ("LogprobsTensors", "SamplerOutput", "TokenLogprob"),
    "_exchange.params": ("SamplingParams",),
    "_exchange.request_slots.slots": ("RequestSlots",),
    "_loading.load": ("load", "load_sampler"),
    "_loading.resolve": ("discover", "resolve"),
    "_loading.sampler": ("Sampler",),
    "_messages.errors": (
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
    "_exchange.drafts": ("Drafts",),
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
