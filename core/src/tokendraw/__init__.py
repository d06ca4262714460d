"""tokendraw turns logits into tokens with the best installed sampler, and says why.

This is the face for callers; :mod:`tokendraw.plugin` is the one for authors of plugins, and
:mod:`tokendraw.resolution` the one for tools that look at decisions. Every name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw._version import __version__ as __version__
    from tokendraw.backends.description import Need as Need
    from tokendraw.edits.slots import RequestSlots as RequestSlots
    from tokendraw.errors import InvalidInputError as InvalidInputError
    from tokendraw.errors import InvalidParameterError as InvalidParameterError
    from tokendraw.errors import PluginError as PluginError
    from tokendraw.errors import SamplerFallbackWarning as SamplerFallbackWarning
    from tokendraw.errors import SamplerUnavailableError as SamplerUnavailableError
    from tokendraw.errors import SettingsError as SettingsError
    from tokendraw.errors import SettingsWarning as SettingsWarning
    from tokendraw.errors import TokendrawError as TokendrawError
    from tokendraw.errors import TokendrawWarning as TokendrawWarning
    from tokendraw.errors import UntestedUpstreamWarning as UntestedUpstreamWarning
    from tokendraw.kept_set import KeptIds as KeptIds
    from tokendraw.kept_set import kept_ids as kept_ids
    from tokendraw.kept_set import kept_mask as kept_mask
    from tokendraw.operations.row_methods import Sampler as Sampler
    from tokendraw.output import LogprobsTensors as LogprobsTensors
    from tokendraw.output import SamplerOutput as SamplerOutput
    from tokendraw.output import ScoreOutput as ScoreOutput
    from tokendraw.output import TokenLogprob as TokenLogprob
    from tokendraw.output import VerifyOutput as VerifyOutput
    from tokendraw.parameters.batch_facts import BatchFacts as BatchFacts
    from tokendraw.parameters.batch_facts import RowKinds as RowKinds
    from tokendraw.parameters.drafts import Drafts as Drafts
    from tokendraw.parameters.metadata import SamplingMetadata as SamplingMetadata
    from tokendraw.parameters.params import SamplingParams as SamplingParams
    from tokendraw.providers import discover as discover
    from tokendraw.providers import load as load
    from tokendraw.providers import load_sampler as load_sampler
    from tokendraw.providers import resolve as resolve

_MODULES = ("filters", "philox", "plugin", "probabilities", "resolution", "row_parameters", "speculative")
__getattr__, __dir__ = lazy_names(__name__, modules=_MODULES)
