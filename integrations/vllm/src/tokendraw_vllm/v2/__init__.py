"""The V2 runner: tokendraw's sampler in the place of vLLM's, by vLLM's own way to replace a sampler.

``ModelState.custom_sampler`` gets the sampler that the runner has made, and may return others. There the class of the
sampler becomes a subclass with tokendraw's methods, and such a ``RejectionSampler`` is returned beside it. A model with
a sampler of its own has a method of its own, so it keeps that sampler.

``sample`` gets the model's logits. If vLLM has to edit none of them (by a custom processor, or a thinking budget),
tokendraw reads them once, in the dtype of the model, instead of vLLM's copy to float32, temperature, min-p, filters and
draw, and edits a copy of the rows with penalties, biases or bad words. Where vLLM has edits, it makes them, divides and
drops tokens by min-p, and tokendraw does the filters and the draw. Requests with watermarks are vLLM's.

``_verify`` of the ``RejectionSampler`` verifies drafts. Those that were chosen, by an argmax or an n-gram, are verified
in the mode ``coupled``: it accepts as many as vLLM's rule, and emits the tokens that plain steps draw at the same seeds
and positions. Drafts that were drawn come from the temperature of the request without its filters, and from logits that
vLLM's cache keeps: see :mod:`.drafts`.

The load of the sampler begins with ``RequestState``, which the runner makes before it loads the model's weights.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tokendraw_vllm import _parts
from tokendraw_vllm._engine import is_tested, is_whole
from tokendraw_vllm._parts import ATTRIBUTE
from tokendraw_vllm._replacement import Replacement
from tokendraw_vllm.v2 import drafts, logprobs
from tokendraw_vllm.v2.loading import BackgroundLoad, Setup, load_during_weights
from tokendraw_vllm.v2.parameters import log_lost
from tokendraw_vllm.v2.proof import Proof
from tokendraw_vllm.v2.slots import Slots

Method = Callable[..., Any]


def install() -> None:
    from vllm.v1.worker.gpu.model_states.interface import ModelState
    from vllm.v1.worker.gpu.states import RequestState

    if is_whole(_parts.SCORING):
        logprobs.install()
    _parts.replace_once(RequestState, "__init__", _load_beside)
    _parts.replace_once(ModelState, "custom_sampler", _take_over)


def _load_beside(original: Method) -> Method:
    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        try:
            values = inspect.signature(original).bind(self, *arguments, **keywords).arguments
            device = torch.device(values["device"])
            loading = load_during_weights(values["vocab_size"], values["max_num_reqs"], device)
        except Exception as error:  # the sampler loads again, and logs the reason
            _parts.raise_if_several(error)
        else:
            setattr(self, ATTRIBUTE, loading)

    return init


def _take_over(original: Method) -> Method:
    def custom_sampler(self: Any, sampler: Any, *positional: Any, **keywords: Any) -> tuple[Any, Any] | None:
        custom: tuple[Any, Any] | None = original(self, sampler, *positional, **keywords)
        if custom is not None:
            return custom
        with _parts.vllm_stays_if_it_raises(_parts.SAMPLER):
            setattr(sampler, ATTRIBUTE, None)
            # Before the slots, which take over flags of vLLM's states.
            sampler.__class__ = _sampling(type(sampler))
            setattr(sampler, ATTRIBUTE, _slots(sampler, self.vllm_config, self.device))
        speculative = getattr(self.vllm_config, "speculative_config", None)
        is_judged = speculative is not None and getattr(sampler, ATTRIBUTE, None) is not None
        is_watermarked = getattr(self.vllm_config, "watermark_config", None) is not None
        if is_judged and not is_watermarked and is_whole(_parts.VERIFICATION):
            with _parts.vllm_stays_if_it_raises(_parts.VERIFICATION):
                return sampler, verifier(sampler, speculative, self.device)
        return None

    return custom_sampler


_SAMPLED, _VERIFIED = 7, 11
"""Numbers of the arguments of ``sample``, behind the logits, and of ``_verify``."""


def verifier(sampler: Any, config: Any, device: torch.device) -> Any:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    made = RejectionSampler(sampler, config, device)
    setattr(made, ATTRIBUTE, getattr(sampler, ATTRIBUTE))
    made.__class__ = _verifying(RejectionSampler)
    return made


def _sampling(kind: Any) -> type:
    class Sampling(kind):  # type: ignore[misc]
        _tokendraw: Slots | None
        """None: tokendraw could not take over."""

        def add_request(self, req_idx: int, sampling_params: Any, *positional: Any, **keywords: Any) -> None:
            add = functools.partial(super().add_request, req_idx, sampling_params, *positional, **keywords)
            if self._tokendraw is None:
                add()
                log_lost(sampling_params)
            else:
                self._tokendraw.add_request(req_idx, sampling_params, add)

        def sample(self, logits: Tensor, *given: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
            slots = self._tokendraw
            if slots is not None and len(given) >= _SAMPLED:
                rest = given[_SAMPLED:]
                returns_logprobs = bool(rest[0] if rest else keywords.get("return_logprobs"))
                found = slots.attempt(
                    _parts.SAMPLER, lambda: slots.draw(logits, given[:_SAMPLED], returns_logprobs)
                )
                if found is not None:
                    return found
                slots.log_lost(given[2])
            result: tuple[Tensor, Tensor] = super().sample(logits, *given, **keywords)
            return result

    return Sampling


def _verifying(kind: Any) -> type:
    class Verifying(kind):  # type: ignore[misc]
        _tokendraw: Slots

        def _verify(self, *given: Any, **keywords: Any) -> tuple[Tensor, Tensor, Tensor]:
            slots = self._tokendraw
            if not keywords and len(given) == _VERIFIED:
                verified = slots.attempt(_parts.VERIFICATION, lambda: slots.verify(self, given))
                if verified is not None:
                    return verified
            slots.log_lost(given[6] if len(given) > 6 else keywords["idx_mapping_np"], verifies=True)
            result: tuple[Tensor, Tensor, Tensor] = super()._verify(*given, **keywords)
            return result

    return Verifying


def _slots(sampler: Any, config: Any, device: torch.device) -> Slots:
    """Make the slots of a sampler of vLLM, whose ``RequestState`` may hold the load of the sampler."""
    states, requests = sampler.sampling_states, sampler.req_states
    setup = Setup.of(config, sampler, device, states.vocab_size, states.max_num_reqs)
    loading: BackgroundLoad | None = getattr(requests, ATTRIBUTE, None)
    if loading is None or loading.setup != setup:
        loading = BackgroundLoad(setup)
    if setup.drafts.mode is not None and is_whole(_parts.DRAFTING):
        drafts.install(setup.device, states.vocab_size, loading.result)

    def make(count: int) -> tuple[Any, Any]:
        return _made_up(sampler, config, count, setup, loading.result)

    def make_verifier(made: Any) -> Any:
        return verifier(made, config.speculative_config, device)

    def wait_and_prove() -> Replacement | None:
        replacement = loading.result()
        return replacement and Proof(make, make_verifier, setup, replacement).apply()

    is_plain = type(sampler).__base__ is _sampler_class()
    return Slots(sampler, setup, loading.result if is_tested() else wait_and_prove, is_plain=is_plain)


def _made_up(
    like: Any, config: Any, count: int, setup: Setup, wait_for_load: Callable[[], Replacement | None]
) -> tuple[Any, Any]:
    """Make another sampler of vLLM for a few requests, with tokendraw in it, and its ``RequestState``."""
    from vllm.v1.worker.gpu.states import RequestState

    requests = object.__new__(RequestState)
    start = inspect.unwrap(RequestState.__init__)  # as vLLM has it, without a load
    start(requests, count, 64, 64, setup.drafts.most, setup.vocab_size, setup.device)
    sampler = _sampler_class()(
        config,
        count,
        setup.vocab_size,
        setup.device,
        requests,
        setup.logprobs_mode,
        num_speculative_tokens=like.num_speculative_tokens,
        use_fp64_gumbel=setup.need.gumbel_dtype == "fp64",
        return_sampling_mask=like.return_sampling_mask,
    )
    sampler.__class__ = _sampling(type(sampler))
    setattr(sampler, ATTRIBUTE, Slots(sampler, setup, wait_for_load, is_plain=True))
    return sampler, requests


def _sampler_class() -> Any:
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    return Sampler
