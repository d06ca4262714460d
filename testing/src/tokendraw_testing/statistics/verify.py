"""Statistics of ``verify``: drafts, accepted numbers and last tokens have their joint law, and no noise is used twice.

A trial is a request, whose drafts the subject draws itself, at the very seeds and positions that verify them where it
serves seeds.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from scipy import stats

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.plugin import DraftKind, GumbelDtype, VerifyMode
from tokendraw.tools import all_of
from tokendraw_testing.cases import round_to_dtype
from tokendraw_testing.cases.drafts import chains, sure_draft
from tokendraw_testing.cases.requests import random_seeds, seedings
from tokendraw_testing.expectation import expect
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import coincidences, fit, spread, worst_of
from tokendraw_testing.kit.subject import VerifySubject, with_seeds
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.reference import Array

properties = Properties("verify")

_PLAIN_PARAMS: Final = SamplingParams()
_MOST_ROWS: Final = 1 << 15
_NO_MASS: Final = 1e-9
"""Probability of a token that is not drawn."""
FILTERS: Final = {
    "top_k": SamplingParams(top_k=3),
    "top_p": SamplingParams(top_p=0.75),
    "min_p": SamplingParams(min_p=0.3),
}


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """A verification of drafts that are drawn from rows of logits."""

    target: Array
    """Logits [V], or [V + 1, V]: a row for each token before, and one for a first token."""
    draft: Array
    """Logits of the draft model, as many as ``target``."""
    drafts: int = 2
    """K."""
    kind: DraftKind
    mode: VerifyMode
    params: SamplingParams = _PLAIN_PARAMS
    placeholders: tuple[int, ...] = ()
    """Steps without a draft, where the target's next row continues from token 0."""
    dtype: str
    """Dtype of the logits by its torch name."""
    noise: GumbelDtype
    seeded: bool

    def probabilities(self, subject: VerifySubject) -> tuple[Array, Array]:
        """Return p and q of the draws, float64: [V + 1, V], or [1, V] for equal rows."""
        rule, pair = subject.capabilities.tie_rule, []
        for logits in (self.target, self.draft):
            rounded = round_to_dtype(_matrix(logits), getattr(torch, self.dtype)).float().numpy()
            rows = [expect(x, self.params, rule) for x in rounded]
            assert all(row.certain for row in rows), "the kit chose a row that rounding decides"
            pair.append(np.stack([row.probabilities for row in rows]))
        return pair[0], pair[1]

    def law(self, p: Array, q: Array, ids: Array) -> Array:
        """Return the probability of each number of accepted drafts, first draft and last token: [K + 1, n + 1, n].

        :param ids: [n] tokens with any mass; a first draft that is none of them has the last number.
        """
        size, number_of = p.shape[1], {int(token): i for i, token in enumerate(ids)}
        law = np.zeros((self.drafts + 1, len(ids) + 1, len(ids)))
        steps = [[-1] if step in self.placeholders else ids.tolist() for step in range(self.drafts)]
        for drawn in itertools.product(*steps):
            before = [size, *(max(x, 0) for x in drawn)]
            rows = [p[min(token, len(p) - 1)] for token in before]
            drawn_from = [q[min(token, len(q) - 1)] for token in before[:-1]]
            weight = np.prod([row[x] for row, x in zip(drawn_from, drawn, strict=True) if x >= 0])
            if not weight > 0:
                continue
            if self.kind == "chosen" or self.mode == "coupled":  # accepted by p alone
                drawn_from = [(np.arange(size) == x) * 1.0 for x in drawn]
            told = [row * (x >= 0) for row, x in zip(drawn_from, drawn, strict=True)]
            for accepted, (chance, left) in enumerate(_endings(drawn, rows, told, self.mode)):
                law[accepted, number_of.get(drawn[0], -1)] += weight * chance * left[ids] / left.sum()
        return law

    def draw(self, subject: VerifySubject, q: Array, count: int, rng: Generator) -> list[Array]:
        """Make a verification; return the first draft, the number of accepted ones, and the last token: [count] each.

        :param q: [V + 1, V] or [1, V]: what the drafts are drawn by, where the verification is told so.
        """
        seeds, first = random_seeds(rng, count)
        params = [replace(self.params, seed=0) if self.seeded else self.params] * count

        def known(metadata: SamplingMetadata) -> SamplingMetadata:
            return with_seeds(metadata, seeds) if self.seeded else metadata

        target, draft = (subject.upload(_matrix(x), self.dtype) for x in (self.target, self.draft))
        ids, before = list[torch.Tensor](), [torch.full((count,), target.shape[1], device=subject.device)]
        for step in range(self.drafts):
            positions = np.add(first, step).tolist()
            metadata = SamplingMetadata.from_params(params, device=subject.device, positions=positions)
            rows = _rows_after(draft, before[-1])
            x = subject.call("draft", rows, known(metadata), gumbel_dtype=self.noise).token_ids
            is_drawn = step not in self.placeholders
            ids.append(x if is_drawn else torch.full_like(x, -1))
            before.append(x if is_drawn else torch.zeros_like(x))
        told = torch.from_numpy(q.astype(np.float32)).to(subject.device) if self.kind == "probs" else draft
        target, told = (
            _rows_after(x, torch.stack(rows, 1).flatten())
            for x, rows in ((target, before), (told, before[:-1]))
        )
        lists = torch.stack(ids, 1).tolist()
        logits, drafts, metadata = subject.arguments(target, lists, self.kind, told, params, first)
        output = subject.verify(logits, drafts, known(metadata), self.mode, gumbel_dtype=self.noise)
        last = output.token_ids.gather(1, output.num_accepted.long().unsqueeze(1)).squeeze(1)
        return [column.cpu().numpy() for column in (ids[0], output.num_accepted, last)]


