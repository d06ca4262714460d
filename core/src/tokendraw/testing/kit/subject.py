"""The sampler under test: built by itself, without a companion, beside what it says that it can do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Self

import torch
from numpy.typing import NDArray

from tokendraw import operations
from tokendraw._exchange.backends import SamplerBackend
from tokendraw._exchange.capabilities import (
    FILTER_ORDERS,
    Capabilities,
    Filter,
    GumbelDtype,
    LogprobsMode,
    Need,
)
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._exchange.output import SamplerOutput, VerifyOutput
from tokendraw._exchange.output_checks import wrong_chains, wrong_output, wrong_tokens, wrong_verify_output
from tokendraw._exchange.params import SamplingParams
from tokendraw._exchange.row_limits import unserved
from tokendraw._loading.load import _target
from tokendraw._machine import detect
from tokendraw._messages.errors import SamplerUnavailableError
from tokendraw._resolution.candidate import Candidate, State
from tokendraw.operations.verify.backend import VerifierBackend
from tokendraw.operations.verify.capabilities import VerifyCapabilities, VerifyMode
from tokendraw.operations.verify.drafts import Drafts
from tokendraw.operations.verify.limits import undrafted
from tokendraw.testing.kit.effort import Effort
from tokendraw.testing.kit.trial import Violation

Build = Callable[[Need], SamplerBackend]
BuildVerifier = Callable[[Need], VerifierBackend]


class Subject:
    """A sampler and its capabilities on one device.

    :param name: how reports call it.
    :param capabilities: what it advertises, which decides what it is tested for.
    :param device: where it draws.
    :param build: makes the sampler for a need; called once for every need that the kit comes up with.
    :param quick: fewer draws, vocabularies up to 50,257.
    :param seed: of everything random in the run. A run repeats itself bit by bit, as far as the sampler does.
    :param effort: sizes of one's own in place of quick ones or full ones: :meth:`Effort.tiny` suits kernels in an
        interpreter.
    :param verify_capabilities: what it advertises for the operation ``verify``; None: it verifies nothing.
    :param build_verifier: as ``build``, for that operation; None: what ``build`` makes serves both.
    """

    def __init__(
        self,
        name: str,
        *,
        capabilities: Capabilities,
        device: torch.device | str,
        build: Build,
        quick: bool = False,
        seed: int = 0,
        effort: Effort | None = None,
        verify_capabilities: VerifyCapabilities | None = None,
        build_verifier: BuildVerifier | None = None,
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self.device = torch.device(device)
        self.effort = effort or Effort.of(quick=quick, device_type=self.device.type)
        self.seed = seed
        self.verify_capabilities = verify_capabilities
        self._build: Callable[[Need], Any] = functools.cache(build)
        self._build_verifier: Callable[[Need], Any] = self._build
        if build_verifier:
            self._build_verifier = functools.cache(build_verifier)

    def __repr__(self) -> str:
        return f"<Subject {self.name!r} on {self.device}>"

    @classmethod
    def installed(
        cls, name: str, *, device: torch.device | str | None = None, quick: bool = False, seed: int = 0
    ) -> Self:
        """An installed plugin, found as users find it.

        :param device: None: the accelerator if torch sees one, else the CPU.
        :raises SamplerUnavailableError: it is not installed, or cannot serve this machine; the reason in words.
        :raises PluginError: it did not build, or its proof draw failed.
        """
        from tokendraw._discovery import settings
        from tokendraw._loading.resolve import gather
        from tokendraw._serving import proof

        target, host = _target(device)
        # Whatever filter order it has is what it is tested for, so either one will do.
        need = Need(filter_orders=FILTER_ORDERS)
        choice = replace(settings.read_settings().choice(name), source="the conformance kit")
        discovery = gather(host, choice)
        sample, verify = operations.get("sample"), operations.get("verify")
        named = [candidate for candidate in discovery.candidates(sample, need) if candidate.name == name]
        if not any(candidate.state is State.AVAILABLE for candidate in named):
            reason = named[0].reason if named else "no plugin of that name is installed"
            raise SamplerUnavailableError(f"{name!r} cannot be checked on {host}: {reason}.")
        capabilities = discovery.offered(name, sample)

        def build(need: Need) -> SamplerBackend:
            backend: SamplerBackend = proof.build(sample, discovery.hooks[name], capabilities, target, need)
            return backend

        can_verify = any(
            c.name == name and c.state is State.AVAILABLE for c in discovery.candidates(verify, need)
        )
        offered = discovery.offered(name, verify) if can_verify else None

        def build_verifier(need: Need) -> VerifierBackend:
            assert offered is not None
            verifier: VerifierBackend = proof.build(verify, discovery.hooks[name], offered, target, need)
            return verifier

        return cls(
            name,
            capabilities=capabilities,
            device=target,
            build=build,
            quick=quick,
            seed=seed,
            verify_capabilities=offered,
            build_verifier=build_verifier,
        )

    @property
    def candidate(self) -> Candidate:
        """The subject as resolution would see it."""
        from tokendraw._exchange.plugin_info import API_VERSION, PluginInfo

        operations: dict[str, Capabilities] = {"sample": self.capabilities}
        if self.verify_capabilities is not None:
            operations["verify"] = self.verify_capabilities
        info = PluginInfo(name=self.name, api_version=API_VERSION, priority=0, operations=operations)
        return Candidate(name=self.name, state=State.LOADED, info=info)

    @property
    def host(self) -> Any:
        """The facts about its device."""
        return detect.detect_host(str(self.device))

    def offered(self, operation: str) -> Capabilities | None:
        """What it advertises for an operation; None: it does not offer that."""
        return self.capabilities if operation == "sample" else self.verify_capabilities

    @property
    def verifying(self) -> VerifyCapabilities:
        """What it advertises for the operation ``verify``, which it offers."""
        assert self.verify_capabilities is not None
        return self.verify_capabilities

    def has(self, which: Filter) -> bool:
        """Whether it applies a filter, per row or one value for the whole batch."""
        return any(name == which for name, _ in self.capabilities.filters)

    def backend(
        self, mode: LogprobsMode | None = None, gumbel_dtype: GumbelDtype | None = None
    ) -> SamplerBackend:
        """The sampler, built for a logprobs mode and a precision of the noise; None: the first that it has."""
        backend: SamplerBackend = self._build(_need(self.capabilities, mode, gumbel_dtype))
        return backend

    def verifier(
        self, mode: LogprobsMode | None = None, gumbel_dtype: GumbelDtype | None = None
    ) -> VerifierBackend:
        """As :meth:`backend`, for the operation ``verify``."""
        verifier: VerifierBackend = self._build_verifier(_need(self.verifying, mode, gumbel_dtype))
        return verifier

    def sample(
        self,
        logits: torch.Tensor | NDArray[Any],
        params: SamplingParams | Sequence[SamplingParams],
        positions: Any = None,
        *,
        row_index: Any = None,
        mode: LogprobsMode | None = None,
        gumbel_dtype: GumbelDtype | None = None,
    ) -> SamplerOutput:
        """One call on the subject's device; the form of what it returns is checked every time.

        :param logits: [B, V], an array or a tensor anywhere; kept as it is if it is on the device already.
        :param params: one for every row, or one for all.
        :param positions: [B]; None: 0, 1, 2 ... where a row has a seed.
        :raises Violation: the output has a wrong shape, dtype or device, or an id outside [0, V).
        """
        logits = torch.as_tensor(logits).to(self.device)
        if isinstance(params, SamplingParams):
            if params.seed is None and positions is None and row_index is None and len(logits):
                metadata = for_every_row(params, len(logits), self.device)
                return self.call(logits, metadata, mode=mode, gumbel_dtype=gumbel_dtype)
            params = [params] * len(logits)
        if positions is None and any(p.seed is not None for p in params):
            positions = torch.arange(len(logits))
        metadata = SamplingMetadata.from_params(
            params, device=self.device, positions=positions, row_index=row_index
        )
        return self.call(logits, metadata, mode=mode, gumbel_dtype=gumbel_dtype)

    @torch.no_grad()
    def call(
        self,
        logits: torch.Tensor,
        metadata: SamplingMetadata,
        *,
        mode: LogprobsMode | None = None,
        gumbel_dtype: GumbelDtype | None = None,
    ) -> SamplerOutput:
        """One call with ready arguments, its output checked as in :meth:`sample`."""
        output = self.backend(mode, gumbel_dtype).sample(logits, metadata)
        _require(wrong_output(output, logits, None) or wrong_tokens(output, logits))
        return output

    @torch.no_grad()
    def verify(
        self,
        target_logits: torch.Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        mode: VerifyMode,
        *,
        logprobs_mode: LogprobsMode | None = None,
        gumbel_dtype: GumbelDtype | None = None,
    ) -> VerifyOutput:
        """One verification on the subject's device; the form of what it returns is checked every time.

        :raises Violation: the output has a wrong shape, dtype or device, or holds chains that cannot be.
        """
        lacking = self.unverified(target_logits, drafts, metadata, mode)
        assert lacking is None, f"the kit asked for what is not advertised: {lacking}"
        verifier = self.verifier(logprobs_mode, gumbel_dtype)
        output = verifier.verify(target_logits, drafts, metadata, mode=mode)
        _require(
            wrong_verify_output(output, target_logits, drafts, None)
            or wrong_chains(output, target_logits, drafts)
        )
        return output

    def unverified(
        self, target_logits: torch.Tensor, drafts: Drafts, metadata: SamplingMetadata, mode: VerifyMode
    ) -> str | None:
        """What of a verification the core would not hand to it, or None."""
        size = target_logits.shape[1]
        return unserved(self.verifying, metadata.facts, size) or undrafted(self.verifying, drafts, mode)

    @torch.no_grad()
    def draft(
        self, logits: torch.Tensor, metadata: SamplingMetadata, *, gumbel_dtype: GumbelDtype | None = None
    ) -> SamplerOutput:
        """One draft a row from the verifier, its output checked as in :meth:`sample`."""
        output = self.verifier(None, gumbel_dtype).sample(logits, metadata, draft=True)
        _require(wrong_output(output, logits, None) or wrong_tokens(output, logits))
        return output

    def tokens(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """The ids of :meth:`sample`, [B] int64 on the host."""
        found: NDArray[Any] = self.sample(*args, **kwargs).token_ids.cpu().numpy()
        return found


def for_every_row(params: SamplingParams, rows: int, device: torch.device) -> SamplingMetadata:
    """The metadata of ``rows`` equal requests without a seed, of which one is checked and laid out."""
    one = SamplingMetadata.from_params([params], device=device)
    given = {field.name: getattr(one, field.name) for field in fields(one)}
    columns: dict[str, Any] = {
        name: c.repeat(rows) for name, c in given.items() if isinstance(c, torch.Tensor)
    }
    return replace(one, **columns)


def _require(reason: str | None) -> None:
    if reason is not None:
        raise Violation(f"a call needs to return {reason}")


def _need(capabilities: Capabilities, mode: LogprobsMode | None, gumbel_dtype: GumbelDtype | None) -> Need:
    """The plainest need, but for what is given."""
    modes, dtypes = capabilities.logprobs_modes, capabilities.gumbel_dtypes
    return Need(
        logprobs_mode=mode or (*modes, "raw_logprobs")[0],
        filter_orders=capabilities.filter_orders,
        gumbel_dtype=gumbel_dtype or (*dtypes, "fp32")[0],
    )
