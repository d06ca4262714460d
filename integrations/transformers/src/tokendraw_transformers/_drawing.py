"""Takes over the last step of transformers' decoding loop without changing the loop.

``GenerationMixin._sample`` processes the scores [B, V], records them, and takes ``torch.argmax(scores, dim=-1)`` for
the tokens where it does not sample. So the last processor draws, and returns the scores as a tensor whose argmax is the
drawn tokens. The loop takes them without another pass over the vocabulary.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

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
from tokendraw.resolution import read_settings
from tokendraw_transformers._errors import TransformersVersionError
from tokendraw_transformers._warpers import StepPlan

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


_ARGMAX = (torch.argmax, Tensor.argmax)


class DrawnScores(Tensor):
    """Scores [B, V] with the drawn tokens as the result of their first argmax.

    It shares the memory of the scores. For any other function, and from the second argmax on, it is a plain tensor.
    """

    token_ids: Tensor | None

    @classmethod
    def of(cls, scores: Tensor, token_ids: Tensor) -> DrawnScores:
        drawn_scores = scores.as_subclass(cls)
        drawn_scores.token_ids = token_ids
        return drawn_scores

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _ARGMAX and isinstance(args[0], cls) and args[0].token_ids is not None:
            token_ids, args[0].token_ids = args[0].token_ids, None
            return token_ids
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class DrawProcessor(LogitsProcessor):  # type: ignore[misc]
    """The last processor of the list: draws, records the outputs, and returns :class:`DrawnScores`."""

    def __init__(self, plan: StepPlan, rows: BatchDrawer, offset: Tensor, *, records_scores: bool) -> None:
        self._plan = plan
        self._rows = rows
        self._offset = offset
        self._records_scores = records_scores
        self._last: DrawnScores | None = None
        self.steps: list[dict[str, Any]] = []
        """As :meth:`BatchDrawer.fields` returns them."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Draw from processed scores [B, V]; return them, warped if scores are recorded."""
        self.check_taken()
        narrowed = self._plan.narrowing(input_ids, scores)
        output = self._rows.draw(narrowed, self._offset + input_ids.shape[1])
        self.steps.append(self._rows.fields(narrowed, output))
        recorded_scores = self._plan.recorded(input_ids, scores) if self._records_scores else scores
        self._last = DrawnScores.of(recorded_scores, output.token_ids)
        return self._last

    def check_taken(self) -> None:
        """Check that the loop took the tokens of the last step.

        :raises TransformersVersionError: it took others, in a way that the adapter does not know.
        """
        if self._last is not None and self._last.token_ids is not None:
            raise TransformersVersionError(
                "'GenerationMixin._sample' needs to take its tokens by torch.argmax, found that it took others. "
                "Install a transformers that tokendraw-transformers was tested with, or leave out custom_generate."
            )


class Processors(LogitsProcessorList):  # type: ignore[misc]
    """The remaining processors and the drawing processor, called without a look at each signature."""

    def __init__(self, processors: LogitsProcessorList, draws: DrawProcessor) -> None:
        super().__init__([*processors, draws])
        self._processors = processors
        self._draws = draws

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        if self._processors:
            scores = self._processors(input_ids, scores, **kwargs)
        return self._draws(input_ids, scores)


class RecordingStoppingCriteria(StoppingCriteriaList):  # type: ignore[misc]
    """Stopping criteria with a record of the rows stopped at each step."""

    def __init__(self, criteria: StoppingCriteriaList) -> None:
        super().__init__(criteria)
        self.stopped: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        stopped: Tensor = super().__call__(input_ids, scores, **kwargs)
        self.stopped.append(stopped)
        return stopped

    def drawn_steps(self, steps: int) -> Tensor:
        """Return the steps [B, steps] bool at which rows drew a token instead of padding."""
        stopped = torch.stack(self.stopped[:steps], dim=1)
        if not any(hasattr(criterion, "eos_token_id") for criterion in self):
            # transformers fills rows up only where there is an end of sequence
            return torch.ones_like(stopped)
        stops_before = stopped.cumsum(dim=1) - stopped.to(torch.int64)
        return stops_before == 0
