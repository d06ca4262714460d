"""Loads the sampler that draws in the place of one of vLLM's, and keeps vLLM running whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import tokendraw
from tokendraw import Need, Sampler, SamplingMetadata
from tokendraw.resolution import installed_version, read_settings
from tokendraw_vllm import _log
from tokendraw_vllm._supported import DISTRIBUTIONS

_REFERENCE = "native"
"""Plain PyTorch: quicker than vLLM's own sampling in PyTorch, which is what its V1 runner has on a CPU, and slower
than kernels.
"""


class Drawing:
    """A sampler in the place of one of vLLM's. The first call that raises is its last."""

    def __init__(self, what: str, sampler: Sampler, *, seeds_unasked: bool) -> None:
        """Hold a sampler that was loaded.

        :param what: it replaces, for the log.
        :param seeds_unasked: whether rows may come with seeds that no user asked for, at no cost.
        """
        self.what = what
        self.sampler: Sampler | None = sampler
        self.seeds_unasked = seeds_unasked

    def draw(self, logits: Tensor, metadata: Callable[[], SamplingMetadata]) -> Tensor | None:
        """Draw one token a row: ids [B] int64; None if that failed, now or before, and vLLM has to.

        :param logits: [B, V].
        :param metadata: makes that of the batch.
        """
        if self.sampler is None:
            return None
        try:
            return self.sampler.sample(logits, metadata()).token_ids
        except Exception as error:
            _log.failed(self.what, self.sampler.name, error)
            self.sampler = None
            return None


def load(
    what: str,
    device: torch.device,
    *,
    use_fp64: bool,
    batch_invariant: bool,
    reference_gains: bool,
    prepare: Callable[[Sampler, bool], object] | None = None,
) -> Drawing | None:
    """Load what draws in the place of a part of vLLM; None if that is left alone, which the log says. Raises nothing.

    :param what: the part, for the log.
    :param use_fp64: vLLM's ``use_fp64_gumbel``.
    :param batch_invariant: vLLM's ``VLLM_BATCH_INVARIANT``.
    :param reference_gains: whether tokendraw's reference in plain PyTorch is quicker than that part.
    :param prepare: called with the sampler and ``seeds_unasked`` of :class:`Drawing` before it counts as loaded.
    """
    try:
        asked = read_settings().sampler
        if (
            asked is None
            and not reference_gains
            and tokendraw.resolve(device=str(device)).chosen == _REFERENCE
        ):
            _log.left_alone(
                f"'{_REFERENCE}' is the best sampler for {device} here, and no quicker than vLLM's own. Install "
                f"tokendraw-triton-gumbel, or set TOKENDRAW_SAMPLER={_REFERENCE} to use it nevertheless",
                what=what,
            )
            return None
        need = Need(gumbel_dtype="fp64" if use_fp64 else "fp32", batch_invariant=batch_invariant)
        sampler = tokendraw.load_sampler(device=device, need=need)
        version, seeding = _described(sampler.name)
        seeds_unasked = seeding == "counter"
        if prepare is not None:
            prepare(sampler, seeds_unasked)
    except Exception as error:
        _log.left_alone(_log.spoken(error), what=what)
        return None
    engine = next(filter(None, map(installed_version, DISTRIBUTIONS)), "")
    _log.replaced(what, f"{sampler.name} {version}, vLLM {engine}")
    return Drawing(what, sampler, seeds_unasked=seeds_unasked)


def reason_to_leave_alone(logprobs_mode: str, return_sampling_mask: bool = False) -> str | None:
    """Return why one of vLLM's samplers has to draw every batch itself; None where tokendraw may draw."""
    from vllm.config.model import PROCESSED_LOGPROBS_MODES

    if logprobs_mode in PROCESSED_LOGPROBS_MODES:
        return f"logprobs_mode={logprobs_mode!r} returns the filtered logits, which vLLM's own writes"
    if return_sampling_mask:
        return "return_sampling_mask returns which tokens were kept, which vLLM's own filters write"
    return None


def _described(name: str) -> tuple[str, str]:
    """Return the version of a plugin's distribution, and how it takes seeds."""
    for candidate in tokendraw.discover():
        if candidate.name == name and candidate.info is not None:
            return candidate.version, getattr(candidate.info.operations["sample"], "seeding", "none")
    return "", "none"
