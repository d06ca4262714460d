"""Draws text through the sampler: one token for each row at each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from tokendraw.cli.demo.requests import Editor, requests_of
from tokendraw.parameters.params import SamplingParams
from tokendraw.providers.sampler import Sampler


class LanguageModel(Protocol):
    """A model that text is drawn from."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt, at least one."""
        ...

    def decode(self, token_ids: Sequence[int], *, after: int | None = None) -> str:
        """Return the text of ``token_ids`` that follow the token ``after``."""
        ...

    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits [B, V] of the next token after each of B sequences."""
        ...


def draw_tokens(
    model: LanguageModel,
    sampler: Sampler,
    prompt: Sequence[int],
    params: Sequence[SamplingParams],
    count: int,
    editor: Editor | None = None,
) -> Iterator[list[int]]:
    """Continue one prompt under several settings: ``count`` times, one token id for each of ``params``.

    All rows go through the sampler in one batch. The position of a draw is the index of the token before it.
    Rows with the same seed draw with the same noise, so their texts differ only where their settings make them.

    :param editor: edits the logits; needed if one of ``params`` asks for that.
    """
    requests = requests_of(params, sampler.device, prompt, count, editor)
    rows = list(range(len(params)))
    sequences = [list(prompt) for _ in params]
    for step in range(count):
        position = len(prompt) - 1 + step
        logits = requests.edited(model.logits(sequences).to(sampler.device), rows)
        token_ids = sampler.sample(logits, requests.metadata(rows, [position] * len(params))).token_ids
        requests.append(rows, token_ids)
        drawn = token_ids.tolist()
        for sequence, token_id in zip(sequences, drawn, strict=True):
            sequence.append(token_id)
        yield drawn
