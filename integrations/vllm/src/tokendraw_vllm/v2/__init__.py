"""The V2 runner: replaces two methods of its ``Sampler``, ``_verify``, and its function for log-probabilities.

``sample`` gets the model's logits. If vLLM has to edit none of them (by a custom processor, or a thinking budget),
tokendraw reads them once, in the dtype of the model, instead of vLLM's copy to float32, temperature, min-p, filters and
draw, and edits a copy of the rows with penalties, biases or bad words. ``_sample_random`` comes after vLLM's edits,
temperature and min-p: tokendraw does the filters and the draw. Subclasses keep their ``_sample_random``; the sampler of
watermarks calls the replaced method for batches without any watermark.

``_verify`` of the ``RejectionSampler`` verifies drafts. Those that were chosen, by an argmax or an n-gram, are verified
in the mode ``coupled``: it accepts as many as vLLM's rule, and emits the tokens that plain steps draw at the same seeds
and positions. Drafts that were drawn come from the temperature of the request without its filters, and from logits that
vLLM's cache keeps: see :mod:`.drafts`.

The load of the sampler begins with ``RequestState``, which the runner makes before it loads the model's weights.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendraw.plugin import VerifyMode
from tokendraw_vllm import _parts
from tokendraw_vllm._engine import is_tested, is_whole
from tokendraw_vllm._replacement import Replacement
from tokendraw_vllm.v2 import drafts, logprobs
from tokendraw_vllm.v2.drafts import VerifiedRows
from tokendraw_vllm.v2.edits import TOKENS_ATTRIBUTE, RequestTokens
from tokendraw_vllm.v2.loading import BackgroundLoad, Setup, load_during_weights
from tokendraw_vllm.v2.logprobs import drafts_need_processed, needs_processed
from tokendraw_vllm.v2.proof import Proof, prove
from tokendraw_vllm.v2.rules import log_lost
from tokendraw_vllm.v2.slots import ATTRIBUTE, Drawn, Slots, Verified

Method = Callable[..., Any]


def install() -> None:
    """Have every new V2 ``Sampler`` of this process draw through tokendraw."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler as VllmSampler
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
    from vllm.v1.worker.gpu.states import RequestState

    if hasattr(VllmSampler.__init__, ATTRIBUTE):
        return
    if is_whole(_parts.SCORING):
        logprobs.install()
    for owner, wrappers in (
        (VllmSampler, _WRAPPERS),
        (RequestState, _REQUEST_WRAPPERS),
        (RejectionSampler, {"_verify": wrap_verify} if is_whole(_parts.VERIFICATION) else {}),
    ):
        for name, wrapper in wrappers.items():
            original = getattr(owner, name)
            wrapper_method = functools.wraps(original)(wrapper(original))
            setattr(wrapper_method, ATTRIBUTE, True)
            setattr(owner, name, wrapper_method)


def _wrap_init(original: Method) -> Method:
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807 (the name of the replaced method)
        original(self, *arguments, **keywords)
        with _parts.vllm_stays_if_it_raises(_parts.SAMPLER):
            values = inspect.signature(original).bind(self, *arguments, **keywords).arguments
            values.pop("self")
            setattr(self, ATTRIBUTE, _slots(self, values))

    return __init__


def _wrap_request_state(original: Method) -> Method:
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807 (the name of the replaced method)
        original(self, *arguments, **keywords)
        values = inspect.signature(original).bind(self, *arguments, **keywords).arguments
        device = torch.device(values["device"])
        try:
            loading = load_during_weights(values["vocab_size"], values["max_num_reqs"], device)
        except Exception as error:  # the sampler loads again, and logs the reason
            _parts.raise_if_several(error)
        else:
            setattr(self, ATTRIBUTE, loading)

    return __init__


def _wrap_add_tokens(original: Method) -> Method:
    def add_request(
        self: Any, req_id: str, prompt_len: int, all_token_ids: list[int], *positional: Any, **keywords: Any
    ) -> None:
        original(self, req_id, prompt_len, all_token_ids, *positional, **keywords)
        slot = self.req_id_to_index.get(req_id)
        setattr(self, TOKENS_ATTRIBUTE, RequestTokens(slot, prompt_len, all_token_ids))

    return add_request


