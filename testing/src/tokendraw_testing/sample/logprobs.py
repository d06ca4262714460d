"""Log-probabilities in five modes, against float64 and their bound."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import LOGPROBS_MODES, LogprobsMode
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import FAMILIES
from tokendraw_testing.rows.bounds import leading_rows, narrow_requests
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.dtypes import round_rows
from tokendraw_testing.rows.logprobs import expected_values, require_values
from tokendraw_testing.rows.requests import combinations, describe, has_logprobs, has_mode, scalar_filters
from tokendraw_testing.rows.subjects import SampleSubject, row_refusal

properties = Properties("sample")
Array = NDArray[Any]


def _batch(
    subject: SampleSubject, trial: Trial, size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, Array, list[SamplingParams]]:
    """Make rows of every family with their float32 values, and requests of all kinds for all V tokens."""
    rng = trial.generator(f"{size} -1 {dtype}")
    requests = combinations(subject.capabilities, size)
    if scalar_filters(subject.capabilities):
        requests = requests[:1]
    copies = max(1, subject.effort.rows(6) // len(subject.capabilities.dtypes))
    logits = np.stack([family(rng, size) for family in FAMILIES.values() for _ in range(copies)])
    indices = rng.integers(0, len(requests), len(logits))
    seed_torch(rng)
    return *round_rows(logits, dtype), [replace(requests[i], logprobs=-1) for i in indices]


def _register_mode(mode: LogprobsMode) -> None:
    ask = row_refusal(SamplingParams(logprobs=1), logprobs_mode=mode)

    @properties.advertised(f"{mode}", has_mode(mode), ask)
    def check(subject: SampleSubject, trial: Trial) -> str:
        """The values of all V tokens and of the drawn one agree with float64 to 1e-5, by id."""
        num_rows = 0
        for size, dtype in itertools.product((1, 50, 1300), subject.dtypes):
            rows, logits, params = _batch(subject, trial, size, dtype)
            output = subject.sample(rows, params, mode=mode)
            assert output.logprobs is not None
            ids, values = output.logprobs.token_ids.cpu().numpy(), output.logprobs.logprobs.cpu().numpy()
            tokens = output.token_ids.cpu().numpy()
            for i, request in enumerate(params):
                rule, token = subject.capabilities.tie_rule, int(tokens[i])
                expected = expected_values(logits[i], request, token, mode, rule)
                if expected is None:
                    continue
                num_rows += 1
                require_values(trial, f"V = {size}, {describe(request)}", ids[i], values[i], expected)
                trial.require(
                    ids[i][0] == tokens[i],
                    f"the drawn token {tokens[i]} needs to come first, found {ids[i][0]}",
                )
        return f"{num_rows} rows, all V values"


for _each in LOGPROBS_MODES:
    _register_mode(_each)


@properties.advertised("logprob bounds", has_logprobs)
def bounds(subject: SampleSubject, trial: Trial) -> str:
    """No log-probability and no log_kept_mass lies above 0, where rounding brings them next to it."""
    sizes = [v for v in (1, 2, 33, 1300) if v <= (subject.capabilities.max_vocab_size or v)]
    num_rows = 0
    for size, dtype in itertools.product(sizes, subject.dtypes):
        rng = trial.generator(f"{size} {dtype}")
        rows, _ = round_rows(leading_rows(rng, size, subject.effort.rows(96, least=6)), dtype)
        requests = [replace(p, logprobs=min(size, 3)) for p in narrow_requests(subject.capabilities)]
        params = [requests[i] for i in rng.integers(0, len(requests), len(rows))]
        seed_torch(rng)
        for mode in subject.capabilities.logprobs_modes:
            subject.sample(rows, params, mode=mode)  # holds what is returned against the bound
            num_rows += len(rows)
    return f"{num_rows} rows: one token's, a few tokens', uniform"
