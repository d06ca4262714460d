"""Statistics of ``verify``: speculation cannot be told from plain sampling, and no noise is used twice.

A trial of a decoding is a request. Its drafts are drawn by the subject's own ``draft``, at the very seeds and positions
that verify them where it serves seeds. Where a verification ends before the last place that is looked at, the sequence
goes on with further ones, as an engine's would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw.plugin import DraftKind, VerifyMode
from tokendraw.tools import all_of
from tokendraw_testing.cases.drafts import chains, rounded
from tokendraw_testing.cases.requests import random_seeds, seed_torch, seedings
from tokendraw_testing.judges.expectation import expect
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import fit, share
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.statistics.draws import coincidences, spread, worst_of
from tokendraw_testing.subjects import VerifySubject, equal_rows, row_metadata

properties = Properties("verify")
Array = NDArray[Any]

_PLAIN_PARAMS: Final = SamplingParams()
_MOST_ROWS: Final = 1 << 15
_PAIRS_SIZE: Final = 64
"""Number of tokens of which all pairs are looked at."""
FILTERS: Final = {
    "top_k": SamplingParams(top_k=3),
    "top_p": SamplingParams(top_p=0.75),
    "min_p": SamplingParams(min_p=0.3),
}


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Distributions of sequences and drafts."""

    target: Array
    """Logits [V], or [V + 1, V]: a row for each token before, and one for a first token."""
    draft: Array
    """Logits of the draft model, as many as ``target``."""
    drafts: int = 2
    """K; the first K + 1 tokens are looked at."""
    kind: DraftKind
    mode: VerifyMode
    params: SamplingParams = _PLAIN_PARAMS
    placeholders: tuple[int, ...] = ()
    """Places without a draft, where the target's next row continues from token 0."""
    dtype: str | None = None
    """Dtype of the logits by its torch name; None: the first advertised dtype."""

    def probabilities(self, subject: VerifySubject) -> tuple[Array, Array]:
        """Return p and q of the draws, float64: [V + 1, V], or [1, V] for equal rows."""
        rule = subject.capabilities.tie_rule
        logits_pair = [self.rows(subject, logits) for logits in (self.target, self.draft)]
        rows = [[expect(x, self.params, rule) for x in logits] for logits in logits_pair]
        assert all(row.certain for rows_of_model in rows for row in rows_of_model), (
            "the kit chose a row that rounding decides"
        )
        p, q = (np.stack([row.probabilities for row in rows_of_model]) for rows_of_model in rows)
        return p, q

    def rows(self, subject: VerifySubject, logits: Array) -> Array:
        """Round the rows of target or draft to the dtype of the logits: [V + 1, V] or [1, V] float32."""
        return rounded(np.atleast_2d(logits), self.own_dtype(subject))

    def own_dtype(self, subject: VerifySubject) -> str:
        """Return the dtype of the logits."""
        return self.dtype or subject.capabilities.dtypes[0]


def judge(
    subject: VerifySubject, trial: Trial, label: str, case: Decoding, draws: int, *, seeded: bool
) -> None:
    """Compare every token, the first two together, and the number of accepted drafts with the target."""
    p, q = case.probabilities(subject)
    size, sequences_by_count = p.shape[1], dict[int, tuple[Array, Array]]()

    def judge_part(what: str, verdict: Callable[[Array, Array], Verdict]) -> None:
        def experiment(rng: Generator, count: int) -> Verdict:
            if count not in sequences_by_count:  # one set of sequences serves every way of looking at it
                sequences_by_count[count] = decode(subject, case, q, count, rng, seeded=seeded)
            return verdict(*sequences_by_count[count])

        trial.judge(f"{label}{', seeded' * seeded}, {what}", experiment, draws)

    def token(step: int, probabilities: Array) -> None:
        judge_part(f"token {step + 1}", lambda tokens, _: fit(tokens[:, step], probabilities))

    def pairs(tokens: Array, _: Array) -> Verdict:
        probabilities = p[-1][:, None] * (p[:-1] if len(p) > 1 else p)
        verdict = fit(tokens[:, 0] * size + tokens[:, 1], probabilities.ravel())
        return replace(verdict, worst=f"of the pairs by number, {verdict.worst}")

    marginal = p[-1]
    for step in range(case.drafts + 1):
        token(step, marginal)
        marginal = marginal @ p[:-1] if len(p) > 1 else marginal
    if size <= _PAIRS_SIZE:
        judge_part("tokens 1 and 2 together", pairs)
    _judge_acceptance(case, p, q, judge_part)