def _wrap_add_request(original: Method) -> Method:
    def add_request(self: Any, req_idx: int, sampling_params: Any) -> None:
        slots: Slots | None = getattr(self, ATTRIBUTE, None)
        if slots is None:
            original(self, req_idx, sampling_params)
            log_lost(sampling_params)
        else:
            slots.add_request(req_idx, sampling_params, lambda: original(self, req_idx, sampling_params))

    return add_request


def _wrap_sample(original: Method) -> Method:
    def sample(
        self: Any,
        logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: np.ndarray,
        pos: Tensor,
        input_ids: Tensor,
        expanded_local_pos: Tensor,
        seq_lens_upper_bound_np: np.ndarray,
        return_logprobs: bool = False,
        *positional: Any,
        **keywords: Any,
    ) -> tuple[Tensor, Tensor]:
        slots: Slots | None = getattr(self, ATTRIBUTE, None)
        if slots is not None and slots.can_draw():

            def draw_raw() -> Drawn | None:
                slots.needs_processed = needs_processed(self, return_logprobs)
                slots.follow(idx_mapping_np, input_ids, pos, seq_lens_upper_bound_np)
                if not slots.may_draw_raw(idx_mapping_np):
                    return None
                return slots.draw_raw(logits, expanded_idx_mapping, idx_mapping_np, pos)

            drawn = slots.attempt(draw_raw)
            if drawn is not None:
                return drawn.token_ids, logits if drawn.processed is None else drawn.processed
        with contextlib.nullcontext() if slots is None else slots.step(idx_mapping_np):
            result: tuple[Tensor, Tensor] = original(
                self,
                logits,
                expanded_idx_mapping,
                idx_mapping,
                idx_mapping_np,
                pos,
                input_ids,
                expanded_local_pos,
                seq_lens_upper_bound_np,
                return_logprobs,
                *positional,
                **keywords,
            )
        return result

    return sample


def _wrap_sample_random(original: Method) -> Method:
    def _sample_random(
        self: Any,
        processed_logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping_np: np.ndarray,
        pos: Tensor,
        *positional: Any,
        **keywords: Any,
    ) -> tuple[Tensor, Tensor]:
        slots: Slots | None = getattr(self, ATTRIBUTE, None)
        if slots is not None and slots.can_draw() and not slots.all_greedy(idx_mapping_np):
            drawn = slots.draw(processed_logits, expanded_idx_mapping, idx_mapping_np, pos, raw=False)
            if drawn is not None:
                return drawn.token_ids, processed_logits if drawn.processed is None else drawn.processed
            slots.give_back(processed_logits, expanded_idx_mapping, idx_mapping_np)
        result: tuple[Tensor, Tensor] = original(
            self, processed_logits, expanded_idx_mapping, idx_mapping_np, pos, *positional, **keywords
        )
        return result

    return _sample_random


_WRAPPERS: dict[str, Callable[[Method], Method]] = {
    "__init__": _wrap_init,
    "add_request": _wrap_add_request,
    "sample": _wrap_sample,
    "_sample_random": _wrap_sample_random,
}
_REQUEST_WRAPPERS: dict[str, Callable[[Method], Method]] = {
    "__init__": _wrap_request_state,
    "add_request": _wrap_add_tokens,
}


def _slots(sampler: Any, given: Mapping[str, Any]) -> Slots:
    """Make the slots of a sampler of vLLM, whose ``RequestState`` may hold the load of the sampler.

    :param given: arguments of the sampler.
    """
    states, config, requests = sampler.sampling_states, given["vllm_config"], given["req_states"]
    setup = Setup.of(
        config,
        device=given["device"],
        vocab_size=states.vocab_size,
        max_requests=states.max_num_reqs,
        use_fp64=sampler.use_fp64_gumbel,
        logprobs_mode=sampler.logprobs_mode,
        return_sampling_mask=sampler.return_sampling_mask,
    )
    loading: BackgroundLoad | None = getattr(requests, ATTRIBUTE, None)
    if loading is None or loading.setup != setup:
        loading = BackgroundLoad(setup)
    if setup.draws_drafts:
        drafts.install(setup.device, states.vocab_size, loading.result)
    # a subclass may do anything between the logits and its draw
    is_plain = type(sampler) is _sampler_class()

    def make(count: int) -> tuple[Any, Any]:
        return _made_up(given, count, setup, loading.result)

    def wait_and_prove() -> Replacement | None:
        replacement = loading.result()
        return replacement and prove(Proof(make, config, setup, replacement), replacement)

    return Slots(
        sampler,
        loading.result if is_tested() else wait_and_prove,
        setup.device,
        requests,
        raw=is_plain and not setup.batch_invariant,
        has_orders=is_plain,
    )


