"""Parameters as ready tensors: clamped out of range, with any stride, changed in place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import BatchFacts, SamplingMetadata, SamplingParams
from tokendraw_testing.crossing.comparison import CrossedRequest, require_tokens
from tokendraw_testing.crossing.factors import Site
from tokendraw_testing.crossing.rows import row_of
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.requests import has_counter, scalar_filters
from tokendraw_testing.rows.subjects import SampleSubject, crossed_orders

properties = Properties("sample")

_NAN: Final = float("nan")
_CLAMPED_VALUES: Final = (
    ("temperature", _NAN, 0.0),
    ("temperature", -0.7, 0.0),
    ("temperature", float("inf"), sys.float_info.max),
    ("top_k", -2, 0),
    ("top_k", -7, 0),
    ("top_k", 2**31 - 1, 0),
    ("top_k", 3, 3),
    ("top_p", 0.0, 1e-6),
    ("top_p", -0.3, 1e-6),
    ("top_p", _NAN, 1.0),
    ("top_p", 1.5, 1.0),
    ("top_p", 0.3, 0.3),
    ("min_p", -0.3, 0.0),
    ("min_p", _NAN, 0.0),
    ("min_p", 0.3, 0.3),
    ("temperature", 1.7, 1.7),
)
"""A parameter, its value in the tensor, and the value of an equivalent request."""
_VOCAB_SIZE: Final = 1030
_COPIES: Final = 3
_Columns = dict[str, torch.Tensor]


@properties.required("ready tensors")
def ready_tensors(subject: SampleSubject, trial: Trial) -> str:
    """Tensors made elsewhere are clamped, read by their stride and integer type, and anew in each call."""
    rng = trial.generator("rows")
    seed_torch(rng)
    size = min(_VOCAB_SIZE, subject.capabilities.max_vocab_size or _VOCAB_SIZE)
    cases = [case for case in _CLAMPED_VALUES if _is_served(subject, case[0], case[2])]
    num_rows = 0
    for dtype in subject.capabilities.dtypes[:: subject.effort.fewer]:
        steps = [_make_requests(subject, cases, Site(dtype, size), rng) for _ in range(2)]
        for layout in (_every_other, torch.clone)[:: subject.effort.fewer]:
            tensors: dict[str, Any] = {
                name: layout(column.to(subject.device)) for name, column in steps[0][1].items()
            }
            metadata = SamplingMetadata(**tensors, facts=_facts(subject))
            for batch, columns in steps:
                for name, column in columns.items():
                    tensors[name].copy_(column)
                logits = torch.stack([request.row.logits for request in batch]).to(subject.device)
                output = subject.call(logits, metadata)
                require_tokens(trial, batch, output.token_ids.tolist(), subject.gumbel_dtype)
                num_rows += len(batch)
    return f"{num_rows} rows of {len(cases)} values, in two layouts, and changed in place"


def _is_served(subject: SampleSubject, name: str, value: float) -> bool:
    """Whether a row may have this value for a parameter."""
    if name == "temperature":
        return value > 0 or subject.capabilities.greedy
    limit = subject.capabilities.max_top_k
    if name == "top_k" and limit is not None:
        return False
    return subject.has(name) and name not in scalar_filters(subject.capabilities)  # type: ignore[arg-type]


def _make_requests(
    subject: SampleSubject, cases: Sequence[tuple[str, float, float]], site: Site, rng: Generator
) -> tuple[list[CrossedRequest], _Columns]:
    """Make requests in random order, and equivalent parameter tensors on the host."""
    row_cases = [cases[i % len(cases)] for i in rng.permutation(subject.effort.rows(_COPIES) * len(cases))]
    seeds, _ = random_seeds(rng, len(row_cases))
    positions = rng.integers(0, 2**31, len(row_cases)).tolist()
    counter = has_counter(subject.capabilities)
    order = subject.filter_order
    batch = []
    values_by_name: dict[str, list[Any]] = {"temperature": [], "top_k": [], "top_p": [], "min_p": []}
    for (name, value, meant), seed, position in zip(row_cases, seeds, positions, strict=True):
        defaults: dict[str, Any] = {"temperature": 0.9, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        for field, column in values_by_name.items():
            column.append(value if field == name else defaults[field])
        params = SamplingParams(
            **(defaults | {name: meant}), filter_order=order, seed=seed if counter else None
        )
        logits = torch.from_numpy(gaussian(rng, site.size)).to(site.torch_dtype)
        row = row_of(subject.capabilities, site, f"'{name}' = {value:g} in a tensor", logits, params)
        batch.append(CrossedRequest(row, params, position))
    columns = {"temperature": torch.tensor(values_by_name["temperature"])}
    columns |= {n: torch.tensor(values_by_name[n]) for n in ("top_p", "min_p") if _is_served(subject, n, 0.5)}
    if _is_served(subject, "top_k", 1):
        columns["top_k"] = torch.tensor(values_by_name["top_k"], dtype=torch.int32)
    if counter:
        columns["seed"] = torch.from_numpy(np.array(seeds, np.uint64).view(np.int64))
        columns["positions"] = torch.tensor(positions, dtype=torch.int32)
    return batch, columns


def _facts(subject: SampleSubject) -> BatchFacts:
    """Make facts that allow every advertised parameter."""
    capabilities = subject.capabilities
    return BatchFacts(
        any_greedy=capabilities.greedy,
        any_seeded=has_counter(capabilities),
        all_seeded=has_counter(capabilities),
        any_top_p=subject.has("top_p"),
        any_min_p=subject.has("min_p"),
        max_top_k=None if _is_served(subject, "top_k", 1) else 0,
        any_joint=crossed_orders(capabilities) == ("joint",),
        any_top_k_first=crossed_orders(capabilities) != ("joint",),
    )


def _every_other(column: torch.Tensor) -> torch.Tensor:
    """Lay out a column as every second entry of a buffer."""
    buffer = column.repeat_interleave(2)
    buffer[1::2] = column.flip(0)
    return buffer[::2]
