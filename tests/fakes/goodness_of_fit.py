"""Statistical checks of drawn tokens. Every one gives a p-value, to be compared with ``FALSE_ALARM``.

The draws of the suite are seeded, so a check that passes once passes always. ``FALSE_ALARM`` is the probability that a
correct sampler with other random numbers (another generator of torch, another seed in the test) is called wrong.
"""

import numpy as np
import torch
from scipy import stats

from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw_native import sampler, verify
from tokendraw_native.noise import Noise
from tokendraw_testing import reference
from tokendraw_testing.cases.drafts import DRAFT, SAMPLE, telling_call
from tokendraw_testing.cases.telling import POSITION, telling_rows
from tokendraw_testing.logits_families import gaussian

FALSE_ALARM = 1e-7


def chi_square(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the p-value of ``tokens`` as draws from ``probabilities``, with cells below five expected draws pooled.

    A drawn token of probability 0 gives 0.
    """
    counts = np.bincount(tokens, minlength=len(probabilities))
    if (counts[probabilities == 0] > 0).any():
        return 0.0
    expected = len(tokens) * probabilities / probabilities.sum()
    small = expected < 5
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    return float(stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue)


def binomial_interval(draws: int, probability: float, false_alarm: float = 1e-9) -> tuple[int, int]:
    """Return the interval of counts that a binomial leaves with a chance of at most ``false_alarm``."""
    low, high = stats.binom.ppf([false_alarm / 2, 1 - false_alarm / 2], draws, probability)
    return int(low), int(high)


def filtered_probabilities(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
    """Return the probabilities of a filtered row [V] by the definition: min-p, top-k, then top-p of the rest."""
    probabilities = (logits.cpu().double() / temperature).softmax(0)
    probabilities[probabilities < min_p * probabilities.max()] = 0.0
    order = probabilities.argsort(descending=True)
    chosen = probabilities[order][:top_k] / probabilities[order][:top_k].sum()
    chosen = chosen[: int((chosen.cumsum(0) < top_p).sum()) + 1]
    row = torch.zeros_like(probabilities)
    row[order[: len(chosen)]] = chosen / chosen.sum()
    return row.numpy()


# Special rows, and requests of every kind.


NAN, INF = float("nan"), float("inf")
V = 1500


def gaussians(rows, seed=0, size=V):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([gaussian(rng, size) for _ in range(rows)]))


def with_values(values, size=V):
    """A gaussian row with ``values`` (id to logit) put in."""
    row = gaussians(1, seed=7, size=size)[0]
    for token, value in values.items():
        row[token] = value
    return row


POISON = {
    "one NaN": with_values({3: NAN}),
    "NaN at the ends": with_values({0: NAN, V - 1: NAN}),
    "all NaN": torch.full((V,), NAN),
    "all -inf": torch.full((V,), -INF),
    "NaN and -inf": torch.full((V,), -INF).index_fill_(0, torch.arange(0, V, 2), NAN),
    "one +inf": with_values({1100: INF}),
    "all +inf": torch.full((V,), INF),
    "+inf, -inf and NaN": with_values({2: INF, 900: INF, 5: NAN, 6: -INF}),
    "extremes": with_values({2: 3.3e38, 900: -3.3e38}),
    "all the least float32": torch.full((V,), torch.finfo(torch.float32).min),
    "all the largest float32": torch.full((V,), torch.finfo(torch.float32).max),
    "subnormal": torch.full((V,), 1e-45),
}


# The precision of noise, by rows whose tokens show it.


__all__ = ["ACCEPTED", "BONUS", "DRAFT", "DTYPES", "RECOVERED", "SAMPLE", "drawn_with", "verified_with"]

DTYPES = ("fp32", "fp64")
ACCEPTED, RECOVERED, BONUS = slice(0, 1), slice(1, 7), slice(7, 13)
"""The requests of a telling batch, by what decides their tokens."""


def drawn_with(sampler, streams=SAMPLE, *, device="cpu", **params):
    """Return the precision of the noise of a draw; the tokens themselves for neither precision.

    :param streams: those of drafts draw by ``draft``.
    :param params: of every row, beside its seed.
    """
    rows = list(telling_rows(*streams))
    requests = [SamplingParams(seed=row.seed, **params) for row in rows]
    metadata = SamplingMetadata.from_params(requests, device=device, positions=[POSITION] * len(rows))
    logits = torch.stack([torch.from_numpy(row.logits) for row in rows]).to(device)
    output = (sampler.draft if streams == DRAFT else sampler.sample)(logits, metadata)
    expected = {
        dtype: [
            reference.draw(reference.prepare(row.logits, request), row.seed, POSITION, dtype, streams)[0]
            for row, request in zip(rows, requests, strict=True)
        ]
        for dtype in DTYPES
    }
    return _precision(output.token_ids.tolist(), expected)


def verified_with(sampler, part, kind="chosen", mode="rejection", *, device="cpu", filtered=False):
    """Return the precision of the noise of a part of the telling verifications; the tokens for neither precision.

    :param kind: what is given of the drafts.
    """
    calls = {
        dtype: telling_call((mode, kind), SamplingParams(), filtered=filtered, gumbel_dtype=dtype)
        for dtype in DTYPES
    }
    requests = calls["fp32"].requests
    given = [torch.from_numpy(row) for request in requests for row in request.draft]
    q = {f"draft_{kind}": torch.stack(given).to(device)} if given else {}
    drafts = Drafts.from_lists([request.ids for request in requests], device=device, **q)
    first = torch.tensor([request.first for request in requests], device=device)
    metadata = SamplingMetadata.from_params(
        [request.params for request in requests],
        device=device,
        positions=speculative.row_positions(drafts.cu_num_logits, first, drafts.num_rows),
        row_index=speculative.row_index(drafts.cu_num_logits, drafts.num_rows),
    )
    target = torch.stack([torch.from_numpy(row) for r in requests for row in r.target]).to(device)
    output = sampler.verify(target, drafts, metadata, mode=mode)
    counts = (output.num_accepted + 1).tolist()
    result = [row[:count] for row, count in zip(output.token_ids.tolist(), counts, strict=True)][part]
    answers = {dtype: call.answers()[part] for dtype, call in calls.items()}
    return _precision(result, {d: [answer.tokens for answer in found] for d, found in answers.items()})


def _precision(result, expected):
    assert all(narrow != wide for narrow, wide in zip(*expected.values(), strict=True))
    return next((dtype for dtype, tokens in expected.items() if tokens == result), result)


# Native with float32 noise in some streams.


def drop_float64(monkeypatch, *streams):
    """Make native draw the noise of some streams in float32."""

    class Mixed(Noise):
        def gumbel(self, index, stream, dtype):
            asked, dropped = (Noise.gumbel(self, index, stream, each) for each in (dtype, "fp32"))
            is_dropped = torch.isin(torch.as_tensor(stream), torch.tensor(streams))
            return torch.where(is_dropped, dropped.to(asked.dtype), asked)

        def uniform(self, stream, dtype):
            return Noise.uniform(self, stream, "fp32" if stream in streams else dtype)

    for module in (sampler, verify):
        monkeypatch.setattr(module, "Noise", Mixed)