def _made_up(
    given: Mapping[str, Any], count: int, setup: Setup, wait_for_load: Callable[[], Replacement | None]
) -> tuple[Any, Any]:
    """Make another sampler of vLLM for a few requests, with tokendraw in it, and its ``RequestState``."""
    from vllm.v1.worker.gpu.states import RequestState

    def make(kind: Any, **arguments: Any) -> Any:
        made: Any = object.__new__(kind)
        inspect.unwrap(kind.__init__)(made, **arguments)  # without a load
        return made

    requests = make(
        RequestState,
        max_num_reqs=count,
        max_model_len=64,
        max_num_batched_tokens=64,
        num_speculative_steps=0 if setup.drafts is None else setup.drafts.most,
        vocab_size=setup.vocab_size,
        device=setup.device,
    )
    sampler = make(_sampler_class(), **{**given, "max_num_reqs": count, "req_states": requests})
    raw = not setup.batch_invariant
    slots = Slots(sampler, wait_for_load, setup.device, requests, raw=raw, has_orders=True)
    setattr(sampler, ATTRIBUTE, slots)
    return sampler, requests


def _sampler_class() -> type:
    from vllm.v1.worker.gpu.sample.sampler import Sampler as VllmSampler

    kind: type = VllmSampler
    return kind


def wrap_verify(original: Callable[..., Any]) -> Callable[..., Any]:
    """Have tokendraw verify where possible, and vLLM elsewhere."""

    def _verify(
        self: Any,
        logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        pos: Tensor,
        cu_num_logits: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: np.ndarray,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        seq_lens_upper_bound_np: np.ndarray,
        verify_draft_sampled: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        slots: Slots | None = getattr(self.sampler, ATTRIBUTE, None)
        if slots is not None and slots.can_draw():

            def verify() -> Verified | None:
                slots.catch_up(idx_mapping_np)
                if not slots.may_draw_raw(idx_mapping_np):
                    return None
                are_drawn = draft_logits is not None
                if slots.leaves_drafts(idx_mapping_np, logits.shape[0], are_drawn=are_drawn):
                    return None
                if not _is_supported(self, draft_logits, logits.shape[1]):
                    return None
                rows = VerifiedRows(
                    logits,
                    draft_logits,
                    draft_sampled,
                    pos,
                    cu_num_logits,
                    idx_mapping_np,
                    expanded_idx_mapping,
                    expanded_local_pos,
                    verify_draft_sampled,
                    getattr(self, "enable_adaptive_verification", False),
                )
                slots.needs_processed = drafts_need_processed(self.sampler, idx_mapping_np)
                return slots.verify(rows, self.num_speculative_steps, _verify_mode(self, draft_logits))

            verified = slots.attempt(verify, verifies=True)
            if verified is not None:
                processed, output = verified.processed, verified.output
                return (
                    logits if processed is None else processed,
                    output.token_ids,
                    output.num_accepted + 1,
                )
        if slots is not None:
            slots.log_unverified(idx_mapping_np)
        result: tuple[Tensor, Tensor, Tensor] = original(
            self,
            logits,
            draft_logits,
            draft_sampled,
            pos,
            cu_num_logits,
            idx_mapping,
            idx_mapping_np,
            expanded_idx_mapping,
            expanded_local_pos,
            seq_lens_upper_bound_np,
            verify_draft_sampled,
        )
        return result

    return _verify


def _is_supported(sampler: Any, draft_logits: Tensor | None, vocab_size: int) -> bool:
    """Return whether tokendraw has the way in which a ``RejectionSampler`` of vLLM judges drafts."""
    return (
        sampler.synthetic_conditional_rates is None
        and not getattr(sampler, "fly_window_size", 0)
        and sampler.watermark_key is None
        and (draft_logits is None or draft_logits.shape[-1] == vocab_size)
    )


def _verify_mode(sampler: Any, draft_logits: Tensor | None) -> VerifyMode:
    """Return the mode in which tokendraw verifies for a ``RejectionSampler`` of vLLM."""
    if draft_logits is None:
        return "coupled"
    return "block" if sampler.use_block_verification else "rejection"
