"""Loads the sampler that replaces a sampler of vLLM, and keeps vLLM running if it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

import tokendraw
from tokendraw import Drafts, Need, Sampler, SamplerOutput, SamplingMetadata, VerifyOutput
from tokendraw.engines import format_error
from tokendraw.plugin import PluginInfo, VerifyMode
from tokendraw.resolution import installed_version, read_settings
from tokendraw_vllm import _log
from tokendraw_vllm._engine import DISTRIBUTIONS
from tokendraw_vllm._v2_drafts import PART as VERIFICATION
from tokendraw_vllm._v2_processor import Processor

REFERENCE = "native"
"""Plain PyTorch: quicker than the sampling in PyTorch of vLLM's V1 runner on a CPU, and slower than kernels."""
_REFERENCE_PRIORITY = 0
"""Priority of plain PyTorch; those of compiled samplers and of kernels are higher."""

DRAFTING = "V2 drafting"
"""The replaced part of vLLM that draws drafts, for the log."""

Drawn = TypeVar("Drawn")


def _token_ids(output: SamplerOutput) -> Any:
    return output.token_ids


class Replacement:
    """A sampler in place of a sampler of vLLM. The first call that raises is its last."""

    def __init__(
        self, part: str, sampler: Sampler, *, seeds_every_row: bool, is_specialised: bool = True
    ) -> None:
        """Hold a loaded sampler.

        :param part: the replaced part of vLLM, for the log.
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
        self.seeds_every_row = seeds_every_row
        self.is_specialised = is_specialised

    def draw(
        self,
        logits: Tensor,
        metadata: Callable[[], SamplingMetadata],
        finish: Callable[[SamplerOutput], Drawn] = _token_ids,
    ) -> Drawn | None:
        """Draw a token in each row; None after a failure, now or before: then vLLM has to draw.

        :param logits: [B, V].
        :param metadata: makes the metadata of the batch.
        :param finish: makes the result of the draw; left out: ids [B] int64.
        """
        if self.sampler is None:
            return None
        try:
            return finish(self.sampler.sample(logits, metadata()))
        except Exception as error:
            self.fail(error)
            return None

    def fail(self, error: BaseException) -> None:
        """Leave all later draws to vLLM, with a line in the log."""
        if self.sampler is not None:
            _log.log_failed(self.part, self.sampler.name, error)
        self.sampler = None

    def verify(
        self,
        logits: Tensor,
        drafts: Callable[[], Drafts],
        metadata: Callable[[], SamplingMetadata],
        mode: VerifyMode,
    ) -> VerifyOutput | None:
        """Verify drafts; None after a failure, now or before: then vLLM has to verify.

        :param logits: [L, V].
        """
        if self.sampler is None or not self.verifies:
            return None
        try:
            described = metadata()  # first: it brings the parameters that the drafts are laid out with
            return self.sampler.verify(logits, drafts(), described, mode=mode)
        except Exception as error:
            self.fail_verification(error)
            return None

    def draft(self, logits: Tensor, metadata: Callable[[], SamplingMetadata]) -> Tensor | None:
        """Draw a draft in each row: [B] int64; None after a failure, now or before: then vLLM has to draw.

        :param logits: [B, V].
        """
        if self.sampler is None or not self.draws_drafts:
            return None
        try:
            return self.sampler.draft(logits, metadata()).token_ids
        except Exception as error:
            _log.log_failed(DRAFTING, self.sampler.name, error)
            self.draws_drafts = False
            return None

    def fail_verification(self, error: BaseException) -> None:
        """Leave all later drafts to vLLM, with a line in the log."""
        if self.sampler is not None and self.verifies:
            _log.log_failed(VERIFICATION, self.sampler.name, error)
        self.verifies = False


def load(
    part: str,
    device: torch.device,
    *,
    use_fp64: bool,
    batch_invariant: bool,
    reference_is_faster: bool,
    threshold: bool = False,
    prepare: Callable[[Sampler, bool], object] | None = None,
) -> Replacement | None:
    """Load the sampler for a part of vLLM; None, with a line in the log, if vLLM's stays. Raises nothing.

    :param part: the part, for the log.
    :param use_fp64: vLLM's ``use_fp64_gumbel``.
    :param batch_invariant: vLLM's ``VLLM_BATCH_INVARIANT``.
    :param reference_is_faster: whether tokendraw's reference in plain PyTorch is quicker than the part.
    :param threshold: whether draws return thresholds.
    :param prepare: called with the sampler and ``seeds_every_row`` of :class:`Replacement` before it counts as loaded.
    """
    try:
        requested = read_settings().sampler
        if (
            requested is None
            and not reference_is_faster
            and tokendraw.resolve(device=str(device)).chosen == REFERENCE
        ):
            _log.log_kept(
                f"'{REFERENCE}' is the best sampler for {device} here, and no quicker than vLLM's own. Install "
                f"{'tokendraw-cpu' if device.type == 'cpu' else 'tokendraw-triton-gumbel'}, or set "
                f"TOKENDRAW_SAMPLER={REFERENCE} to use it nevertheless",
                part=part,
            )
            return None
        need = Need(
            gumbel_dtype="fp64" if use_fp64 else "fp32", batch_invariant=batch_invariant, threshold=threshold
        )
        sampler = tokendraw.load_sampler(device=device, need=need)
        version, info = _plugin_of(sampler.name)
        seeds_every_row = getattr(info.operations["sample"], "seeding", "none") == "counter"
        if prepare is not None:
            prepare(sampler, seeds_every_row)
    except Exception as error:
        _log.log_kept(format_error(error), part=part)
        return None
    engine = next(filter(None, map(installed_version, DISTRIBUTIONS)), "")
    _log.log_replaced(part, f"{sampler.name} {version}, vLLM {engine}")
    is_specialised = info.priority > _REFERENCE_PRIORITY
    return Replacement(part, sampler, seeds_every_row=seeds_every_row, is_specialised=is_specialised)


def _plugin_of(name: str) -> tuple[str, PluginInfo]:
    """Return the version of a loaded plugin's distribution, and its description."""
    return next(
        (candidate.version, candidate.info)
        for candidate in tokendraw.discover()
        if candidate.name == name and candidate.info is not None
    )
