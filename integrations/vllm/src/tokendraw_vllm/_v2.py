"""The V2 runner: its ``Sampler``, at two places.

``sample`` is where the logits come as the model made them. If no request of the batch edits them (penalties, biases,
bad words, processors, thinking budget), tokendraw reads them once, in their own dtype, in the place of vLLM's copy to
float32, temperature, min-p, filters and draw. ``_sample_random`` is behind the edits, temperature and min-p, and takes
over the filters and the draw. A sampler of another class keeps its own ``_sample_random``: that of watermarks calls
this one for batches without any.

``RequestState``, which the runner makes before it loads the model's weights, begins to load the sampler.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendraw_vllm import _log
from tokendraw_vllm._drawing import reason_to_leave_alone
from tokendraw_vllm._v2_loading import WHAT, Loading, Setup, begin_beside_weights
from tokendraw_vllm._v2_slots import Slots

_HOME = "_tokendraw"
Method = Callable[..., Any]


def install() -> None:
    """Have every V2 ``Sampler`` that this process makes from now on draw through tokendraw."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler as OfVllm
    from vllm.v1.worker.gpu.states import RequestState

    if hasattr(OfVllm.__init__, _HOME):
        return
    for owner, wrappers in ((OfVllm, _WRAPPERS), (RequestState, {"__init__": _beginning_to_load})):
        for name, wrapper in wrappers.items():
            vllms_own = getattr(owner, name)
            wrapped = functools.wraps(vllms_own)(wrapper(vllms_own))
            setattr(wrapped, _HOME, True)
            setattr(owner, name, wrapped)


def _loading(vllms_own: Method) -> Method:
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 (the name of what it replaces)
        vllms_own(self, *arguments, **named)
        try:
            given = inspect.signature(vllms_own).bind(self, *arguments, **named).arguments
            setattr(self, _HOME, _slots(self, given["vllm_config"], given["device"], given.get("req_states")))
        except Exception as error:
            _log.left_alone(_log.spoken(error), what=WHAT)

    return __init__


def _beginning_to_load(vllms_own: Method) -> Method:
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 (the name of what it replaces)
        vllms_own(self, *arguments, **named)
        given = inspect.signature(vllms_own).bind(self, *arguments, **named).arguments
        with contextlib.suppress(Exception):  # the sampler begins again, and says in the log what is wrong
            setattr(
                self,
                _HOME,
                begin_beside_weights(
                    given["vocab_size"], given["max_num_reqs"], torch.device(given["device"])
                ),
            )

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
        if slots is not None and slots.can_draw() and slots.may_draw_raw(idx_mapping_np):
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
        if slots is not None and slots.can_draw() and not slots.all_greedy(idx_mapping_np):
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


def _slots(sampler: Any, config: Any, device: torch.device | str, requests: Any) -> Slots | None:
    """Make the slots of one of vLLM's samplers; None: vLLM is left alone, and the log says why.

    :param requests: vLLM's ``RequestState``, whose making began to load the sampler.
    """
    reason = reason_to_leave_alone(sampler.logprobs_mode, sampler.return_sampling_mask)
    if reason is not None:
        _log.left_alone(reason, what=WHAT)
        return None
    states = sampler.sampling_states
    setup = Setup.of(
        config,
        device=device,
        vocab_size=states.vocab_size,
        max_requests=states.max_num_reqs,
        use_fp64=sampler.use_fp64_gumbel,
    )
    loading: Loading | None = getattr(requests, _HOME, None)
    if loading is None or loading.setup != setup:
        loading = Loading(setup)
    # a derived class may do anything between the logits and its draw
    raw = type(sampler) is _plain() and not setup.batch_invariant
    return Slots(sampler, loading.result, setup.device, raw=raw)


def _plain() -> type:
    from vllm.v1.worker.gpu.sample.sampler import Sampler as OfVllm

    kind: type = OfVllm
    return kind
