"""The V2 runner: its ``Sampler``, at two places.

``sample`` is where the logits come as the model made them. If no request of the batch edits them (penalties, biases,
bad words, processors, thinking budget), tokendraw reads them once, in their own dtype, in the place of vLLM's copy to
float32, temperature, min-p, filters and draw. ``_sample_random`` is behind the edits, temperature and min-p, and takes
over the filters and the draw. A sampler of another class keeps its own ``_sample_random``: that of watermarks calls
this one for batches without any.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendraw_vllm import _log
from tokendraw_vllm._drawing import load
from tokendraw_vllm._v2_slots import Slots, batches_to_come

_WHAT = "V2 sampler"
_HOME = "_tokendraw"
Method = Callable[..., Any]


def install() -> None:
    """Have every V2 ``Sampler`` that this process makes from now on draw through tokendraw."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler as OfVllm

    if hasattr(OfVllm.__init__, _HOME):
        return
    for name, wrapper in _WRAPPERS.items():
        vllms_own = getattr(OfVllm, name)
        wrapped = functools.wraps(vllms_own)(wrapper(vllms_own))
        setattr(wrapped, _HOME, True)
        setattr(OfVllm, name, wrapped)


def _loading(vllms_own: Method) -> Method:
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 (the name of what it replaces)
        vllms_own(self, *arguments, **named)
        try:
            given = inspect.signature(vllms_own).bind(self, *arguments, **named).arguments
            setattr(self, _HOME, _slots(self, given["device"], given["vllm_config"]))
        except Exception as error:
            _log.left_alone(_log.spoken(error), what=_WHAT)

    return __init__


def _noting(vllms_own: Method) -> Method:
    def add_request(self: Any, req_idx: int, sampling_params: Any) -> None:
        slots: Slots | None = getattr(self, _HOME, None)
        if slots is None:
            vllms_own(self, req_idx, sampling_params)
        else:
            slots.add_request(req_idx, lambda: vllms_own(self, req_idx, sampling_params))

    return add_request


def _on_raw_logits(vllms_own: Method) -> Method:
    def sample(
        self: Any,
        logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: np.ndarray,
        pos: Tensor,
        *others: Any,
        **named: Any,
    ) -> tuple[Tensor, Tensor]:
        slots: Slots | None = getattr(self, _HOME, None)
        if slots is not None and slots.may_draw_raw(idx_mapping_np):
            ids = slots.draw(logits, expanded_idx_mapping, idx_mapping_np, pos, raw=True)
            if ids is not None:
                return ids, logits
        drawn: tuple[Tensor, Tensor] = vllms_own(
            self, logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, *others, **named
        )
        return drawn

    return sample


def _on_processed_logits(vllms_own: Method) -> Method:
    def _sample_random(
        self: Any,
        processed_logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping_np: np.ndarray,
        pos: Tensor,
        *others: Any,
        **named: Any,
    ) -> tuple[Tensor, Tensor]:
        slots: Slots | None = getattr(self, _HOME, None)
        if slots is not None and not slots.all_greedy(idx_mapping_np):
            ids = slots.draw(processed_logits, expanded_idx_mapping, idx_mapping_np, pos, raw=False)
            if ids is not None:
                return ids, processed_logits
        drawn: tuple[Tensor, Tensor] = vllms_own(
            self, processed_logits, expanded_idx_mapping, idx_mapping_np, pos, *others, **named
        )
        return drawn

    return _sample_random


_WRAPPERS: dict[str, Callable[[Method], Method]] = {
    "__init__": _loading,
    "add_request": _noting,
    "sample": _on_raw_logits,
    "_sample_random": _on_processed_logits,
}


def _slots(sampler: Any, device: torch.device | str, config: Any) -> Slots | None:
    """Load what draws for one of vLLM's samplers; None: it is left alone, which the log says."""
    import vllm.envs as envs
    from vllm.config.model import PROCESSED_LOGPROBS_MODES

    reason = None
    if sampler.logprobs_mode in PROCESSED_LOGPROBS_MODES:
        reason = (
            f"logprobs_mode={sampler.logprobs_mode!r} returns the filtered logits, which vLLM's own writes"
        )
    elif sampler.return_sampling_mask:
        reason = "return_sampling_mask returns which tokens were kept, which vLLM's own filters write"
    if reason is not None:
        _log.left_alone(reason, what=_WHAT)
        return None
    place = torch.device(device)
    batch_invariant = bool(envs.VLLM_BATCH_INVARIANT)
    states = sampler.sampling_states
    drawing = load(
        _WHAT,
        place,
        use_fp64=sampler.use_fp64_gumbel,
        batch_invariant=batch_invariant,
        reference_gains=False,
        prepare=lambda found: found.warmup(
            states.vocab_size,
            dtypes=_dtypes(config),
            metadata=batches_to_come(states.max_num_reqs, place),
            progress=False,
        ),
    )
    if drawing is None:
        return None
    # a derived class may do anything between the logits and its draw
    return Slots(sampler, drawing, place, raw=type(sampler) is _plain() and not batch_invariant)


def _dtypes(config: Any) -> list[torch.dtype]:
    """Dtypes of the logits to come: the model's own, and those of vLLM's edits."""
    dtype = getattr(getattr(config, "model_config", None), "dtype", None)
    return [dtype, torch.float32] if dtype in (torch.bfloat16, torch.float16) else [torch.float32]


def _plain() -> type:
    from vllm.v1.worker.gpu.sample.sampler import Sampler as OfVllm

    kind: type = OfVllm
    return kind
