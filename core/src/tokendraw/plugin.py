"""The face for authors of plugins: the description of a sampler, and the hooks of the negotiation with the core.

A complete plugin, in the package that the entry point names::

    # pyproject.toml
    #   [project.entry-points."tokendraw.plugins"]
    #   acme = "acme_tokendraw:plugin"

    from tokendraw.plugin import Capabilities, PluginInfo, Upstream, hookimpl

    class AcmePlugin:
        @hookimpl
        def tokendraw_describe(self):
            return PluginInfo(
                name="acme",
                api_version=1,
                priority=50,
                summary="samples on Acme accelerators",
                upstream=Upstream("acme-kernels", ">=2.1,<3", tested=("2.1.4", "2.3.0")),
                operations={"sample": Capabilities(device_types=("cuda",), dtypes=("float32",))},
            )

        @hookimpl
        def tokendraw_probe(self, operation, host, need):
            return None  # or a sentence: what is missing on this machine

        @hookimpl
        def tokendraw_build(self, operation, device, need):
            from acme_tokendraw.sampler import AcmeSampler  # heavy imports belong here

            return AcmeSampler(device, need)

    plugin = AcmePlugin()

An operation of another distribution comes by an entry point ``name = "package.module:OPERATION"`` of the group
``tokendraw.operations``, where OPERATION is an :class:`Operation` and ``name`` its name. The module that the record
names holds ``prove``, ``CALLS`` and ``PROVIDER``: a :class:`Call` for each method, and a :class:`Provider` whose
methods :func:`provider_method` makes of these. ``tokendraw_engine_ops.tensor_function`` makes all three
where the methods are functions of tensors. ``tokendraw.load(name)`` returns the provider.

Importing that module must not import torch, triton or the upstream library: ``tokendraw list`` loads every plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw._torch.importing import untraced as untraced
    from tokendraw._torch.tensors import check_dense_rows as check_dense_rows
    from tokendraw._torch.tensors import check_device as check_device
    from tokendraw._torch.tensors import check_device_of as check_device_of
    from tokendraw._torch.tensors import check_dtype as check_dtype
    from tokendraw._torch.tensors import check_integers as check_integers
    from tokendraw._torch.tensors import check_plain as check_plain
    from tokendraw._torch.tensors import check_vector as check_vector
    from tokendraw._torch.tensors import first_of as first_of
    from tokendraw._torch.tensors import is_capturing as is_capturing
    from tokendraw._torch.tensors import misfit as misfit
    from tokendraw._torch.threads import one_thread as one_thread
    from tokendraw.backends.description import API_VERSION as API_VERSION
    from tokendraw.backends.description import DRAFT_KINDS as DRAFT_KINDS
    from tokendraw.backends.description import FILTER_ORDERS as FILTER_ORDERS
    from tokendraw.backends.description import FILTERS as FILTERS
    from tokendraw.backends.description import GUMBEL_DTYPES as GUMBEL_DTYPES
    from tokendraw.backends.description import INPUT_DTYPES as INPUT_DTYPES
    from tokendraw.backends.description import LOGPROBS_MODES as LOGPROBS_MODES
    from tokendraw.backends.description import MOMENTS as MOMENTS
    from tokendraw.backends.description import VERIFY_MODES as VERIFY_MODES
    from tokendraw.backends.description import Capabilities as Capabilities
    from tokendraw.backends.description import DraftKind as DraftKind
    from tokendraw.backends.description import Filter as Filter
    from tokendraw.backends.description import FilterOrder as FilterOrder
    from tokendraw.backends.description import Granularity as Granularity
    from tokendraw.backends.description import GumbelDtype as GumbelDtype
    from tokendraw.backends.description import Host as Host
    from tokendraw.backends.description import HostCapabilities as HostCapabilities
    from tokendraw.backends.description import HostNeed as HostNeed
    from tokendraw.backends.description import LogprobsMode as LogprobsMode
    from tokendraw.backends.description import Moment as Moment
    from tokendraw.backends.description import Need as Need
    from tokendraw.backends.description import Operation as Operation
    from tokendraw.backends.description import PluginInfo as PluginInfo
    from tokendraw.backends.description import Release as Release
    from tokendraw.backends.description import Requirement as Requirement
    from tokendraw.backends.description import Seeding as Seeding
    from tokendraw.backends.description import TieNeed as TieNeed
    from tokendraw.backends.description import TieRule as TieRule
    from tokendraw.backends.description import Upstream as Upstream
    from tokendraw.backends.description import VerifyMode as VerifyMode
    from tokendraw.backends.discovery.discover import hookimpl as hookimpl
    from tokendraw.backends.resolution.upstream import release_of as release_of
    from tokendraw.calls.call import Call as Call
    from tokendraw.calls.call import OutputCheck as OutputCheck
    from tokendraw.calls.call import check_type as check_type
    from tokendraw.calls.call import wrong_object as wrong_object
    from tokendraw.calls.dispatch import Provider as Provider
    from tokendraw.calls.dispatch import dispatch as dispatch
    from tokendraw.calls.dispatch import provider_method as provider_method
    from tokendraw.edits import LogitsProcessorBackend as LogitsProcessorBackend
    from tokendraw.edits import ProcessCapabilities as ProcessCapabilities
    from tokendraw.edits import ProcessNeed as ProcessNeed
    from tokendraw.edits.tables import EditFacts as EditFacts
    from tokendraw.edits.tables import RequestTables as RequestTables
    from tokendraw.errors import printable as printable
    from tokendraw.kept_set import KeptExtremes as KeptExtremes
    from tokendraw.kept_set import kept_extremes as kept_extremes
    from tokendraw.kept_set import threshold_between as threshold_between
    from tokendraw.logprobs import RowMasses as RowMasses
    from tokendraw.logprobs import best_token_ids as best_token_ids
    from tokendraw.logprobs import least_shown as least_shown
    from tokendraw.logprobs import log_kept_mass_by_step as log_kept_mass_by_step
    from tokendraw.logprobs import logprobs_by_step as logprobs_by_step
    from tokendraw.logprobs import mode_values as mode_values
    from tokendraw.logprobs import pad_logprobs as pad_logprobs
    from tokendraw.operations import SamplerBackend as SamplerBackend
    from tokendraw.operations import ScorerBackend as ScorerBackend
    from tokendraw.operations import VerifierBackend as VerifierBackend
    from tokendraw.operations import VerifyCapabilities as VerifyCapabilities
    from tokendraw.output import PAD_LOGPROB as PAD_LOGPROB
    from tokendraw.output import PAD_TOKEN_ID as PAD_TOKEN_ID
    from tokendraw.parameters.fields import check_flag as check_flag
    from tokendraw.parameters.fields import integer as integer
    from tokendraw.parameters.params import EDITS as EDITS
    from tokendraw.parameters.params import Edit as Edit
    from tokendraw.philox import numpy_is_usable as numpy_is_usable

__getattr__, __dir__ = lazy_names(__name__)
