"""Loads tokendraw's processor of logits for the V2 runner, and lays out requests of vLLM for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import tokendraw
from tokendraw import Drafts, RequestSlots, SamplingParams
from tokendraw.engines import format_error
from tokendraw.plugin import ProcessNeed
from tokendraw_vllm import _log, _ranks
from tokendraw_vllm._ranks import Names

PART = "V2 editing"
"""The replaced part of vLLM, for the log."""
_NEED = ProcessNeed(sync_free=True)
_STATE_BYTES = 256
"""Bytes of a request's small parameters, about."""
ALL_LISTS = SamplingParams(
    logit_bias={0: 1.0}, allowed_token_ids=[0], bad_words=[[0]], min_tokens=1, stop_token_ids=[0]
)
"""A request with every list that a request of vLLM may have."""
_MAX_BIAS, _MAX_STOP_IDS, _MAX_BAD_WORDS, _MAX_BAD_WORD_LEN = 1024, 128, 128, 32


@dataclass(frozen=True, eq=False)
class Processor:
    """A loaded processor of logits."""

    name: str
    process: Callable[[Tensor, RequestSlots, Tensor, None, Drafts | None], Tensor]


def edits_of(sampling_params: Any) -> SamplingParams | None:
    """Return the edits of a request of vLLM as tokendraw's parameters.

    :returns: None where they mean something else: beside a grammar vLLM allows a stop id before ``min_tokens`` where
        nothing else is left.
    """
    given = sampling_params
    stop_ids = sorted(given.all_stop_token_ids) if given.min_tokens else []
    if stop_ids and getattr(given, "structured_outputs", None) is not None:
        return None
    return SamplingParams(
        repetition_penalty=given.repetition_penalty,
        frequency_penalty=given.frequency_penalty,
        presence_penalty=given.presence_penalty,
        logit_bias=given.logit_bias or None,
        allowed_token_ids=given.allowed_token_ids or None,
        bad_words=given.bad_words_token_ids or None,
        min_tokens=given.min_tokens if stop_ids else 0,
        stop_token_ids=stop_ids or None,
    )


def load_processor(
    device: torch.device,
    vocab_size: int,
    sampler: str,
    *,
    max_drafts: int = 0,
    names: Names | str | None = None,
) -> Processor | None:
    """Load tokendraw's processor of logits and compile its kernels; None, with a line in the log, if vLLM edits.

    :param sampler: name of the plugin that draws: a reference in plain PyTorch edits beside no other on a GPU.
    :param names: what the first of several ranks chose for all, by :func:`choose_processor`; None: chosen here.
    """
    if isinstance(names, str):
        _log.log_kept(names, part=PART)
        return None
    try:
        provider = tokendraw.load("process_logits", names, device=device, need=_NEED)
        processor = Processor(provider.name, provider.process)
        if processor.name == "native" != sampler and device.type != "cpu":
            _log.log_kept(
                f"'native' is the best processor for {device}, and no quicker than vLLM's own", part=PART
            )
            return None
        _warm_up(processor, vocab_size, max_drafts, device)
    except Exception as error:
        _ranks.raise_if_several(error)
        _log.log_kept(format_error(error), part=PART)
        return None
    return processor


def choose_processor(device: torch.device) -> Names:
    """Choose for several ranks: the names of the best processor that can be loaded here."""
    return tokendraw.load("process_logits", device=device, need=_NEED).choices


def _warm_up(processor: Processor, vocab_size: int, max_drafts: int, device: torch.device) -> None:
    """Edit a row with penalties, for which there is a kernel of its own, and one with all lists; append a token.

    :param max_drafts: the most drafts of a request; 0: none are verified.
    """
    requests = request_slots(2, 8, vocab_size, device)
    logits = torch.zeros(2, vocab_size, dtype=torch.float32, device=device)
    slot, draft = torch.ones(2, 1, dtype=torch.int64, device=device)
    offsets = torch.arange(2, device=device) * 2
    drafts = (
        Drafts(draft_token_ids=draft, cu_num_logits=offsets, max_drafts=max_drafts) if max_drafts else None
    )
    for params in (SamplingParams(presence_penalty=1.0), ALL_LISTS):
        requests.add(1, params, prompt_token_ids=[0])
        processor.process(logits[:1], requests, slot, None, None)
        if drafts is not None:
            processor.process(logits, requests, slot, None, drafts)
        requests.append(slot, slot)
        requests.remove(1)


def request_bytes(max_tokens: int, vocab_size: int) -> int:
    """Return the bytes on the device that a request takes in tokendraw's slots."""
    lists = 8 * _MAX_BIAS + 4 * _MAX_STOP_IDS + 4 * _MAX_BAD_WORDS * (_MAX_BAD_WORD_LEN + 1) + vocab_size // 8
    return 8 * max_tokens + 4 * vocab_size + lists + _STATE_BYTES


def request_slots(count: int, max_tokens: int, vocab_size: int, device: torch.device) -> RequestSlots:
    """Make slots for requests of vLLM, with room for the lists of one."""
    return RequestSlots(
        count,
        max_tokens,
        vocab_size,
        device=device,
        max_bias=_MAX_BIAS,
        max_stop_ids=_MAX_STOP_IDS,
        max_bad_words=_MAX_BAD_WORDS,
        max_bad_word_len=_MAX_BAD_WORD_LEN,
    )
