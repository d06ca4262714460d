"""Draws the tokens of a batch, with its log-probabilities in the outputs of ``generate``; keeps loaded samplers.

The outputs with ``return_dict_in_generate=True`` are transformers' own, with further fields.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

import tokendraw
from tokendraw import (
    InvalidParameterError,
    Need,
    Sampler,
    SamplerOutput,
    SamplingMetadata,
    SamplingParams,
    kept_ids,
)
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID
from tokendraw.resolution import read_settings

_lock = threading.Lock()
_cache: dict[Hashable, Any] = {}
_MAX_CACHE_ENTRIES = 16  # settings may change at every call


def load_sampler(
    sampler: str | Sampler | None, device: torch.device, need: Need, logprobs_mode: str | None = None
) -> Sampler:
    """Load a sampler, or return the sampler of an earlier load: negotiation and proof may outlast a ``generate``.

    It is the same object, so a sampler whose call failed stays replaced, and is not warned of again.
    """
    if isinstance(sampler, Sampler):
        return sampler
    if sampler is not None and not isinstance(sampler, str):
        raise InvalidParameterError(
            f"'sampler' needs the name of a plugin or what tokendraw.load_sampler returned, found a "
            f"{type(sampler).__name__}. Pass one of these, or leave it out."
        )
    mode = "raw_logprobs" if logprobs_mode is None else logprobs_mode
    value: Sampler = _cached(
        (sampler, device, need, repr(mode)),
        lambda: tokendraw.load_sampler(
            sampler,
            device=device,
            logprobs_mode=mode,  # type: ignore[arg-type]  # load_sampler refuses what is not a mode
            need=need,
        ),
    )
    return value


def load_processor(device: torch.device) -> Any:
    return _cached(("process_logits", device), lambda: tokendraw.load("process_logits", device=device))


def _cached(key: tuple[Hashable, ...], load: Callable[[], Any]) -> Any:
    # a decision also depends on the settings in force, and on where packages are found
    key = (*key, read_settings(), tuple(sys.path))
    with _lock:
        if key not in _cache:
            value = load()
            while len(_cache) >= _MAX_CACHE_ENTRIES:
                del _cache[next(iter(_cache))]
            _cache[key] = value
        return _cache[key]


class BatchDrawer:
    """The sampling parameters of a batch. The sampler and the tensors are made at the first draw, on its device."""

    def __init__(
        self,
        params: Sequence[SamplingParams],
        sampler: str | Sampler | None,
        logprobs_mode: str | None = None,
        *,
        max_kept: int | None = None,
        has_entropy: bool = False,
    ) -> None:
        if isinstance(sampler, Sampler) and logprobs_mode is not None:
            raise InvalidParameterError(
                f"'logprobs_mode' needs a sampler that is yet to be loaded, found {sampler!r}. Pass logprobs_mode to "
                "tokendraw.load_sampler."
            )
        self._params = params
        self._on_cpu = self._metadata(torch.device("cpu"))  # refuses bad values here and now
        self._sampler = sampler
        self._logprobs_mode = logprobs_mode
        if max_kept is not None and (type(max_kept) is not int or max_kept < 1):
            raise InvalidParameterError(f"'kept_ids' needs an integer >= 1 or None, found {max_kept!r}.")
        self._max_kept = max_kept
        self._has_entropy = has_entropy
        self._loaded_by_device: dict[torch.device, tuple[Sampler, SamplingMetadata, Tensor]] = {}

    def draw(self, scores: Tensor, positions: Tensor) -> SamplerOutput:
        """Draw a token in each row of scores [B, V], at positions [B] on their device."""
        if scores.device not in self._loaded_by_device:
            self._loaded_by_device[scores.device] = self._load(scores.device)
        sampler, metadata, positions_in_metadata = self._loaded_by_device[scores.device]
        positions_in_metadata.copy_(positions)
        return sampler.sample(scores, metadata)

    def fields(self, scores: Tensor, output: SamplerOutput) -> dict[str, Any]:
        """Return a step of the last draw for each field of ``generate``'s output.

        :raises InvalidParameterError: kept ids are asked of a sampler that was loaded without thresholds.
        """
        fields: dict[str, Any] = {"valid": output.valid}
        if (best := output.logprobs) is not None:
            fields |= {"logprobs": best.logprobs[:, 0], "ranks": best.ranks}
            if best.logprobs.shape[1] > 1:
                fields |= {"top_token_ids": best.token_ids[:, 1:], "top_logprobs": best.logprobs[:, 1:]}
        if self._max_kept is not None:
            if output.threshold is None:
                raise InvalidParameterError(
                    f"'kept_ids' needs a sampler with thresholds, found {self._sampler!r}. Load it with "
                    "tokendraw.Need(threshold=True), or pass its name."
                )
            kept = kept_ids(scores, output.threshold, self._max_kept, output.ceiling)
            fields |= {"kept_token_ids": kept.ids, "kept_counts": kept.counts}
        if self._has_entropy:
            sampler, metadata, _ = self._loaded_by_device[scores.device]
            fields["entropy"] = sampler.score(scores, output.token_ids, metadata).entropy
        return fields

    def _load(self, device: torch.device) -> tuple[Sampler, SamplingMetadata, Tensor]:
        """Make the sampler, the metadata, and its tensor [B] for the positions of each step."""
        metadata = self._on_cpu if device.type == "cpu" else self._metadata(device)
        assert metadata.positions is not None
        orders = tuple(sorted({params.filter_order for params in self._params}))
        need = Need(filter_orders=orders, threshold=self._max_kept is not None)
        sampler = load_sampler(self._sampler, device, need, self._logprobs_mode)
        return sampler, metadata, metadata.positions

    def _metadata(self, device: torch.device) -> SamplingMetadata:
        return SamplingMetadata.from_params(self._params, device=device, positions=[0] * len(self._params))


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
