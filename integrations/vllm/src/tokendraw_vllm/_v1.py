"""The V1 runner: what draws after its temperature and min-p, ``TopKTopPSampler``, in every process that has one."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tokendraw_vllm import _log
from tokendraw_vllm._drawing import Drawing, load, reason_to_leave_alone
from tokendraw_vllm._v1_rows import FilteredRows, metadata_of, rows_left_to_vllm

_WHAT = "V1 sampler"
_HOME = "_tokendraw"
LEAST_VOCABULARY = 100_000
"""V from which tokendraw draws on a CPU. With few tokens vLLM is quicker where all requests have top-k alone, and who
draws must not depend on what shares a batch.
"""


def install() -> None:
    """Have every ``TopKTopPSampler`` of this process draw through tokendraw, those that exist included."""
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    vllms_own = TopKTopPSampler.__call__
    if hasattr(vllms_own, _HOME):
        return

    @functools.wraps(vllms_own)
    def __call__(  # noqa: N807 (the name of what it replaces)
        self: Any, logits: Tensor, generators: dict[int, torch.Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        ids = _drawn(self, logits, generators, k, p, vllms_own)
        return vllms_own(self, logits, generators, k, p) if ids is None else (ids, None)

    setattr(__call__, _HOME, True)
    TopKTopPSampler.__call__ = __call__


def _drawn(
    sampler: Any,
    logits: Tensor,
    generators: dict[int, torch.Generator],
    k: Tensor | None,
    p: Tensor | None,
    vllms_own: Any,
) -> Tensor | None:
    """Draw one token a row: ids [B] int64; None if vLLM has to.

    On a CPU vLLM draws from all tokens in C++, as quickly as anybody: batches without filters are left to it. A seeded
    row without filters is left to it in every other batch too, so that its tokens do not depend on its mates.
    """
    if logits.is_cpu and logits.shape[1] < LEAST_VOCABULARY:
        _log.left_alone(
            f"a vocabulary of {logits.shape[1]} is below {LEAST_VOCABULARY}, where vLLM's own may be quicker on a CPU",
            what=_WHAT,
        )
        return None
    drawing = _drawing(sampler, logits.device)
    if drawing is None or (logits.is_cpu and k is None and p is None):
        return None
    rows = rows_left_to_vllm(generators, k, p, logits.shape[1]) if logits.is_cpu else []
    if not rows:
        return drawing.draw(logits, lambda: metadata_of(logits, generators, k, p))
    if len(rows) == logits.shape[0]:
        return None
    filtered = FilteredRows.beside(rows, logits, generators, k, p)
    drawn = drawing.draw(filtered.logits, filtered.metadata)
    if drawn is None:
        return None
    own = {index: generators[row] for index, row in enumerate(rows)}
    ids, _ = vllms_own(sampler, logits[torch.tensor(rows)], own, None, None)
    return filtered.merged(drawn, rows, ids.long())


def _drawing(sampler: Any, device: torch.device) -> Drawing | None:
    """Return what was loaded at the first batch of this sampler; None: vLLM's own draws."""
    if _HOME not in vars(sampler):
        vars(sampler)[_HOME] = _loaded(sampler, device)
    drawing: Drawing | None = vars(sampler)[_HOME]
    return drawing


def _loaded(sampler: Any, device: torch.device) -> Drawing | None:
    import vllm.envs as envs

    reason = reason_to_leave_alone(sampler.logprobs_mode)
    if reason is not None:
        _log.left_alone(reason, what=_WHAT)
        return None
    return load(
        _WHAT,
        device,
        use_fp64=sampler.use_fp64_gumbel,
        batch_invariant=bool(envs.VLLM_BATCH_INVARIANT),
        reference_gains=device.type == "cpu",
    )
