"""The call: bring parameters into range, make clean probabilities, and run the first sequence for the batch.

Properties of FlashInfer's kernels that their documentation leaves out:

* ``top_k_sampling_from_probs``, ``top_k_renorm_probs`` and the joint kernel take a k of V or more as off. With k = 0
  they keep nothing.
* The rejection kernels keep a token if what lies above it counts fewer than k and weighs less than p. So they keep all
  ties, and any p above the sum of a row is off.
* ``top_k_top_p_sampling_from_probs`` with ``top_k_first`` and a k for each row is ``top_k_renorm_probs`` followed by
  ``top_p_sampling_from_probs``, called here separately. With one k for all rows it may choose k tokens among
  ties, from 0.7 on.
* ``top_p_renorm_probs`` keeps the same tokens as ``top_p_sampling_from_probs``, p being a share of the sum of the row.
  From 2048 tokens on it counts the last warp's buckets twice where p is not reached: of a flat row a p of 2 is reached
  as early as a p of 1, which may be before the last token. And it takes 65535 rows at most, the y limit of a grid;
  with more it returns nothing for any row, without an error.
* ``min_p_sampling_from_probs`` keeps ``probs >= min_p * max``, also tokens without any mass if that is 0.
* The fused sampler takes its seed from torch's generator on the host, and keeps k of the tokens tied with the k-th, the
  lowest ids first.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from tokendraw import Need, PluginError, SamplerOutput, SamplingMetadata, SamplingParams, philox
from tokendraw.plugin import is_capturing
from tokendraw.probabilities import (
    MAX_ELEMENTS,
    Filters,
    drop_below,
    relative,
    sample_in_parts,
    top_p_of_kept,
)
from tokendraw_flashinfer.kernel_sequences import (
    RENORMS,
    SAMPLE,
    SEQUENCES,
    SOFTMAX,
    KernelSequence,
    Kind,
    available,
)
from tokendraw_flashinfer.signatures import EntryPoints, Step

MAX_ROWS_OF_RENORM: Final = 65535
_LEAST_MIN_P = 1e-30
"""Least min-p, above 0 so that no token without mass counts as kept."""

Functions: TypeAlias = Mapping[str, Callable[..., Any]]
"""Functions of FlashInfer by entry point."""
DrawResult: TypeAlias = tuple[Tensor, Tensor | None]
"""Token ids [rows] int32, and [rows] bool: rows with a distribution to draw from (None: unknown)."""


@dataclass(frozen=True, kw_only=True)
class DrawInputs:
    """Rows to be drawn, with their parameters and random numbers."""

    functions: Functions
    probs: Tensor
    """[rows, V] float32, contiguous: at the temperatures of the rows. May be overwritten."""
    filters: Filters
    largest_top_k: int
    """Number that is at least the largest k in ``filters``."""
    seed: Tensor
    """[1] int64. One seed serves the launch: kernels up to 0.7.1 read no other element. Seed and offset are tensors
    because a CUDA graph would keep numbers as they were at its capture."""
    offset: Tensor
    """[1] int64."""


def import_functions(steps: Iterable[Step]) -> Functions:
    """Import the entry points of some steps."""
    functions = {}
    for name in {step.entry_point for step in steps}:
        module, _, function = name.rpartition(".")
        functions[name] = getattr(importlib.import_module(f"flashinfer.{module}"), function)
    return functions


def batch_kind(filters: Filters) -> Kind:
    """Return the kind of a batch, by the filters of its rows."""
    if filters.top_k is not None and filters.top_p is not None:
        if filters.joint is None:
            return "top_k_first"
        return "both orders" if filters.any_top_k_first else "joint"
    if filters.top_k is not None:
        return "top_k"
    if filters.top_p is not None:
        return "top_p"
    return "none" if filters.min_p is None else "min_p"


def draw(sequence: KernelSequence, batch: DrawInputs) -> DrawResult:
    """Draw a token in each row."""
    result = _run_steps(sequence.steps, batch)
    return (result, None) if isinstance(result, Tensor) else result


def kept_probabilities(batch: DrawInputs) -> Tensor:
    """Return the probabilities [rows, V] behind every sequence: of kept tokens, else 0."""
    steps = [step for name, step in RENORMS.items() if getattr(batch.filters, name) is not None]
    probs: Tensor = _run_steps(steps, batch)
    return probs


def _run_steps(steps: Sequence[Step], batch: DrawInputs) -> Any:
    """Run the steps and return the result of the last; without steps, the probabilities.

    Each filter renormalises. So the top-p of rows that count the unfiltered mass is restated for what is left.
    """
    filters = batch.filters
    probs, top_p, joint = batch.probs, filters.top_p, filters.joint
    if filters.min_p is not None and not any("min_p" in step.parameters for step in steps):
        mass = drop_below(probs, filters.min_p)
        if top_p is not None and joint is not None:
            top_p = top_p_of_kept(top_p, joint, mass)
    for step in steps:
        before, probs = probs, batch.functions[step.entry_point](probs, **_arguments(step, batch, top_p))
        if step is RENORMS["top_k"] and top_p is not None and joint is not None:
            top_p = top_p_of_kept(top_p, joint, before.amax(-1) / probs.amax(-1))
    return probs


def _arguments(step: Step, batch: DrawInputs, top_p: Tensor | None) -> dict[str, Any]:
    values: dict[str, Any] = {
        "top_k": batch.filters.top_k,
        "top_k_max": batch.largest_top_k,
        "filter_apply_order": "joint",
        "is_deterministic": True,
        "return_valid": True,
        "seed": batch.seed,
        "offset": batch.offset,
    }
    if "top_p" in step.parameters:
        values["top_p"], off = top_p, step.top_p_off
        if off is not None:
            values["top_p"] = off if top_p is None else torch.where(top_p < 1, top_p, off)
    if "min_p" in step.parameters:
        assert batch.filters.min_p is not None  # else another sequence serves the batch
        values["min_p"] = batch.filters.min_p.clamp(min=_LEAST_MIN_P)
    return {name: values[name] for name in step.parameters}


Softmax: TypeAlias = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]

_log = logging.getLogger("tokendraw")
_WARMUP_SHAPE = (2, 8)
"""Rows and vocabulary of the batch that building draws."""


class FlashInferSampler:
    """FlashInfer's sampling kernels. Made by ``tokendraw.load_sampler("flashinfer")``.

    :param device: where it draws.
    :param need: with ``tie_rule="either"`` it may draw by sequences that keep exactly k of tied tokens.
    :param sequences: in place of the table, for measurements.
    :param max_elements: logits in one launch; more rows are drawn in parts.
    :raises PluginError: the installed FlashInfer cannot draw even rows without filters.
    """

    def __init__(
        self,
        device: torch.device,
        need: Need,
        sequences: Mapping[Kind, Sequence[KernelSequence]] = SEQUENCES,
        *,
        max_elements: int = MAX_ELEMENTS,
        steps: Iterable[Step] = (),
    ) -> None:
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        self._sequences = available(sequences, EntryPoints.installed(), need.tie_rule, capability)
        if "none" not in self._sequences:
            needed = "rows without filters need softmax and sampling_from_probs"
            raise PluginError(f"{needed}, found no such entry points")
        all_sequences = list(dict.fromkeys(chain.from_iterable(self._sequences.values())))
        of_sequences = chain.from_iterable(sequence.steps for sequence in all_sequences)
        self._functions = import_functions([*SAMPLE, *of_sequences, *steps])
        self._offset = torch.zeros(1, dtype=torch.int64, device=device)
        self._max_elements = max_elements
        dtype = getattr(torch, need.dtype or "float32")
        self._fused_softmax = _fused_softmax(torch.zeros(_WARMUP_SHAPE, dtype=dtype, device=device))
        self._warm_up(device, all_sequences)

    def sequence(
        self, metadata: SamplingMetadata, vocab_size: int, *, capturing: bool = False
    ) -> KernelSequence:
        """Return the kernel sequence for a batch.

        :param capturing: whether it becomes part of a CUDA graph.
        """
        return self._select(Filters.of(metadata, vocab_size), metadata, vocab_size, capturing=capturing)

    @torch.no_grad()
    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, draft: bool = False) -> SamplerOutput:
        """Draw a token in each row; see :class:`tokendraw.plugin.SamplerBackend`.

        :param draft: makes no difference, since each launch has noise of its own.
        """
        vocab_size = logits.shape[1]
        filters = Filters.of(metadata, vocab_size)
        largest = metadata.facts.max_top_k or vocab_size

        def draw_part(part: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
            sequence = self._select(filters, metadata, vocab_size, capturing=is_capturing())
            probs, valid = self._probabilities(part, filters.temperature)
            tokens, drawn_valid = draw(sequence, self._batch(probs, filters, largest))
            return tokens.long(), valid if drawn_valid is None else valid & drawn_valid

        return sample_in_parts(logits, filters, draw_part, max_elements=self._max_elements)

    def _select(
        self, filters: Filters, metadata: SamplingMetadata, vocab_size: int, *, capturing: bool
    ) -> KernelSequence:
        facts = metadata.facts
        return next(
            sequence
            for sequence in self._sequences[batch_kind(filters)]
            if sequence.serves(
                facts.max_top_k, all_top_k=facts.all_top_k, vocab_size=vocab_size, capturing=capturing
            )
        )

    def _probabilities(self, logits: Tensor, temperature: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return clean probabilities [rows, V] at the temperatures of the rows, and the valid rows."""
        if self._fused_softmax is not None:
            return self._fused_softmax(logits, temperature)
        y, valid = relative(logits)
        return self._functions[SOFTMAX.entry_point](y, temperature=temperature), valid

    def _batch(self, probs: Tensor, filters: Filters, largest_top_k: int) -> DrawInputs:
        return DrawInputs(
            functions=self._functions,
            probs=probs,
            filters=filters,
            largest_top_k=largest_top_k,
            **self._noise(),
        )

    def _noise(self) -> dict[str, Tensor]:
        """Return a new seed and offset for a launch."""
        return {"seed": philox.fresh_seeds(1, self._offset.device), "offset": self._offset}

    @torch.no_grad()
    def _warm_up(self, device: torch.device, sequences: Sequence[KernelSequence]) -> None:
        """Call every sequence once: modules are compiled or loaded, and scratch is allocated outside of graphs."""
        rows, vocab_size = _WARMUP_SHAPE
        params = [SamplingParams(top_k=2, top_p=0.9, min_p=0.1)] * rows
        filters = Filters.of(SamplingMetadata.from_params(params, device=device), vocab_size)
        for sequence in sequences:
            logits = torch.zeros(rows, vocab_size, device=device, dtype=torch.float32)
            probs, _ = self._probabilities(logits, filters.temperature)
            draw(sequence, self._batch(probs, filters, 2))


def _fused_softmax(example: Tensor) -> Softmax | None:
    """Return the Triton kernel if it runs on an example; otherwise torch and FlashInfer do the same, slower."""
    if example.device.type != "cuda":
        return None
    try:
        from tokendraw_flashinfer.softmax import softmax

        softmax(example, None)
    except Exception as error:  # no Triton, no C compiler for its launcher, a device that it does not know
        _log.info("logits are cleaned by torch, since Triton failed: %s: %s", type(error).__name__, error)
        return None
    fused: Softmax = softmax
    return fused
