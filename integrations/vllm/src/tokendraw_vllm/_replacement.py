"""Loads the sampler that replaces a sampler of vLLM, and keeps vLLM running if it fails."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

import tokendraw
from tokendraw import Drafts, Need, RequestSlots, Sampler, SamplerOutput, SamplingMetadata, VerifyOutput
from tokendraw.plugin import PluginInfo, VerifyMode
from tokendraw.resolution import read_settings
from tokendraw_vllm import _engine, _parts
from tokendraw_vllm._parts import Names

REFERENCE = "native"
"""Plain PyTorch: quicker than the sampling in PyTorch of vLLM's V1 runner on a CPU, and slower than kernels."""
_REFERENCE_PRIORITY = 0
"""Priority of plain PyTorch; those of compiled samplers and of kernels are higher."""

Drawn = TypeVar("Drawn")


@dataclass(frozen=True, eq=False)
class Processor:
    """A loaded processor of logits."""

    name: str
    process: Callable[[Tensor, RequestSlots, Tensor, None, Drafts | None], Tensor]


class Replacement:
    """A sampler in place of a sampler of vLLM. The first call that raises is its last; on several ranks it raises."""

    def __init__(
        self, part: str, sampler: Sampler, *, seeds_every_row: bool, is_specialised: bool = True, by: str = ""
    ) -> None:
        """Hold a loaded sampler.

        :param part: the replaced part of vLLM, for the log.
        :param by: the plugin and vLLM, for the log.
        :param seeds_every_row: whether rows without a user's seed may get one, at no cost.
        :param is_specialised: whether the plugin's priority is above that of the reference in plain PyTorch.
        """
        self.part = part
        self.sampler: Sampler | None = sampler
        self.processor: Processor | None = None
        """Edits logits in the place of vLLM's processors, where loaded."""
        self.verifies = False
        """Whether drafts are verified too."""
        self.draws_drafts = False
        """Whether drafts are drawn too."""
        self.scores = False
        """Whether log-probabilities are computed too."""
        self.by = by
        self.seeds_every_row = seeds_every_row
        self.is_specialised = is_specialised

    def draw(
        self,
        logits: Tensor,
        metadata: Callable[[], SamplingMetadata],
        finish: Callable[[SamplerOutput], Drawn] = operator.attrgetter("token_ids"),
    ) -> Drawn | None:
        """Draw a token in each row; None after a failure, now or before: then vLLM has to draw.

        :param finish: makes the result of the draw; left out: ids [B] int64.
        """
        return self._try(lambda sampler: finish(sampler.sample(logits, metadata())), self.fail)

    def verify(
        self,
        logits: Tensor,
        drafts: Callable[[], Drafts],
        metadata: Callable[[], SamplingMetadata],
        mode: VerifyMode,
    ) -> VerifyOutput | None:
        """Verify drafts; None after a failure, now or before: then vLLM has to verify."""

        def verify(sampler: Sampler) -> VerifyOutput:
            described = metadata()  # first: it brings the parameters that the drafts are laid out with
            return sampler.verify(logits, drafts(), described, mode=mode)

        return self._try(verify, self.fail_verification) if self.verifies else None

    def draft(self, logits: Tensor, metadata: Callable[[], SamplingMetadata]) -> Tensor | None:
        """Draw a draft in each row: [B] int64; None after a failure, now or before: then vLLM has to draw."""
        if not self.draws_drafts:
            return None
        return self._try(lambda sampler: sampler.draft(logits, metadata()).token_ids, self._fail_drafts)

    def _try(self, call: Callable[[Sampler], Drawn], fail: Callable[[Exception], None]) -> Drawn | None:
        if self.sampler is None:
            return None
        try:
            return call(self.sampler)
        except Exception as error:
            fail(error)
            return None

    def fail(self, error: Exception) -> None:
        """Leave all later draws to vLLM, with a line in the log."""
        self._give_up(self.part, error)
        self.sampler = None

    def fail_verification(self, error: Exception) -> None:
        """Leave all later drafts to vLLM, with a line in the log."""
        if self.verifies:
            self._give_up(_parts.VERIFICATION, error)
        self.verifies = False

    def _fail_drafts(self, error: Exception) -> None:
        self._give_up(_parts.DRAFTING, error)
        self.draws_drafts = False

    def _give_up(self, part: str, error: Exception) -> None:
        if self.sampler is not None:
            _parts.give_up(part, self.sampler.name, error)


def load(
    part: str,
    device: torch.device,
    need: Need,
    *,
    reference_is_faster: bool,
    prepare: Callable[[Sampler, bool], object] | None = None,
    names: Names | str | None = None,
) -> Replacement | None:
    """Load the sampler for a part of vLLM; None, with a line in the log, if vLLM's stays.

    Raises nothing, unless other ranks draw the same tokens.

    :param part: the part, for the log.
    :param reference_is_faster: whether tokendraw's reference in plain PyTorch is quicker than the part.
    :param prepare: called with the sampler and ``seeds_every_row`` of :class:`Replacement` before it counts as loaded.
    :param names: what the first of several ranks chose for all, by :func:`choose`; None: the best is chosen here.
    """
    with _parts.vllm_stays_if_it_raises(part):
        if names is None:
            names = _reason_to_stay(device, reference_is_faster=reference_is_faster)
        if isinstance(names, str):
            _parts.log_kept(names, part=part)
            return None
        sampler = tokendraw.load_sampler(names, device=device, need=need)
        version, info = _plugin_of(sampler.name)
        seeds_every_row = getattr(info.operations["sample"], "seeding", "none") == "counter"
        if prepare is not None:
            prepare(sampler, seeds_every_row)
        by = f"{sampler.name} {version}, vLLM {_engine.version()}"
        if _engine.is_tested():  # else the proof comes first
            _parts.log_replaced(part, by)
        is_specialised = info.priority > _REFERENCE_PRIORITY
        return Replacement(
            part, sampler, seeds_every_row=seeds_every_row, is_specialised=is_specialised, by=by
        )
    return None


def choose(
    device: torch.device, need: Need, *, reference_is_faster: bool, verifies: bool = False
) -> Names | str:
    """Choose for several ranks: the names of the best sampler that can be loaded here, or why vLLM's own stays.

    :param verifies: whether drafts are verified too. Without a plugin that can, vLLM verifies.
    """
    reason = _reason_to_stay(device, reference_is_faster=reference_is_faster)
    if reason is not None:
        return reason
    sampler = tokendraw.load_sampler(device=device, need=need)
    if verifies:
        with contextlib.suppress(tokendraw.TokendrawError):
            sampler.prepare("verify")
    return sampler.choices


def _reason_to_stay(device: torch.device, *, reference_is_faster: bool) -> str | None:
    """Say why vLLM's own sampler stays although tokendraw has one; None: it does not."""
    if reference_is_faster or read_settings().sampler is not None:
        return None
    if tokendraw.resolve(device=str(device)).chosen != REFERENCE:
        return None
    return (
        f"'{REFERENCE}' is the best sampler for {device} here, and no quicker than vLLM's own. Install "
        f"{'tokendraw-cpu' if device.type == 'cpu' else 'tokendraw-triton-gumbel'}, or set "
        f"TOKENDRAW_SAMPLER={REFERENCE} to use it nevertheless"
    )


def _plugin_of(name: str) -> tuple[str, PluginInfo]:
    """Return the version of a loaded plugin's distribution, and its description."""
    return next(
        (candidate.version, candidate.info)
        for candidate in tokendraw.discover()
        if candidate.name == name and candidate.info is not None
    )
