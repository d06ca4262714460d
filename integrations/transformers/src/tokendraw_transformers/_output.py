"""The outputs of ``generate`` with ``return_dict_in_generate=True``: transformers' own, with log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from tokendraw import InvalidParameterError
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID


@dataclass
class _Draws:
    """What ``generate`` adds to transformers' own output."""

    if TYPE_CHECKING:
        sequences: Any  # of transformers' own output

    valid: Tensor | None = None
    """[B] bool: False for rows that met NaN, or nothing above -inf."""
    logprobs: Tensor | None = None
    """[B, steps] float32: natural logarithm of each drawn token's probability; 0 where a row had ended."""
    ranks: Tensor | None = None
    """[B, steps] int64: how many tokens have a value at least the drawn one's; 0 where a row had ended."""
    top_token_ids: Tensor | None = None
    """[B, steps, N] int64: the N best; -1 where a row had ended."""
    top_logprobs: Tensor | None = None
    """[B, steps, N] float32; -inf where a row had ended."""
    kept_token_ids: Tensor | None = None
    """[B, steps, K] int64: the ids that the filters kept, ascending; -1 behind the last and where a row had ended."""
    kept_counts: Tensor | None = None
    """[B, steps] int64: how many ids were kept, also if more than K; 0 where a row had ended."""
    entropy: Tensor | None = None
    """[B, steps] float32, in nats; 0 where a row had ended."""

    def row(self, index: int) -> list[list[tuple[int, float, int]]]:
        """List the draws of a row: for each token (token id, logprob, rank), then the entries of the best tokens.

        Waits for the device.

        :raises InvalidParameterError: a ValueError: ``generate`` was not asked for ``logprobs``.
        """
        if self.logprobs is None or self.ranks is None:
            raise InvalidParameterError("'row' needs logprobs, found none. Pass logprobs= to model.generate.")
        ranks = [rank for rank in self.ranks[index].tolist() if rank]  # 0: the row had ended
        drawn = self.sequences[index, -self.ranks.shape[1] :].tolist()
        steps = [[entry] for entry in zip(drawn, self.logprobs[index].tolist(), ranks, strict=False)]
        if self.top_token_ids is not None and self.top_logprobs is not None:
            best = zip(self.top_token_ids[index].tolist(), self.top_logprobs[index].tolist(), strict=True)
            for step, (ids, values) in zip(steps, best, strict=False):
                step += [
                    (token_id, value, rank)
                    for rank, (token_id, value) in enumerate(zip(ids, values, strict=True), 1)
                    if token_id != PAD_TOKEN_ID
                ]
        return steps


@dataclass
class DrawDecoderOnlyOutput(_Draws, GenerateDecoderOnlyOutput):  # type: ignore[misc]
    """``GenerateDecoderOnlyOutput`` with the log-probabilities of the drawn tokens."""


@dataclass
class DrawEncoderDecoderOutput(_Draws, GenerateEncoderDecoderOutput):  # type: ignore[misc]
    """``GenerateEncoderDecoderOutput`` with the fields of :class:`DrawDecoderOnlyOutput`."""


_WHERE_ENDED: dict[str, Any] = {
    "valid": True,
    "logprobs": 0.0,
    "ranks": 0,
    "top_token_ids": PAD_TOKEN_ID,
    "top_logprobs": PAD_LOGPROB,
    "kept_token_ids": PAD_TOKEN_ID,
    "kept_counts": 0,
    "entropy": 0.0,
}
"""The fields of a step, and their values where a row had ended."""


def stacked(steps: list[dict[str, Tensor]], drawn_steps: Tensor) -> dict[str, Tensor]:
    """Join the fields of steps to those of an output.

    :param drawn_steps: [B, steps] bool: False where a row had ended.
    """
    fields = {}
    for name in steps[0]:
        values = torch.stack([step[name] for step in steps], dim=1)
        ended = ~drawn_steps if values.dim() == 2 else ~drawn_steps[..., None]
        fields[name] = values.masked_fill(ended, _WHERE_ENDED[name])
    return {**fields, "valid": fields["valid"].all(dim=1)}


def with_draws(result: Any, draws: dict[str, Tensor]) -> Any:
    fields = dict(result.items())
    if fields.get("scores"):
        fields["scores"] = tuple(scores.as_subclass(Tensor) for scores in fields["scores"])
    encoder_decoder = isinstance(result, GenerateEncoderDecoderOutput)
    kind = DrawEncoderDecoderOutput if encoder_decoder else DrawDecoderOnlyOutput
    return kind(**fields, **draws)
