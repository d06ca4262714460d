"""tokendraw: turns logits into tokens with the best sampler that is installed, and says why.

Importing this package imports neither torch nor any backend: every name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokendraw._version import __version__

if TYPE_CHECKING:
    from tokendraw._batch_facts import BatchFacts, RowKinds
    from tokendraw._candidate import Candidate, Choice, Decision, Resolution, State
    from tokendraw._capabilities import Capabilities, Host, Need
    from tokendraw._drafts import Drafts
    from tokendraw._errors import (
        DuplicatePluginError,
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
    from tokendraw._load import discover, load_sampler, resolve
    from tokendraw._metadata import SamplingMetadata
    from tokendraw._output import LogprobsTensors, SamplerOutput, TokenLogprob, VerifyOutput
    from tokendraw._params import SamplingParams
    from tokendraw._plugin import (
        API_VERSION,
        PluginInfo,
        SamplerBackend,
        Upstream,
        VerifierBackend,
        hookimpl,
    )
    from tokendraw._sampler import Sampler

_HOMES = {
    "_batch_facts": ("BatchFacts", "RowKinds"),
    "_candidate": ("Candidate", "Choice", "Decision", "Resolution", "State"),
    "_capabilities": ("Capabilities", "Host", "Need"),
    "_drafts": ("Drafts",),
    "_errors": (
        "DuplicatePluginError",
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
    "_load": ("discover", "load_sampler", "resolve"),
    "_metadata": ("SamplingMetadata",),
    "_output": ("LogprobsTensors", "SamplerOutput", "TokenLogprob", "VerifyOutput"),
    "_params": ("SamplingParams",),
    "_plugin": ("API_VERSION", "PluginInfo", "SamplerBackend", "Upstream", "VerifierBackend", "hookimpl"),
    "_sampler": ("Sampler",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "API_VERSION",
    "BatchFacts",
    "Candidate",
    "Capabilities",
    "Choice",
    "Decision",
    "Drafts",
    "DuplicatePluginError",
    "Host",
    "InvalidInputError",
    "InvalidParameterError",
    "LogprobsTensors",
    "Need",
    "PluginError",
    "PluginInfo",
    "Resolution",
    "RowKinds",
    "Sampler",
    "SamplerBackend",
    "SamplerFallbackWarning",
    "SamplerOutput",
    "SamplerUnavailableError",
    "SamplingMetadata",
    "SamplingParams",
    "SettingsError",
    "SettingsWarning",
    "State",
    "TokenLogprob",
    "TokendrawError",
    "TokendrawWarning",
    "UntestedUpstreamWarning",
    "Upstream",
    "VerifierBackend",
    "VerifyOutput",
    "__version__",
    "discover",
    "hookimpl",
    "load_sampler",
    "resolve",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
