"""Draws a batch by a sequence of :mod:`tokendraw_flashinfer.kernel_sequences`: runs its steps in order.

A batch comes with parameters that are in range and clean probabilities (:mod:`tokendraw.probabilities`). Properties of
FlashInfer's kernels that their documentation leaves out:

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from tokendraw.probabilities import Filters, drop_below, top_p_of_kept
from tokendraw_flashinfer.kernel_sequences import RENORMS, KernelSequence, Kind
from tokendraw_flashinfer.signatures import Step

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
        values["top_p"] = top_p
        if step.top_p_off is not None:
            values["top_p"] = (
                step.top_p_off if top_p is None else torch.where(top_p < 1, top_p, step.top_p_off)
            )
    if "min_p" in step.parameters:
        assert batch.filters.min_p is not None  # else another sequence serves the batch
        values["min_p"] = batch.filters.min_p.clamp(min=_LEAST_MIN_P)
    return {name: values[name] for name in step.parameters}
