"""Log-probabilities of tokens that a verification emits, by a hook on SGLang's ``compute_spec_logprobs``.

SGLang copies the row of every emitted token, divides the copies and writes their log-softmax. Here the rows are scored
where they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tokendraw_sglang._verification import serving_sampler


def score_drafts(
    original: Callable[..., None],
    batch: Any,
    logits_output: Any,
    predict: Tensor,
    *,
    accept_index: Tensor | None = None,
    chain_stride: int | None = None,
) -> None:
    """Fill in the log-probabilities of a verified batch, as ``compute_spec_logprobs`` does.

    :param logits_output: with the edited ``next_token_logits`` [B * n, V].
    :param predict: [B * n] int32: the token of each row that emitted one, 0 in the others.
    :param accept_index: [B, depth] int32: rows of the emitted tokens, then -1, which stands for the last row; None: of
        another verification than ``eagle_sample``, which SGLang serves.
    """
    sampler, rows, requests = serving_sampler(), None, len(batch.seq_lens)
    top_nums = batch.top_logprobs_nums or [0] * requests
    given_ids = batch.token_ids_logprobs or [None] * requests
    if sampler is not None and accept_index is not None and requests:
        logits = logits_output.next_token_logits
        temperatures = sampler.logprob_temperatures(batch.sampling_info)
        rows = sampler.score(logits, predict, temperatures, top_nums, given_ids, len(logits) // requests)
    if rows is None or accept_index is None:
        original(batch, logits_output, predict, accept_index=accept_index, chain_stride=chain_stride)
        return
    depth = accept_index.shape[1]
    fields = rows.at(accept_index.long().view(-1)).fields(
        _repeated(top_nums, depth), _repeated(given_ids, depth)
    )
    logits_output.next_token_logprobs = fields.pop("token_logprobs").view(requests, depth)
    for name, value in fields.items():
        setattr(logits_output, f"next_token_{name}", value)


def _repeated(entries: list[Any], count: int) -> list[Any]:
    return [entry for entry in entries for _ in range(count)]
