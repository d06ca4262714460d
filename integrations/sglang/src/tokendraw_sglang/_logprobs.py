"""Log-probabilities by tokendraw's ``score``, in the form of SGLang's: no [B, V] is written for them.

The mode of the sampler is ``temperature_logprobs``; without a temperature these are those of the logits themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tokendraw
from tokendraw_sglang._requests import BATCH_SIZES, Last, rows_of_requests, uploaded

LEAST_BEST = 8
"""The best tokens are asked for by powers of two from this number on: kernels are compiled for each number."""

TokenIds = Sequence[Sequence[int] | None]
"""Ids of each request whose log-probabilities it wants; None: it wants none."""


class RowLogprobs(NamedTuple):
    """Log-probabilities of L rows, at least the least float32."""

    tokens: Tensor
    """[L] float32."""
    best: Tensor
    """[L, N] float32, in descending order."""
    best_ids: Tensor
    """[L, N] int64."""
    given: Tensor | None
    """[L, M] float32, each row padded; None: no row wants any."""

    def at(self, rows: Tensor) -> RowLogprobs:
        given = None if self.given is None else self.given[rows]
        return RowLogprobs(self.tokens[rows], self.best[rows], self.best_ids[rows], given)

    def fields(self, top_nums: Sequence[int], token_ids: TokenIds) -> dict[str, Any]:
        """Return the requested fields of SGLang's ``LogprobResult``."""
        fields: dict[str, Any] = {"token_logprobs": self.tokens}
        if any(count > 0 for count in top_nums):
            for name, values in (("val", self.best), ("idx", self.best_ids)):
                counted = zip(values, top_nums, strict=True)
                fields[f"top_logprobs_{name}"] = [row[:count] for row, count in counted]
        if any(ids is not None for ids in token_ids):
            given = self.tokens.new_empty(len(token_ids), 0) if self.given is None else self.given
            lists = [ids or [] for ids in token_ids]
            listed = zip(given, lists, strict=True)
            fields["token_ids_logprobs_val"] = [row[: len(ids)] for row, ids in listed]
            fields["token_ids_logprobs_idx"] = lists
        return fields


class Scorer:
    """Scores the tokens of batches, and caches the requirements of the last batch."""

    def __init__(self, draws: tokendraw.Sampler) -> None:
        self._draws, self._last = draws, Last()

    def rows(
        self,
        logits: Tensor,
        token_ids: Tensor,
        temperatures: Tensor | None,
        top_nums: Sequence[int],
        given_ids: TokenIds,
        width: int = 1,
    ) -> RowLogprobs:
        """Compute the log-probabilities of a token of each row, of the best, and of tokens by id. Waits for no device.

        :param logits: [B * width, V] before temperature.
        :param temperatures: [B, 1] float32; None: log-probabilities before temperature.
        :param top_nums: how many best tokens each of the B requests wants.
        :param width: rows of each request, which stand one behind the other.
        """
        most = max(top_nums, default=0)
        num_best = 0 if most == 0 else max(LEAST_BEST, 1 << (most - 1).bit_length())
        metadata = self._described(logits.device, temperatures, num_best, given_ids, width)
        scored = self._draws.score(logits, token_ids, metadata).logprobs
        least = torch.finfo(torch.float32).min
        values = scored.logprobs.clamp(min=least)
        given = None if scored.given_logprobs is None else scored.given_logprobs.clamp(min=least)
        return RowLogprobs(values[:, 0].contiguous(), values[:, 1:], scored.token_ids[:, 1:], given)

    def _described(
        self,
        device: torch.device,
        temperatures: Tensor | None,
        num_best: int,
        given_ids: TokenIds,
        width: int,
    ) -> tokendraw.SamplingMetadata:
        lists = [tuple(ids or ()) for ids in given_ids]

        def describe() -> tokendraw.SamplingMetadata:
            longest = max(map(len, lists), default=0)
            padded = [[*ids, *[-1] * (longest - len(ids))] for ids in lists]
            return tokendraw.SamplingMetadata(
                temperature=None if temperatures is None else temperatures.view(-1),
                logprob_token_ids=uploaded(padded, torch.int64, device) if longest else None,
                row_index=None if width == 1 else rows_of_requests(len(lists), width, device),
                facts=tokendraw.BatchFacts(any_greedy=False, max_logprobs=num_best),
            )

        return self._last.described(describe, device, (temperatures,), (num_best, width, lists))

    def warm_up(self, logits: Tensor, *, width: int = 1, has_temperature: bool = True) -> None:
        """Score the tokens of made-up rows, alone and beside few best tokens."""
        device, vocab_size = logits.device, logits.shape[1]
        stride = max(logits.stride(0), vocab_size)
        made = torch.zeros(max(BATCH_SIZES) * width, stride, dtype=logits.dtype, device=device)[
            :, :vocab_size
        ]
        for requests, rows, count in product(BATCH_SIZES, sorted({1, width}), (0, LEAST_BEST)):
            ones = torch.ones(requests, 1, device=device, dtype=torch.float32)
            temperatures = ones if has_temperature else None
            token_ids = torch.zeros(requests * rows, dtype=torch.int32, device=device)
            wanted = ([count] * requests, [None] * requests)
            self.rows(made[: requests * rows], token_ids, temperatures, *wanted, rows)