def _judge_acceptance(case: Decoding, p: Array, q: Array, judge_part: Callable[..., None]) -> None:
    """Judge the acceptance rate of the first draft, and of every later draft if all rows are equal."""
    acceptance = np.minimum(p, q) if case.kind != "chosen" and case.mode != "coupled" else p * q
    rate = 0.0 if 0 in case.placeholders else min(1.0, float(acceptance[-1].sum()))

    def first(_: Array, accepted: Array) -> Verdict:
        verdict = share(int((accepted > 0).sum()), len(accepted), rate, "first drafts")
        return replace(verdict, worst=verdict.worst.replace(" drawn ", " accepted "))

    judge_part("first draft accepted", first)
    if case.drafts > 1 and len(p) == 1 and not case.placeholders:
        at_least = rate ** np.arange(case.drafts + 2)
        if case.mode == "block":
            at_least = _at_least_in_block(p[-1], q[-1], case.drafts, is_known=case.kind != "chosen")
        counts = np.append(at_least[:-2] - at_least[1:-1], at_least[-2])

        def in_a_row(_: Array, accepted: Array) -> Verdict:
            verdict = fit(accepted, counts)
            return replace(verdict, worst=f"of the numbers of accepted drafts, {verdict.worst}")

        judge_part("drafts accepted in a row", in_a_row)


def _at_least_in_block(p: Array, q: Array, drafts: int, *, is_known: bool) -> Array:
    """Return the probabilities that at least 0, 1 ... drafts are accepted, [K + 2]: the mean of ``r_i`` over drafts.

    :param p: [V], the target of every token, and ``q`` what every draft is drawn by.
    :param is_known: whether the verification knows q.
    """
    share, weight, at_least = np.ones(1), np.ones(1), [1.0]
    ratio = np.divide(p, q, out=np.zeros_like(p), where=q > 0) if is_known else p
    for _ in range(drafts):
        share = np.minimum(np.outer(share, ratio).ravel(), 1.0)
        weight = np.outer(weight, q).ravel()
        at_least.append(float((share * weight).sum()))
    return np.array([*at_least, 0.0])


