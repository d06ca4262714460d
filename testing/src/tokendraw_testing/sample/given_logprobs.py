"""Log-probabilities of ids that requests give, beside those of the drawn and of the best tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from numpy.random import Generator

from tokendraw import BatchFacts, SamplingMetadata, SamplingParams
from tokendraw.plugin import PAD_TOKEN_ID, Capabilities
from tokendraw_testing.crossing.comparison import CrossedRequest, requests_in_turn
from tokendraw_testing.crossing.factors import kinds
from tokendraw_testing.crossing.table import covering_rows
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.logprobs import given_columns
from tokendraw_testing.rows.subjects import SampleSubject, row_refusal
from tokendraw_testing.sample.crossed_calls import judge_logprobs

properties = Properties("sample")

_NUMS_GIVEN = (1, 0, 3, 70)
"""Some more than a kernel may take at once."""
_NUMS_BEST = (None, 0, 3, 21)


def _is_served(capabilities: Capabilities) -> bool:
    return capabilities.logprob_token_ids and bool(capabilities.logprobs_modes)


_REFUSAL = row_refusal(SamplingParams(logprob_token_ids=(1,)))


@properties.advertised("given logprobs", _is_served, _REFUSAL, is_long=True)
def given_logprobs(subject: SampleSubject, trial: Trial) -> str:
    """The ids that a row gives come back in their order, with their values in every mode."""
    rng = trial.generator("table")
    row_kinds, modes = kinds(subject.capabilities), subject.capabilities.logprobs_modes
    num_rows = 0
    seed_torch(rng)
    for number, (site, rows) in enumerate(covering_rows(subject, rng).items()):
        for turn, mode in enumerate(modes):
            is_first, effort = turn == number % len(modes), subject.effort
            if not is_first and (effort.fewer > 1 or effort.skips(site.size, number + turn)):
                continue
            requests = requests_in_turn(rows, row_kinds, 1, rng, turn)
            batch = [_giving(request, i, rng) for i, request in enumerate(requests)]
            judge_logprobs(subject, trial, batch, mode, subject.gumbel_dtype)
            num_rows += len(batch)
    _require_padding(subject, trial)
    return f"{num_rows} rows in {len(modes)} modes"


def _giving(request: CrossedRequest, number: int, rng: Generator) -> CrossedRequest:
    """Give ids at the ends of the vocabulary and at random; some twice."""
    size = request.row.site.size
    ids: Sequence[int] = [size - 1, 0, *rng.integers(0, size, max(_NUMS_GIVEN)).tolist()]
    given = request.with_given(ids[: min(size, _NUMS_GIVEN[number % len(_NUMS_GIVEN)])])
    return given.with_logprobs(_NUMS_BEST[number // len(_NUMS_GIVEN) % len(_NUMS_BEST)])


def _require_padding(subject: SampleSubject, trial: Trial) -> None:
    """Require ids of ready tensors outside of the vocabulary to be padding, of any integer dtype and stride."""
    for dtype in (torch.int64, torch.int32):
        wide = torch.tensor([[3, 7, 50, 7, -1, 7], [-2, 7, 49, 7, 2**31 - 1, 7]], dtype=dtype)
        ids = wide.to(subject.device)[:, ::2]
        metadata = SamplingMetadata(logprob_token_ids=ids, facts=BatchFacts(max_logprobs=0))
        logits = torch.arange(100.0).view(2, 50).to(subject.device)
        output = subject.call(logits, metadata, mode=subject.capabilities.logprobs_modes[0])
        assert output.logprobs is not None
        found, values = given_columns(output.logprobs)
        pad = PAD_TOKEN_ID
        trial.require(
            found.tolist() == [[3, pad, pad], [pad, 49, pad]] and (values[found == pad] < -1e30).all(),
            f"ids outside of [0, 50) need to be padding, found {found.tolist()} of {values.tolist()}",
        )
