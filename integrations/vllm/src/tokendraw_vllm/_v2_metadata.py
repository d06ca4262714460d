"""The metadata of the V2 runner's batches, and made-up batches to compile kernels for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendraw import BatchFacts, SamplingMetadata
from tokendraw.engines import RULE_FIELDS, warmup_rules
from tokendraw_vllm._v2_rules import filled_column, metadata_fields

_DTYPES = {  # as in kernels without the parameter, so that a missing parameter compiles nothing
    "temperature": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "seeds": torch.int64,
}


def example_batches(
    max_requests: int, device: torch.device, *, seeds_every_row: bool, least_rows: int = 1
) -> list[SamplingMetadata]:
    """Make up batches like those of the V2 runner, to compile kernels; with rules, those that a variable names.

    :param max_requests: number of slots; the batches have the least number of rows, or as many as slots, up to 256.
    :param seeds_every_row: whether every batch has seeds, or only batches with users' seeds.
    :param least_rows: 1, or K + 1 for a verification of one request.
    """
    columns = empty_columns(max_requests, device)
    for name, value in {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05}.items():
        columns[name].fill_(value)
    switches = itertools.product((False, True), (0, 50), (False, True), (False, True))
    asked: list[dict[str, float]] = [{}, *warmup_rules()]
    rules_of_forms = [
        {name: filled_column(max_requests, value, device) for name, value in rules.items()} for rules in asked
    ]
    forms = [
        make_metadata(
            columns,
            BatchFacts(
                any_greedy=greedy,
                max_top_k=top_k,
                all_top_k=top_k > 0,
                any_top_p=top_p,
                any_min_p=min_p,
                any_joint=False,
                filters=tuple(name for name in rules if name not in RULE_FIELDS),
            ),
            metadata_fields(rules),
            has_seeds=has_seeds,
        )
        for (greedy, top_k, top_p, min_p), rules in itertools.product(switches, rules_of_forms)
        for has_seeds in ((True,) if seeds_every_row else (False, True))
    ]
    counts = sorted({least_rows, max(least_rows, min(max_requests, 256))})
    rows = [torch.arange(count, device=device) % max_requests for count in counts]
    return [form.for_rows(slots, slots) for form in forms for slots in rows]


def empty_columns(requests: int, device: torch.device) -> dict[str, Tensor]:
    """Make the columns [slots] of vLLM's parameters."""
    return {name: torch.zeros(requests, dtype=dtype, device=device) for name, dtype in _DTYPES.items()}


def make_metadata(
    columns: Mapping[str, Tensor],
    facts: BatchFacts,
    rules: Mapping[str, Any],
    *,
    has_seeds: bool,
) -> SamplingMetadata:
    """Describe batches with given facts; :meth:`SamplingMetadata.for_rows` fills in the rows.

    :param rules: fields of the metadata for the rules beyond vLLM's parameters.
    """
    placeholder = columns["seeds"].new_zeros(1)
    return SamplingMetadata(
        temperature=columns["temperature"],
        top_k=columns["top_k"] if facts.max_top_k else None,
        top_p=columns["top_p"] if facts.any_top_p else None,
        min_p=columns["min_p"] if facts.any_min_p else None,
        seed=columns["seeds"] if has_seeds else None,
        positions=placeholder,
        row_index=placeholder,
        facts=facts,
        **rules,
    )


def batch_facts(
    states: Any, requests: np.ndarray, rules: tuple[str, ...], *, any_min_p: bool | None = None
) -> BatchFacts:
    """Collect the host's facts about requests.

    :param states: vLLM's ``SamplingStates``.
    :param requests: slots of the requests.
    :param rules: names of the rules beyond vLLM's parameters.
    :param any_min_p: whether tokendraw applies a min-p; None: to each request that has one.
    """
    top_k = states.top_k.np[requests]
    active = top_k < states.vocab_size
    greedy = states.temperature.np[requests] == 0.0
    return BatchFacts(
        any_greedy=bool(greedy.any()),
        all_greedy=bool(greedy.all()),
        max_top_k=int(top_k[active].max()) if active.any() else 0,
        all_top_k=bool((active | greedy).all()),
        any_top_p=bool((states.top_p.np[requests] < 1.0).any()),
        any_min_p=bool((states.min_p.np[requests] > 0.0).any()) if any_min_p is None else any_min_p,
        any_joint="joint" in rules,
        filters=tuple(name for name in rules if name not in RULE_FIELDS),
    )
