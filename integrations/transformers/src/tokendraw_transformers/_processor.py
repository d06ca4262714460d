"""A drawing logits processor, for assisted generation and every other loop with an argmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from tokendraw import InvalidParameterError, Sampler, SamplingParams
from tokendraw_transformers._drawing import BatchDrawer


def one_hot_scores(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Make scores [B, V] like ``scores``, with probability 1 for ``token_ids`` [B] after a softmax.

    They are 0 at the token and half the least finite number elsewhere. They are finite, since prompt lookup
    takes -inf for a token that may never be drawn, and drops its candidate.
    """
    rest = torch.full_like(scores, torch.finfo(scores.dtype).min / 2)
    return rest.scatter_(-1, token_ids[:, None], 0.0)


class DrawLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Draw each token through tokendraw and set all other scores to the least value.

    Assisted generation (``assistant_model``, ``prompt_lookup_num_tokens``) keeps the candidates that the model itself
    chooses. With a seed that choice depends on nothing but (seed, position, logits), so the text is token for token
    the unassisted one. The assistant is given the same processor, so it drafts with the same noise, and its drafts are
    what the model chooses wherever their distributions are alike::

        draw = DrawLogitsProcessor(tokendraw.SamplingParams(temperature=0.8, top_k=50, seed=7))
        model.generate(**inputs, assistant_model=small, do_sample=False, logits_processor=[draw])

    Pass ``do_sample=False``: the processor samples, and the loop takes what it chose. Processors that ``generate``
    makes from its own arguments run before it, warpers do not run at all.

    :param params: of every row, or one entry a row.
    :param sampler: name of a tokendraw plugin, or a loaded sampler; None: the best for the device of the scores.
    :param left_padding: tokens of padding at the left, of every row or one entry a row: they are no part of the
        sequence.
    :raises InvalidParameterError: a ValueError: a parameter is outside its range, or logprobs are asked for.
    """

    supports_continuous_batching = False

    def __init__(
        self,
        params: SamplingParams | Sequence[SamplingParams],
        *,
        sampler: str | Sampler | None = None,
        left_padding: int | Sequence[int] = 0,
    ) -> None:
        entries = [params] if isinstance(params, SamplingParams) else params
        if not isinstance(entries, Sequence) or not all(
            isinstance(entry, SamplingParams) for entry in entries
        ):
            raise InvalidParameterError(
                "'params' needs a tokendraw.SamplingParams, or a list of them, one a row, found something else. Pass "
                "one of these."
            )
        if any(p.logprobs is not None for p in entries):
            raise InvalidParameterError(
                "'logprobs' needs an output to stand in, found a logits processor, which has none. Leave it out, or "
                "use custom_generate=tokendraw_transformers.generate."
            )
        self._is_shared = isinstance(params, SamplingParams)
        self._params = list(entries)
        self._sampler = sampler
        self._left_padding = _paddings(left_padding)
        self._rows = BatchDrawer(entries, sampler)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Draw a token in each row.

        :param input_ids: [B, L].
        :param scores: [B, V] floating point.
        :returns: [B, V]: 0 at the drawn token, half the least finite number elsewhere.
        """
        count = scores.shape[0]
        if self._is_shared and len(self._params) != count:
            self._params = self._params[:1] * count
            self._rows = BatchDrawer(self._params, self._sampler)
        if len(self._params) != count:
            raise InvalidParameterError(
                f"'params' needs one entry a row, {count}, found {len(self._params)}. Pass as many, or one for all."
            )
        if len(self._left_padding) not in (1, count):
            raise InvalidParameterError(
                f"'left_padding' needs one entry a row, {count}, found {len(self._left_padding)}. Pass as many, or one "
                "for all."
            )
        padding = torch.tensor(self._left_padding, dtype=torch.int64, device=scores.device)
        token_ids = self._rows.draw(scores, (input_ids.shape[1] - 1 - padding).expand(count)).token_ids
        return one_hot_scores(scores, token_ids)


def _paddings(left_padding: Any) -> list[int]:
    """List the widths of padding: a single width for all rows, or a width for each."""
    widths = left_padding.tolist() if isinstance(left_padding, Tensor) else left_padding
    entries = widths if isinstance(widths, Sequence) else [widths]
    if not all(isinstance(width, int) and not isinstance(width, bool) and width >= 0 for width in entries):
        raise InvalidParameterError(
            f"'left_padding' needs an integer >= 0, or a list of them, one a row, found {left_padding!r}. Pass one of "
            "these."
        )
    return list(entries)