def decode(
    subject: VerifySubject, case: Decoding, q: Array, trials: int, rng: Generator, *, seeded: bool
) -> tuple[Array, Array]:
    """Draw tokens [trials, K + 1], and count the drafts [trials] accepted by the first verification of each.

    :param q: [V + 1, V] or [1, V]: what the drafts are drawn by, where the verification is told so.
    """
    seed_torch(rng)
    dtype = case.own_dtype(subject)
    target, draft = (subject.upload(case.rows(subject, x), dtype) for x in (case.target, case.draft))
    probs = torch.from_numpy(q.astype(np.float32)).to(subject.device)
    size = target.shape[1]
    rows = min(_MOST_ROWS, subject.effort.elements // size) // (case.drafts + 1)
    parts = []
    for start in range(0, trials, max(1, rows)):
        count = min(max(1, rows), trials - start)
        seeds = torch.from_numpy(rng.integers(0, 2**64, count, np.uint64).view(np.int64)).to(subject.device)
        first = torch.from_numpy(rng.integers(0, 2**40, count)).to(subject.device)
        parts.append(_decode(subject, case, (target, draft, probs), seeds if seeded else None, first))
    tokens, accepted = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    return tokens, accepted


def _decode(
    subject: VerifySubject,
    case: Decoding,
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    seeds: torch.Tensor | None,
    first: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    width, size = case.drafts + 1, rows[0].shape[1]
    steps = torch.arange(1, width + 1, device=first.device)
    # Column 0 holds the row of a first token; what is written behind the first K + 1 tokens is not looked at.
    tokens = torch.full((len(first), 1 + 2 * width), size, device=first.device)
    done = torch.zeros_like(first)
    accepted: torch.Tensor | None = None
    while len(live_requests := (done < width).nonzero().squeeze(1)):
        live_seeds = None if seeds is None else seeds[live_requests]
        before = tokens[live_requests, done[live_requests]]
        drafts, contexts = _draw_drafts(
            subject, case, rows, live_seeds, first[live_requests] + done[live_requests], before
        )
        count = len(drafts.draft_token_ids) + len(live_requests)
        metadata = _metadata(
            case,
            len(live_requests),
            live_seeds,
            speculative.row_positions(
                drafts.cu_num_logits, first[live_requests] + done[live_requests], count
            ),
            speculative.row_index(drafts.cu_num_logits, count),
        )
        output = subject.verify(_rows_after(rows[0], contexts), drafts, metadata, case.mode)
        tokens[live_requests.unsqueeze(1), done[live_requests].unsqueeze(1) + steps] = output.token_ids
        done[live_requests] += output.num_accepted + 1
        accepted = output.num_accepted if accepted is None else accepted
    assert accepted is not None
    return tokens[:, 1 : width + 1], accepted


def _draw_drafts(
    subject: VerifySubject,
    case: Decoding,
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    seeds: torch.Tensor | None,
    first: torch.Tensor,
    before: torch.Tensor,
) -> tuple[Drafts, torch.Tensor]:
    """Draw K drafts for each request; return them and the token before each row of the target [L]."""
    _, draft, probs = rows
    contexts, ids = [before], []
    # A block looks at drafts that it does not accept: the next ones at their positions need other noise.
    seeds = None if case.mode == "block" else seeds
    for step in range(case.drafts):
        metadata = _metadata(case, len(first), seeds, first + step)
        x = subject.draft(_rows_after(draft, contexts[-1]), metadata).token_ids
        is_drawn = step not in case.placeholders
        ids.append(x if is_drawn else torch.full_like(x, -1))
        contexts.append(x if is_drawn else torch.zeros_like(x))
    at = torch.stack(contexts[:-1], 1).flatten() if ids else before[:0]
    drafts = Drafts.from_counts(
        torch.stack(ids, 1).flatten() if ids else before[:0],
        [case.drafts] * len(first),
        draft_probs=_rows_after(probs, at) if case.kind == "probs" else None,
        draft_logits=_rows_after(draft, at) if case.kind == "logits" else None,
        any_placeholder=bool(case.placeholders),
    )
    return drafts, torch.stack(contexts, 1).flatten()


def _rows_after(rows: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return the row after each token, or the only row."""
    return rows[before.clamp(max=len(rows) - 1)]


def _metadata(
    case: Decoding,
    slots: int,
    seeds: torch.Tensor | None,
    positions: torch.Tensor,
    row_index: torch.Tensor | None = None,
) -> SamplingMetadata:
    row = equal_rows(case.params, slots, positions.device)
    facts = row.facts if seeds is None else replace(row.facts, any_seeded=True, all_seeded=True)
    return replace(row, seed=seeds, positions=positions, row_index=row_index, facts=facts)


# No two probabilities are equal, so that no rule for ties matters, and every filter has its edge between them.
_EIGHT: Final = np.log([0.30, 0.22, 0.17, 0.11, 0.08, 0.06, 0.04, 0.02])
_DRAFT_EIGHT: Final = np.log([0.09, 0.24, 0.06, 0.21, 0.16, 0.04, 0.13, 0.07])

# A draft that has more draft mass than target mass is often accepted as the last one, and the residual behind it has
# fewer tokens than p - q.
_THREE: Final = np.log([0.5, 0.2, 0.3])
_HEAVY_DRAFT: Final = np.log([0.1, 0.1, 0.8])
_TELLING_ROWS: Final = (0, 0, 1508427877)


def markov_case(
    trial: Trial, kind: DraftKind, mode: VerifyMode, placeholders: tuple[int, ...] = ()
) -> Decoding:
    """Make rows that depend on the token before, with every pair of tokens likely enough to be drawn.

    Those of blocks are fixed: in them noise that the next verification uses again moves the second token by 5 %.
    """
    rng = np.random.default_rng(_TELLING_ROWS) if mode == "block" else trial.generator("Markov")
    target, draft = rng.normal(size=(2, 5, 4)).clip(-1.5, 1.5)
    return Decoding(target=target, draft=draft, kind=kind, mode=mode, placeholders=placeholders)


@properties.required("verify distribution", is_long=True)
def distribution(subject: VerifySubject, trial: Trial) -> str:
    """Drafts follow their rows, tokens and pairs of them the target, and as many drafts are accepted as a mode can."""
    _judge_drafts(subject, trial)
    seeded = seedings(subject.capabilities)[-1]
    for mode in subject.capabilities.verify_modes:
        for label, case, divisor, is_seeded in _cases(subject, trial, mode, seeded=seeded):
            draws = subject.effort.tiled_draws if "tiles" in label else subject.effort.draws
            judge(subject, trial, f"{mode}: {label}", case, draws // divisor, seeded=is_seeded)
    return f"{all_of(subject.capabilities.verify_modes)}; {all_of(subject.capabilities.draft_kinds)}"


def _cases(
    subject: VerifySubject, trial: Trial, mode: VerifyMode, *, seeded: bool
) -> Iterator[tuple[str, Decoding, int, bool]]:
    """Make the decodings of a mode, each with its label, a divisor of its draws, and whether requests have seeds."""
    capabilities, dtypes = subject.capabilities, subject.cycle_dtypes()
    kind, *other_kinds = capabilities.draft_kinds
    markov = markov_case(trial, kind, mode)
    for dtype in capabilities.dtypes[seeded and mode != "coupled" :]:
        yield f"Markov, {dtype}", replace(markov, dtype=dtype), 8, False
    yield "Markov", markov, 2 if mode == "block" else 4, seeded
    one = replace(markov, drafts=1)  # then a bonus token
    yield "Markov, one draft", one, 4, seeded and mode != "coupled"
    if mode == "coupled":
        yield "Markov, one draft, again", replace(one, dtype=capabilities.dtypes[-1]), 8, False
    else:
        logits = trial.generator("rows").normal(size=16).clip(-1.5, 1.5)
        opposite = functools.partial(Decoding, target=logits, draft=-logits, kind=kind, mode=mode)
        yield "one opposite draft", opposite(drafts=1), 4, seeded
        yield "three opposite drafts", opposite(drafts=3), 4, seeded
        # A target with most of its excess in tiles where the draft has next to nothing.
        target, draft = np.full(2600, -12.0), np.full(2600, -12.0)
        target[[3, 1500, 2590]], draft[[3, 4, 2590]] = [0.0, 0.3, -0.5], [1.0, 0.0, -2.0]
        yield "three tiles", Decoding(target=target, draft=draft, drafts=1, kind=kind, mode=mode), 4, seeded
        for other_kind in other_kinds:
            other = replace(markov, kind=other_kind, dtype=next(dtypes))
            for is_seeded in seedings(capabilities):
                yield f"Markov, {other_kind}", other, 4, is_seeded
    if mode == "block":
        heavy = Decoding(target=_THREE, draft=_HEAVY_DRAFT, drafts=3, kind=kind, mode=mode)
        yield "three heavy drafts", heavy, 4, seeded
    for step in (0, 1) if capabilities.placeholder_drafts else ():
        label = f"Markov, no draft in place {step + 1}"
        yield label, replace(markov, placeholders=(step,)), 4, False
    eight = functools.partial(Decoding, target=_EIGHT, draft=_DRAFT_EIGHT, kind=kind, mode=mode)
    for name, params in _filter_requests(subject).items():
        yield name, eight(params=params, dtype=next(dtypes)), 4, seeded
    yield "temperature", eight(params=SamplingParams(temperature=1.7)), 4, False


def _judge_drafts(subject: VerifySubject, trial: Trial) -> None:
    """Judge draws of ``draft`` from the softmax after the filters."""
    dtypes = subject.cycle_dtypes()
    for name, params in {"no filter": SamplingParams(), **_filter_requests(subject)}.items():
        dtype = next(dtypes)
        row = rounded(_DRAFT_EIGHT, dtype)
        x = subject.upload(row, dtype)
        p = expect(row, params, subject.capabilities.tie_rule).probabilities

        def experiment(
            rng: Generator,
            draws: int,
            params: SamplingParams = params,
            p: Array = p,
            x: torch.Tensor = x,
        ) -> Verdict:
            seed_torch(rng)
            metadata = row_metadata(
                subject.drafts([[]] * draws, len(x), "chosen"), [params] * draws, [3] * draws
            )
            return fit(subject.draft(x.repeat(draws, 1), metadata).token_ids.cpu().numpy(), p)

        trial.judge(f"drafts, {name}, {dtype}", experiment, subject.effort.tiled_draws)


def _filter_requests(subject: VerifySubject) -> dict[str, SamplingParams]:
    """Make a request for each filter applied per row."""
    capabilities = subject.capabilities
    return {
        name: replace(params, filter_order=subject.filter_order)
        for name, params in FILTERS.items()
        if (name, "per_row") in capabilities.filters
        and (name != "top_k" or (capabilities.max_top_k or params.top_k) >= params.top_k)
    }


# Equal or nearly equal targets and drafts, which show every rounding.

_NEAR_SIZE: Final = 1025
_WIDE_SIZE: Final = 65_543
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
    capabilities = subject.capabilities
    sizes = (_NEAR_SIZE,) if subject.effort.mixed else (_NEAR_SIZE, _WIDE_SIZE)
    served_sizes = [size for size in sizes if size <= (capabilities.max_vocab_size or size)]
    if not served_sizes:
        trial.skip(f"needs a vocabulary of {_NEAR_SIZE:,}, found a limit of {capabilities.max_vocab_size}")
    kinds = [kind for kind in capabilities.draft_kinds if kind != "chosen"]
    for dtype in capabilities.dtypes:
        for kind in kinds:
            for size in served_sizes:
                count = subject.effort.draws_of(300 if size == served_sizes[0] else 90)
                trial.judge(
                    f"residual, V = {size}, {dtype}, {kind}",
                    _residual_experiment(subject, dtype, size, kind),
                    count,
                )
            trial.judge(
                f"equal rows, {dtype}, {kind}",
                _equal_experiment(subject, dtype, kind),
                subject.effort.draws_of(4000),
            )
    return f"{all_of(kinds)}, {all_of(capabilities.dtypes)}, V = {all_of(map(str, served_sizes))}"


def _residual_experiment(
    subject: VerifySubject, dtype: str, size: int, kind: DraftKind
) -> Callable[[Generator, int], Verdict]:
    """Make p and q that differ by less than the digits of half precision: rounding loses tokens of the residual."""

    def experiment(rng: Generator, count: int) -> Verdict:
        seed_torch(rng)
        missing = int(rng.integers(size))
        steps, has_excess = rng.integers(_STEPS + 4, 2 * _STEPS - 4, size), rng.random(size) < 0.5
        target = (steps / _PER_UNIT).astype(np.float32)
        draft_steps = steps + np.where(has_excess, -_STEP_DISTANCE, _STEP_DISTANCE)
        draft = (draft_steps / _PER_UNIT).astype(np.float32)
        target[missing], draft[missing] = -np.inf, _RARE_LOGIT
        p, q = (torch.from_numpy(expect(x, SamplingParams()).probabilities) for x in (target, draft))
        draft_row = subject.upload_draft(q.float().numpy() if kind == "probs" else draft, dtype, kind)
        logits, ids = subject.upload(target, dtype).expand(2 * count, -1), [[missing]] * count
        output = subject.verify_ids(logits, ids, ("rejection", kind), draft_row.expand(count, -1))
        tokens = output.token_ids[:, 0].cpu().numpy()
        verdict = fit(tokens, (p - q).clamp(min=0).numpy(), bins_of_residuals(p, q))
        return replace(verdict, worst=f"of residuals in the last digits of p, {verdict.worst}")

    return experiment


def bins_of_residuals(p: torch.Tensor, q: torch.Tensor) -> NDArray[np.int64]:
    """Sort the tokens of max(p - q, 0) by the half-precision types that lose them: bins [V] from 0, or -1."""
    loss_pattern = sum(((p.to(half) == q.to(half)) * (place + 1) for place, half in enumerate(_HALF_DTYPES)))
    assert isinstance(loss_pattern, torch.Tensor)
    has_excess, bins = (p > q).numpy(), np.full(len(p), -1)
    bins[has_excess] = np.unique(loss_pattern.numpy()[has_excess], return_inverse=True)[1]
    return bins


def _equal_experiment(
    subject: VerifySubject, dtype: str, kind: DraftKind
) -> Callable[[Generator, int], Verdict]:
    """Make p = q, and the drafts most often rejected after rounding q up to half precision."""
    size, steps = _NEAR_SIZE, 16 if not subject.effort.mixed else 4

    def experiment(rng: Generator, draws: int) -> Verdict:
        seed_torch(rng)
        count = max(1, draws // steps)
        row = torch.from_numpy(rng.normal(0, 3, size)).to(getattr(torch, dtype))
        q = torch.from_numpy(expect(row.float().numpy(), SamplingParams()).probabilities)
        ratios = [q.to(half).double() / q for half in _HALF_DTYPES]
        ids = torch.cat([ratio.argsort(descending=True)[: steps // 2] for ratio in ratios]).tolist()
        draft_rows = (q.float() if kind == "probs" else row).to(subject.device).expand(count * steps, -1)
        logits = row.to(subject.device).expand(count * (steps + 1), -1)
        output = subject.verify_ids(logits, [ids] * count, ("rejection", kind), draft_rows)
        num_refused = sum(len(tokens) <= steps for tokens in chains(output))
        rate = steps * _ROUNDING_SHARE
        text = f"requests with p = q refused a draft {num_refused} times, expected at most {rate * count:.1f}"
        return Verdict(float(stats.binom.sf(num_refused - 1, count, rate)), text, count * steps)

    return experiment


# Requests without seeds: every use of noise is new.

_NARROW_SIZE: Final = 257
_TILED_SIZE: Final = 2053
_WIDE_VOCAB_SIZES: Final = (65_543, 131_113)
_KEPT_TOKENS: Final = 64
_SURE_LOGIT: Final = 60.0
_SMALL_SIZE: Final = 4
_NUM_DRAFTS: Final = 15


@properties.required("verify shared noise")
def shared_noise(subject: VerifySubject, trial: Trial) -> str:
    """Drafts, recovered tokens and bonus tokens of successive calls coincide as often as independent draws do."""
    capabilities = subject.capabilities
    plain_params = SamplingParams(filter_order=subject.filter_order)
    is_filtered = ("top_k", "per_row") in capabilities.filters and (
        capabilities.max_top_k or _KEPT_TOKENS
    ) >= _KEPT_TOKENS
    most = subject.effort.draws_of(1100)
    looks = [(_NARROW_SIZE, most, plain_params)]
    if is_filtered:
        looks.append((_TILED_SIZE, most, replace(plain_params, top_k=_KEPT_TOKENS)))
    if not subject.effort.mixed:
        wide_sizes = _WIDE_VOCAB_SIZES[: 1 if subject.effort.quick else None]
        looks += [(size, 70, plain_params) for size in wide_sizes]
    served_looks = [look for look in looks if look[0] <= (capabilities.max_vocab_size or look[0])]
    if not served_looks:
        trial.skip(f"needs a vocabulary of {_NARROW_SIZE}, found a limit of {capabilities.max_vocab_size}")
    for dtype in capabilities.dtypes:
        for size, count, params in served_looks:
            _judge_tokens(subject, trial, dtype, size, count, params)
    return f"{most} requests and fewer of wide vocabularies, {all_of(capabilities.dtypes)}"


def _judge_tokens(
    subject: VerifySubject, trial: Trial, dtype: str, size: int, count: int, params: SamplingParams
) -> None:
    """Compare all pairs of tokens, each uniform over the same ids, of several calls."""
    kept = _KEPT_TOKENS if params.top_k else size - 1
    row = np.full(size, -30.0 if params.top_k else 0.0, np.float32)
    row[1 : kept + 1] = 0.0
    row[0] = -np.inf
    x = torch.from_numpy(row).to(getattr(torch, dtype)).to(subject.device)

    def experiment(rng: Generator, num_requests: int) -> Verdict:
        seed_torch(rng)
        tokens, requests = [], _mix_seeds(subject, rng, params, num_requests)
        for _ in range(2):
            positions = rng.integers(0, 2**40, num_requests).tolist()
            metadata = SamplingMetadata.from_params(requests, device=subject.device, positions=positions)
            tokens.append(subject.draft(x.expand(num_requests, -1), metadata).token_ids.cpu().numpy())
        kind = subject.capabilities.draft_kinds[-1]
        draft_row = torch.where(torch.arange(size, device=subject.device) == 0, _SURE_LOGIT, -_SURE_LOGIT)
        draft_row = (draft_row > 0).float() if kind == "probs" else draft_row.to(x.dtype)
        modes = subject.capabilities.verify_modes
        # One draft each, which the target cannot emit; and none: what is emitted then is a bonus token in any mode.
        for mode, n in [*((mode, 1) for mode in modes), *[(modes[0], 0)] * (not params.top_k)]:
            target, draft_rows = x.expand((n + 1) * num_requests, -1), draft_row.expand(n * num_requests, -1)
            ids, first = [[0] * n] * num_requests, rng.integers(0, 2**40, num_requests).tolist()
            output = subject.verify_ids(target, ids, (mode, kind), draft_rows, requests, first)
            tokens.append(output.token_ids[:, 0].cpu().numpy())
        values = np.concatenate(tokens) - 1
        pairs = coincidences(values, 1 / kept, "token", num_requests)
        return worst_of([pairs, spread(values, np.full(kept, 1 / kept))])

    label = f"V = {size}, {dtype}" + f", top_k = {_KEPT_TOKENS}" * bool(params.top_k)
    trial.judge(label, experiment, count)


def _mix_seeds(
    subject: VerifySubject, rng: Generator, params: SamplingParams, count: int
) -> list[SamplingParams]:
    """Make requests without seeds; a third of the filtered requests has seeds."""
    if not params.top_k or subject.capabilities.seeding != "counter":
        return [params] * count
    seeds, _ = random_seeds(rng, count)
    return [replace(params, seed=seed) if i % 3 == 1 else params for i, seed in enumerate(seeds)]


@properties.advertised("verify unseeded acceptance", lambda c: "rejection" in c.verify_modes)
def acceptance(subject: VerifySubject, trial: Trial) -> str:
    """Drafts of one request, of neighbours and of requests far apart are accepted independently."""
    capabilities = subject.capabilities
    most = subject.effort.draws_of(1100)
    if (capabilities.max_vocab_size or _SMALL_SIZE) < _SMALL_SIZE:
        trial.skip(f"needs a vocabulary of {_SMALL_SIZE}, found a limit of {capabilities.max_vocab_size}")
    looks = [(_SMALL_SIZE, most, _NUM_DRAFTS)]
    if not subject.effort.mixed:
        looks.append((_WIDE_VOCAB_SIZES[0], 40, 3))
    for dtype in capabilities.dtypes:
        for size, count, steps in looks:
            if size <= (capabilities.max_vocab_size or size):
                trial.judge(
                    f"V = {size}, {dtype}", _acceptance_experiment(subject, dtype, size, steps), count
                )
    return f"{most} requests of {_NUM_DRAFTS} drafts, {all_of(capabilities.dtypes)}"


def _acceptance_experiment(
    subject: VerifySubject, dtype: str, size: int, steps: int
) -> Callable[[Generator, int], Verdict]:
    """Make requests with about equally likely numbers of accepted drafts, 0 to ``steps``."""
    kind = next(kind for mode, kind in subject.ways if mode == "rejection")
    rates = (steps - np.arange(steps)) / (steps + 1 - np.arange(steps))
    rows = np.zeros((steps + 1, size), np.float32)
    rows[:-1, 0] = np.log(rates / (1 - rates) * (size - 1))
    target = subject.upload(rows, dtype)
    exact_rows = target[:-1].float().cpu().numpy()
    passed = np.cumprod([1.0, *(float(expect(x, SamplingParams()).probabilities[0]) for x in exact_rows)])
    probabilities = passed - np.append(passed[1:], 0.0)
    sure_row = np.where(np.arange(size) == 0, np.float32(_SURE_LOGIT), np.float32(-_SURE_LOGIT))
    sure_row = (sure_row > 0).astype(np.float32) if kind == "probs" else sure_row
    draft_row = subject.upload_draft(sure_row, dtype, kind)

    def experiment(rng: Generator, count: int) -> Verdict:
        seed_torch(rng)
        target_rows, draft_rows = target.repeat(count, 1), draft_row.expand(count * steps, -1)
        output = subject.verify_ids(target_rows, [[0] * steps] * count, ("rejection", kind), draft_rows)
        accepted = output.num_accepted.cpu().numpy().astype(np.int64)
        pairs = coincidences(accepted, float((probabilities**2).sum()), "number", count)
        worst = worst_of([fit(accepted, probabilities), pairs])
        return replace(worst, worst=f"of numbers of accepted drafts, {worst.worst}")

    return experiment