def _matrix(logits: Array) -> Array:
    return np.atleast_2d(logits).astype(np.float32)


def _rows_after(rows: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return the row after each token, or the only row."""
    return rows[before.clamp(max=len(rows) - 1)]


def _endings(
    drawn: Sequence[int], p: Sequence[Array], q: Sequence[Array], mode: VerifyMode
) -> list[tuple[float, Array]]:
    """Return for each number of accepted drafts its probability, and the weights [V] of the last token.

    :param p: K + 1 rows [V] of the target, ``q`` K of what the drafts were drawn by, 0 of a placeholder.
    """
    last, shares = len(drawn), [1.0]
    for x, row, told in zip(drawn, p, q, strict=False):
        ratio = float(row[x] / told[x]) if x >= 0 else 0.0
        shares.append(min(1.0, ratio * (shares[-1] if mode == "block" else 1.0)))
    kept = shares if mode == "block" else [1.0] * last
    left = [np.maximum(share * row - told, 0.0) for share, row, told in zip(kept, p, q, strict=False)]
    if mode == "block":  # the largest number n whose own variate accepts it
        masses = [(excess.sum(), 1 - share) for excess, share in zip(left, shares, strict=False)]
        accepts = [excess / (excess + rest) if excess + rest > 0 else 1.0 for excess, rest in masses]
        accepts = [1.0, *accepts[1:], shares[-1]]
        chances = [accepts[n] * np.prod([1 - each for each in accepts[n + 1 :]]) for n in range(last + 1)]
    else:
        chances = [np.prod(shares[: n + 1]) * (1 - shares[n + 1]) for n in range(last)] + [np.prod(shares)]
    weights = [excess if excess.any() else row for excess, row in zip(left, p, strict=False)]
    return list(zip(map(float, chances), [*weights, p[-1]], strict=True))


def _follows_law(subject: VerifySubject, case: Speculation, rng: Generator, count: int) -> Verdict:
    """Compare the numbers of accepted drafts, and these with the first draft and the last token, with their law."""
    p, q = case.probabilities(subject)
    ids = np.flatnonzero((np.concatenate((p, q)) > _NO_MASS).any(0))
    law, number = case.law(p, q, ids), np.full(p.shape[1] + 1, -1)
    number[ids] = np.arange(len(ids))
    most = max(1, min(_MOST_ROWS, subject.effort.elements // p.shape[1]) // (case.drafts + 1))
    parts = [min(most, count - start) for start in range(0, count, most)]
    drawn = [case.draw(subject, q, part, rng) for part in parts]
    first, accepted, last = (np.concatenate(column) for column in zip(*drawn, strict=True))
    first_place = np.where(number[first] < 0, len(ids), number[first])
    codes = np.ravel_multi_index((accepted, first_place, number[last].clip(0)), law.shape)
    codes[number[last] < 0] = law.size  # a token that has no mass
    numbers = fit(accepted, law.sum((1, 2)))
    numbers = replace(numbers, worst=f"of the numbers of accepted drafts, {numbers.worst}")
    joint = fit(codes, np.append(law.ravel(), 0.0))
    text = f"of (accepted, first draft, last token) in {law.shape} by number, {joint.worst}"
    return worst_of([numbers, replace(joint, worst=text)])


# No two probabilities are equal, so that no rule for ties matters, and every filter has its edge between them.
_EIGHT: Final = np.log([0.30, 0.22, 0.17, 0.11, 0.08, 0.06, 0.04, 0.02])
_DRAFT_EIGHT: Final = np.log([0.09, 0.24, 0.06, 0.21, 0.16, 0.04, 0.13, 0.07])

# A draft that has more draft mass than target mass is often accepted as the last one, and the residual behind it has
# fewer tokens than p - q.
_THREE: Final = np.log([0.5, 0.2, 0.3])
_HEAVY_DRAFT: Final = np.log([0.1, 0.1, 0.8])


@properties.required("verify distribution", is_long=True)
def distribution(subject: VerifySubject, trial: Trial) -> str:
    """Drafts, numbers of accepted ones and tokens behind them have the joint distribution of the mode."""
    for mode in subject.capabilities.verify_modes:
        for label, case in _cases(subject, trial, mode):
            experiment = functools.partial(_follows_law, subject, case)
            draws = subject.effort.tiled_draws if "tiles" in label else subject.effort.draws
            trial.judge(f"{mode}: {label}{', seeded' * case.seeded}", experiment, draws // 2)
    return f"{all_of(subject.capabilities.verify_modes)}; {all_of(subject.capabilities.draft_kinds)}"


def _cases(subject: VerifySubject, trial: Trial, mode: VerifyMode) -> Iterator[tuple[str, Speculation]]:
    capabilities, dtypes = subject.capabilities, subject.cycle_dtypes()
    kinds, noises = capabilities.draft_kinds, itertools.cycle(subject.noise_dtypes)
    *_, seeded = seedings(capabilities)

    def case(target: Any, draft: Any, drafts: int = 2, **options: Any) -> Speculation:
        common = {"kind": kinds[0], "mode": mode, "dtype": next(dtypes), "noise": next(noises)}
        made: dict[str, Any] = {"seeded": seeded} | common | options
        return Speculation(target=target, draft=draft, drafts=drafts, **made)

    markov = trial.generator("Markov").normal(size=(2, 5, 4)).clip(-1.5, 1.5)
    for turn in range(max(len(kinds), len(capabilities.dtypes))):
        for is_seeded in seedings(capabilities):
            each = case(*markov, kind=kinds[turn % len(kinds)], seeded=is_seeded)
            yield f"Markov, {each.kind}, {each.dtype}, {turn}", each
    logits = trial.generator("rows").normal(size=8).clip(-1.5, 1.5)
    yield "one opposite draft", case(logits, -logits, 1)
    yield "three opposite drafts", case(logits, -logits, 3)
    # A target with most of its excess in tiles where the draft has next to nothing.
    target, draft = np.full((2, 2600), -30.0)
    target[[3, 1500, 2590]], draft[[3, 4, 2590]] = [0.0, 0.3, -0.5], [1.0, 0.0, -2.0]
    yield "three tiles", case(target, draft, 1)
    yield "three heavy drafts", case(_THREE, _HEAVY_DRAFT, 3)
    for step in (0, 1) if capabilities.placeholder_drafts else ():
        yield f"Markov, no draft in place {step + 1}", case(*markov, placeholders=(step,), seeded=False)
    for name, params in FILTERS.items():
        is_served = (capabilities.max_top_k or params.top_k) >= params.top_k
        if (name, "per_row") in capabilities.filters and is_served:
            asked = replace(params, filter_order=subject.filter_order, temperature=1.1)
            yield name, case(_EIGHT, _DRAFT_EIGHT, params=asked)


# Equal or nearly equal targets and drafts, which show every rounding.

_NEAR_SIZES: Final = (1025, 65_543)
_HALF_DTYPES: Final = (torch.bfloat16, torch.float16)
_STEPS: Final = 1 << 7
_PER_UNIT: Final = 1 << 14
"""Logits from 2**-7 to 2**-6 in steps of 2**-14, which bfloat16 and float16 hold."""
_STEP_DISTANCE: Final = 4
"""Steps between the logit of a target and that of a draft: a quarter of a thousandth of p."""
_RARE_LOGIT: Final = -9.0
"""Logit of an impossible draft: the target rejects it, and q hardly changes."""
_ROUNDING_SHARE: Final = 2e-5
"""Share of drafts with p = q that rounding may reject."""


@properties.advertised(
    "verify near distributions",
    lambda c: "rejection" in c.verify_modes and bool({"probs", "logits"} & set(c.draft_kinds)),
)
def near_distributions(subject: VerifySubject, trial: Trial) -> str:
    """Where p = q, drafts are accepted whatever their digits; where they differ by digits, residuals follow these."""
    capabilities, effort = subject.capabilities, subject.effort
    sizes = _served_sizes(subject, trial, _NEAR_SIZES[: 1 if effort.interpreted else None])
    kinds = [kind for kind in capabilities.draft_kinds if kind != "chosen"]
    for dtype, kind in itertools.product(capabilities.dtypes, kinds):
        for size in sizes:
            experiment = functools.partial(_follows_residual, subject, dtype, size, kind)
            count = effort.draws_of(300 if size == sizes[0] else 90)
            trial.judge(f"residual, V = {size}, {dtype}, {kind}", experiment, count)
        equal = functools.partial(_accepts_equal, subject, dtype, kind)
        trial.judge(f"equal rows, {dtype}, {kind}", equal, effort.draws_of(4000))
    return f"{all_of(kinds)}, {all_of(capabilities.dtypes)}, V = {all_of(map(str, sizes))}"


def _served_sizes(subject: VerifySubject, trial: Trial, sizes: Sequence[int]) -> list[int]:
    """Return the vocabularies within the subject's limit, or skip the line."""
    limit = subject.capabilities.max_vocab_size
    served = [size for size in sizes if size <= (limit or size)]
    if not served:
        trial.skip(f"needs a vocabulary of {min(sizes):,}, found a limit of {limit}")
    return served


def _follows_residual(
    subject: VerifySubject, dtype: str, size: int, kind: DraftKind, rng: Generator, count: int
) -> Verdict:
    """Make p and q that differ by less than the digits of half precision: rounding loses tokens of the residual."""
    missing = int(rng.integers(size // 2, size))  # an id that fewer bits do not hold
    steps, has_excess = rng.integers(_STEPS + 4, 2 * _STEPS - 4, size), rng.random(size) < 0.5
    draft_steps = steps + np.where(has_excess, -_STEP_DISTANCE, _STEP_DISTANCE)
    target, draft = ((each / _PER_UNIT).astype(np.float32) for each in (steps, draft_steps))
    target[missing], draft[missing] = -np.inf, _RARE_LOGIT
    p, q = (torch.from_numpy(expect(x, _PLAIN_PARAMS).probabilities) for x in (target, draft))
    draft_row = subject.upload_draft(q.float().numpy() if kind == "probs" else draft, dtype, kind)
    logits, ids = subject.upload(target, dtype).expand(2 * count, -1), [[missing]] * count
    output = subject.verify_ids(logits, ids, ("rejection", kind), draft_row.expand(count, -1))
    tokens = output.token_ids[:, 0].cpu().numpy()
    verdict = fit(tokens, (p - q).clamp(min=0).numpy(), bins_of_residuals(p, q))
    return replace(verdict, worst=f"of residuals in the last digits of p, {verdict.worst}")


def bins_of_residuals(p: torch.Tensor, q: torch.Tensor) -> Array:
    """Sort the tokens of max(p - q, 0) by the half-precision types that lose them: bins [V] from 0, or -1."""
    loss_pattern = sum(((p.to(half) == q.to(half)) * (i + 1) for i, half in enumerate(_HALF_DTYPES)))
    assert isinstance(loss_pattern, torch.Tensor)
    has_excess, bins = (p > q).numpy(), np.full(len(p), -1)
    bins[has_excess] = np.unique(loss_pattern.numpy()[has_excess], return_inverse=True)[1]
    return bins


def _accepts_equal(
    subject: VerifySubject, dtype: str, kind: DraftKind, rng: Generator, draws: int
) -> Verdict:
    """Make p = q, and the drafts most often rejected after rounding q up to half precision."""
    steps = 4 if subject.effort.interpreted else 16
    count = max(1, draws // steps)
    row = torch.from_numpy(rng.normal(0, 3, _NEAR_SIZES[0])).to(getattr(torch, dtype))
    q = torch.from_numpy(expect(row.float().numpy(), _PLAIN_PARAMS).probabilities)
    ratios = [q.to(half).double() / q for half in _HALF_DTYPES]
    ids = torch.cat([ratio.argsort(descending=True)[: steps // 2] for ratio in ratios]).tolist()
    draft_rows = (q.float() if kind == "probs" else row).to(subject.device).expand(count * steps, -1)
    logits = row.to(subject.device).expand(count * (steps + 1), -1)
    output = subject.verify_ids(logits, [ids] * count, ("rejection", kind), draft_rows)
    num_refused = sum(len(tokens) <= steps for tokens in chains(output))
    rate = steps * _ROUNDING_SHARE
    text = f"requests with p = q refused a draft {num_refused} times, expected at most {rate * count:.1f}"
    return Verdict(float(stats.binom.sf(num_refused - 1, count, rate)), text, count * steps)


# Requests without seeds: every use of noise is new.

_NARROW_SIZE: Final = 257
_TILED_SIZE: Final = 2053
_WIDE_VOCAB_SIZES: Final = (65_543, 131_113)
_KEPT_TOKENS: Final = 64


@properties.required("verify shared noise")
def shared_noise(subject: VerifySubject, trial: Trial) -> str:
    """Drafts, accepted numbers, recovered and bonus tokens of calls coincide as often as independent draws do."""
    capabilities, most = subject.capabilities, subject.effort.draws_of(1100)
    plain_params = SamplingParams(filter_order=subject.filter_order)
    looks = {_NARROW_SIZE: (most, plain_params)}
    limit = capabilities.max_top_k or _KEPT_TOKENS
    if ("top_k", "per_row") in capabilities.filters and limit >= _KEPT_TOKENS:
        looks[_TILED_SIZE] = most, replace(plain_params, top_k=_KEPT_TOKENS)
    if not subject.effort.interpreted:
        wide_sizes = _WIDE_VOCAB_SIZES[: 1 if subject.effort.quick else None]
        looks |= dict.fromkeys(wide_sizes, (70, plain_params))
    for size, dtype in itertools.product(_served_sizes(subject, trial, [*looks]), capabilities.dtypes):
        count, params = looks[size]
        experiment = functools.partial(_coinciding_tokens, subject, dtype, size, params)
        trial.judge(f"V = {size}, {dtype}", experiment, count)
        if "rejection" in capabilities.verify_modes and not params.top_k:
            drafts, some = (15, most) if size == _NARROW_SIZE else (3, 40)
            experiment = functools.partial(_accepts_independently, subject, dtype, size, drafts)
            trial.judge(f"acceptance, V = {size}, {dtype}", experiment, some)
    return f"{most} requests and fewer of wide vocabularies, {all_of(capabilities.dtypes)}"


def _coinciding_tokens(
    subject: VerifySubject, dtype: str, size: int, params: SamplingParams, rng: Generator, count: int
) -> Verdict:
    """Compare all pairs of tokens, each uniform over the same ids, of several calls."""
    kept, modes = _KEPT_TOKENS if params.top_k else size - 1, subject.capabilities.verify_modes
    row = np.where(np.arange(size) <= kept, np.float32(0.0), np.float32(-30.0))
    row[0] = -np.inf
    x, requests = subject.upload(row, dtype), [params] * count
    if params.top_k and subject.capabilities.seeding == "counter":  # a third has seeds
        seeds, _ = random_seeds(rng, count)
        requests[1::3] = [replace(params, seed=seed) for seed in seeds[1::3]]
    tokens = []
    for _ in range(2):
        positions = rng.integers(0, 2**40, count).tolist()
        metadata = SamplingMetadata.from_params(requests, device=subject.device, positions=positions)
        tokens.append(subject.call("draft", x.expand(count, -1), metadata).token_ids.cpu().numpy())
    kind = subject.capabilities.draft_kinds[-1]
    draft_row = sure_draft(0, size, dtype, kind).to(subject.device)
    # One draft each, which the target cannot emit; and none: what is emitted then is a bonus token in any mode.
    for mode, n in [*((mode, 1) for mode in modes), *[(modes[0], 0)] * (not params.top_k)]:
        target, draft_rows = x.expand((n + 1) * count, -1), draft_row.expand(n * count, -1)
        ids, first = [[0] * n] * count, rng.integers(0, 2**40, count).tolist()
        output = subject.verify_ids(target, ids, (mode, kind), draft_rows, requests, first)
        tokens.append(output.token_ids[:, 0].cpu().numpy())
    values = np.concatenate(tokens) - 1
    return worst_of([coincidences(values, 1 / kept, "token", count), spread(values, kept)])


def _accepts_independently(
    subject: VerifySubject, dtype: str, size: int, drafts: int, rng: Generator, count: int
) -> Verdict:
    """Make requests with about equally likely numbers of accepted drafts, 0 to ``drafts``, and count equal ones."""
    kind = next(kind for mode, kind in subject.ways if mode == "rejection")
    rates = (drafts - np.arange(drafts)) / (drafts + 1 - np.arange(drafts))
    rows = np.zeros((drafts + 1, size), np.float32)
    rows[:-1, 0] = np.log(rates / (1 - rates) * (size - 1))
    target = subject.upload(rows, dtype)
    exact_rows = target[:-1].float().cpu().numpy()
    passed = np.cumprod([1.0, *(float(expect(x, _PLAIN_PARAMS).probabilities[0]) for x in exact_rows)])
    probabilities = passed - np.append(passed[1:], 0.0)
    draft_rows = sure_draft(0, size, dtype, kind).to(subject.device).expand(count * drafts, -1)
    logits, ids = target.repeat(count, 1), [[0] * drafts] * count
    output = subject.verify_ids(logits, ids, ("rejection", kind), draft_rows)
    accepted = output.num_accepted.cpu().numpy().astype(np.int64)
    pairs = coincidences(accepted, float((probabilities**2).sum()), "number", count)
    worst = worst_of([fit(accepted, probabilities), pairs])
    return replace(worst, worst=f"of numbers of accepted drafts, {worst.worst}")
