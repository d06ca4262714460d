"""The sampler under test: built by itself, without a companion, beside what it says that it can do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Self

import torch
from numpy.typing import NDArray

from tokendraw import _host
from tokendraw._candidate import Candidate, State
from tokendraw._capabilities import FILTER_ORDERS, Capabilities, Filter, GumbelDtype, LogprobsMode, Need
from tokendraw._errors import SamplerUnavailableError
from tokendraw._load import _target
from tokendraw._metadata import SamplingMetadata
from tokendraw._output import SamplerOutput
from tokendraw._params import SamplingParams
from tokendraw._plugin import SamplerBackend
from tokendraw.testing._effort import Effort
from tokendraw.testing._trial import Violation

Build = Callable[[Need], SamplerBackend]


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
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self.device = torch.device(device)
        self.effort = effort or Effort.of(quick=quick, device_type=self.device.type)
        self.seed = seed
        self._build = functools.cache(build)

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
        from tokendraw import _prove, _settings
        from tokendraw._discovery import gather

        target, host = _target(device)
        # Whatever filter order it has is what it is tested for, so either one will do.
        need = Need(filter_orders=FILTER_ORDERS)
        choice = replace(_settings.read().choice(name), source="the conformance kit")
        discovery = gather("sample", host, need, choice)
        named = [candidate for candidate in discovery.candidates if candidate.name == name]
        if not any(candidate.state is State.AVAILABLE for candidate in named):
            reason = named[0].reason if named else "no plugin of that name is installed"
            raise SamplerUnavailableError(f"{name!r} cannot be checked on {host}: {reason}.")
        capabilities = discovery.offered(name, "sample")

        def build(need: Need) -> SamplerBackend:
            backend: SamplerBackend = _prove.build(discovery.hooks[name], capabilities, target, need)
            return backend

        return cls(name, capabilities=capabilities, device=target, build=build, quick=quick, seed=seed)

    @property
    def candidate(self) -> Candidate:
        """The subject as resolution would see it."""
        from tokendraw._plugin import API_VERSION, PluginInfo

        info = PluginInfo(
            name=self.name, api_version=API_VERSION, priority=0, operations={"sample": self.capabilities}
        )
        return Candidate(name=self.name, state=State.LOADED, info=info)

    @property
    def host(self) -> Any:
        """The facts about its device."""
        return _host.detect(str(self.device))

    def has(self, which: Filter) -> bool:
        """Whether it applies a filter, per row or one value for the whole batch."""
        return any(name == which for name, _ in self.capabilities.filters)

    def backend(
        self, mode: LogprobsMode | None = None, gumbel_dtype: GumbelDtype | None = None
    ) -> SamplerBackend:
        """The sampler, built for a logprobs mode and a precision of the noise; None: the first that it has."""
        need = _plainest_need(self.capabilities)
        return self._build(
            Need(
                logprobs_mode=mode or need.logprobs_mode,
                filter_orders=self.capabilities.filter_orders,
                gumbel_dtype=gumbel_dtype or need.gumbel_dtype,
            )
        )

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
                metadata = _for_every_row(params, len(logits), self.device)
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
        inplace: bool = False,
        mode: LogprobsMode | None = None,
        gumbel_dtype: GumbelDtype | None = None,
    ) -> SamplerOutput:
        """One call with ready arguments, its output checked as in :meth:`sample`."""
        output = self.backend(mode, gumbel_dtype).sample(logits, metadata, inplace=inplace)
        check_form(output, logits)
        return output

    def tokens(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """The ids of :meth:`sample`, [B] int64 on the host."""
        found: NDArray[Any] = self.sample(*args, **kwargs).token_ids.cpu().numpy()
        return found


def check_form(output: SamplerOutput, logits: torch.Tensor) -> None:
    """Hold the form of an output against the contract.

    :raises Violation: names the field, what it needs and what was found.
    """
    rows, vocab_size = logits.shape
    for field, dtype in (("token_ids", torch.int64), ("valid", torch.bool)):
        tensor = getattr(output, field, None)
        needed = f"{field} needs [{rows}] {dtype} on {logits.device}"
        if not isinstance(tensor, torch.Tensor):
            raise Violation(f"{needed}, found {type(tensor).__name__}")
        if (list(tensor.shape), tensor.dtype, tensor.device) != ([rows], dtype, logits.device):
            raise Violation(f"{needed}, found {list(tensor.shape)} {tensor.dtype} on {tensor.device}")
    outside = (output.token_ids < 0) | (output.token_ids >= vocab_size)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise Violation(
            f"token_ids need to lie in [0, {vocab_size}), found {int(output.token_ids[row])} in row {row} of {rows}"
        )


def _for_every_row(params: SamplingParams, rows: int, device: torch.device) -> SamplingMetadata:
    """The metadata of ``rows`` equal requests without a seed, of which one is checked and laid out."""
    one = SamplingMetadata.from_params([params], device=device)
    given = {field.name: getattr(one, field.name) for field in fields(one)}
    columns: dict[str, Any] = {
        name: c.repeat(rows) for name, c in given.items() if isinstance(c, torch.Tensor)
    }
    return replace(one, **columns)


def _plainest_need(capabilities: Capabilities) -> Need:
    modes, dtypes = capabilities.logprobs_modes, capabilities.gumbel_dtypes
    return Need(
        logprobs_mode=modes[0] if modes else "raw_logprobs",
        filter_orders=capabilities.filter_orders,
        gumbel_dtype=dtypes[0] if dtypes else "fp32",
    )
