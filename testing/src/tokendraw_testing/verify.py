"""The lines of ``verify``: random requests with drafts beside float64, drafts, sure decisions, shapes and refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import SamplingParams, VerifyOutput
from tokendraw.plugin import PAD_LOGPROB, DraftKind, GumbelDtype, VerifyCapabilities, VerifyMode
from tokendraw.tools import all_of
from tokendraw_testing import cases, exact, kept_sets, reference, reference_walk
from tokendraw_testing.cases import CrossedRequest, Site, drafts, telling
from tokendraw_testing.kit.property import OperationKit, Properties, Refusal, offers
from tokendraw_testing.kit.subject import VerifySubject, draft_refusal, require_unadvertised
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.reference import Array
from tokendraw_testing.row_judge import LogprobRows, require_bounds, require_draws
from tokendraw_testing.sample import REFUSALS, RowBatch
from tokendraw_testing.statistics import verify as statistics

properties = Properties("verify")

# The judge of each column of a verification: chains, ``valid``, kept sets and log-probabilities, and drafts.

_RESIDUAL_MARGIN: Final = 1e-4
"""A token belongs to a residual if p is larger than q by this share, and does not if it is smaller by it."""


def judge_chains(
    subject: VerifySubject, trial: Trial, call: drafts.CrossedCall, least_lead: float = reference.NEAR_TIE
) -> int:
    """Make a call and judge each request; return the number of chains named by the reference.

    :param least_lead: that names a chain.
    """
    output, answers, num_named = call.verify(subject), call.answers(), 0
    results, valid = drafts.chains(output), output.valid.tolist()
    for index, (i, tokens) in enumerate(zip(call.order, results, strict=True)):
        request, answer = call.requests[i], answers[i]
        what = f"{call}, request {index}: {request}"
        num_used = len(request.target) if call.form.mode == "block" else len(tokens)
        if request.is_settled(num_used) and answer is not None:
            is_named = answer.lead >= least_lead
            is_same = tokens == answer.tokens or not is_named
            trial.require(is_same, f"{what} needs {answer.tokens}, found {tokens}")
            num_named += is_named
        elif request.is_settled(num_used):
            _require_possible(trial, request, tokens, what)
        expected_valid = _is_valid(request, len(tokens))
        trial.require(
            valid[index] == expected_valid or not subject.capabilities.valid_flag,
            f"{what} needs valid {expected_valid}, found {valid[index]}",
        )
    if output.threshold is not None:
        _require_bounds(trial, call, output)
    if output.logprobs is not None:
        _require_logprobs(subject, trial, call, output, results)
    return num_named


def require_drafts(
    subject: VerifySubject, trial: Trial, batch: Sequence[CrossedRequest], dtype: GumbelDtype | None = None
) -> None:
    """Draw a draft from each row, and require a kept token or the token of the seed, and ``valid``."""
    dtype, metadata = dtype or subject.gumbel_dtype, cases.request_metadata(batch, subject.device)
    output = subject.call("draft", cases.stack_logits(batch, subject.device), metadata, gumbel_dtype=dtype)
    require_draws(subject, trial, batch, output, dtype, reference_walk.DRAFT)


def _read_steps(request: drafts.DraftRequest, num_used: int) -> list[int]:
    """List the steps whose drafts' rows are read for the first tokens."""
    ids = request.ids[:num_used] if request.params.temperature > 0 else []
    return [step for step, token in enumerate(ids) if 0 <= token < request.form.site.size]


def _is_valid(request: drafts.DraftRequest, num_used: int) -> bool:
    """Whether all rows of ``num_used`` tokens are free of NaN and have a value above -inf."""
    read = _read_steps(request, num_used)
    return all(row.valid for row in request.rows[:num_used]) and all(request.drawn_by(i)[1] for i in read)


def _require_possible(trial: Trial, request: drafts.DraftRequest, tokens: list[int], what: str) -> None:
    for token, row in zip(tokens, request.rows, strict=False):
        trial.require(row.kept[token], f"{what} needs kept tokens, found {tokens}: {token} is dropped")
    for step in _read_steps(request, len(tokens)):
        p, (q, _) = reference_walk.distribution(request.rows[step]), request.drawn_by(step)
        token, is_possible = tokens[step], True
        if step < len(tokens) - 1:
            is_possible = q[token] > 0
        elif request.form.mode == "rejection" and (p > q * (1 + _RESIDUAL_MARGIN)).any():
            is_possible = p[token] > q[token] * (1 - _RESIDUAL_MARGIN)
        needed = "an accepted draft that has q > 0, or a token from max(p - q, 0)"
        at = f"{token} with p = {p[token]:.3g}, q = {q[token]:.3g}"
        trial.require(is_possible, f"{what} needs {needed}, found {at}")


def _require_bounds(trial: Trial, call: drafts.CrossedCall, output: VerifyOutput) -> None:
    """Require the bounds of every row whose kept set rounding does not decide, whether or not the row was used."""
    assert output.threshold is not None
    thresholds = output.threshold.tolist()
    ceilings = [None] * len(thresholds) if output.ceiling is None else output.ceiling.tolist()
    rows = [request.step(i) for request in call.batch for i in range(len(request.target))]
    for each, threshold, ceiling in zip(rows, thresholds, ceilings, strict=False):
        if (row := each.row.prepared).certain:
            what = f"{call}, a row of {each}"
            require_bounds(trial, what, row, threshold, ceiling, has_ceiling=each.has_ceiling)


def _require_logprobs(
    subject: VerifySubject,
    trial: Trial,
    call: drafts.CrossedCall,
    output: VerifyOutput,
    results: list[list[int]],
) -> None:
    """Demand values, the N best and ranks of every token from a row without poison, and padding behind."""
    assert output.logprobs is not None
    rows = LogprobRows(output.logprobs, output.log_kept_mass)
    mode = call.logprobs_mode or subject.need().logprobs_mode
    index_of = {i: index for index, i in reversed(list(enumerate(call.order)))}
    for i, index in index_of.items():
        request, tokens = call.requests[i], results[index]
        if request.params.logprobs is None:
            continue
        what = f"{call}, {mode}, N = {request.params.logprobs}, request {index}: {request}"
        behind = rows.masses[index, len(tokens) :]
        trial.require(
            (behind == PAD_LOGPROB).all(),
            f"{what} needs log_kept_mass -inf behind its {len(tokens)} tokens, found {behind.tolist()}",
        )
        for number, token in enumerate(tokens):
            row, step, at = request.rows[number], request.step(number), (index, number)
            if row.valid and row.x.max() < np.inf:
                rows.require(trial, what, step, token, mode, at)
            else:
                rows.require_form(trial, what, step, token, at)


# Shapes and refusals.

_MODES: Final[tuple[VerifyMode, ...]] = ("rejection", "coupled", "block")
_KINDS: Final[tuple[DraftKind, ...]] = ("probs", "logits", "chosen")
_REFUSALS: Final[tuple[tuple[Callable[[VerifyCapabilities], bool], Refusal], ...]] = (
    *REFUSALS,
    *((offers("verify_modes", mode), draft_refusal(mode=mode)) for mode in _MODES),
    *((offers("draft_kinds", kind), draft_refusal(kind=kind)) for kind in _KINDS),
    (lambda c: c.ragged_drafts, draft_refusal(ragged=True)),
    (lambda c: c.placeholder_drafts, draft_refusal(placeholder=True)),
)
"""Capabilities, each with a request that has to be refused without it."""
_SURE_SIZE: Final = 300
_PLACEHOLDERS: Final = (-1, _SURE_SIZE, drafts.OUTSIDE_ID, -(2**63))


@properties.required("verify output")
def output(subject: VerifySubject, trial: Trial) -> str:
    """Sure drafts up to a placeholder are accepted, in batches of any shape; unadvertised requests are refused."""
    capabilities, rng, most = subject.capabilities, trial.generator("ids"), subject.effort.rows(128)
    trial.require(subject.ways, "'verify' needs a mode and a kind of drafts, found none advertised")
    shapes: tuple[list[int], ...] = ([], [2], [4, 4])
    if capabilities.ragged_drafts:
        shapes = ([], [0], [0, 0, 0], [2, 0, 9], [3, 0, 1, most], [0, most, 3, 1])
    looks: list[tuple[list[int], int | None]] = [(counts, None) for counts in shapes]
    looks += [(shapes[-3], token) for token in _PLACEHOLDERS if capabilities.placeholder_drafts]
    for way, (counts, placeholder) in itertools.product(subject.ways, looks):
        for dtype in capabilities.dtypes if sum(counts) < most else capabilities.dtypes[:1]:
            requests = []
            for index, count in enumerate(counts):
                ids = rng.integers(0, _SURE_SIZE, count + 1).tolist()
                target = [drafts.sure_row(token, _SURE_SIZE, dtype) for token in ids]
                if placeholder is not None and index == len(counts) - 1:
                    ids[count // 2] = placeholder
                requests.append((SamplingParams(), 7, target, ids[:-1]))
            judge_chains(subject, trial, drafts.call_of(subject, way, Site(dtype, _SURE_SIZE), requests))
    return f"{len(shapes)} shapes of batches" + require_unadvertised(subject, _REFUSALS)


# Random requests.


@properties.required("verify crossing", is_long=True)
def crossing(subject: VerifySubject, trial: Trial) -> str:
    """Chains, valid, thresholds and logprobs of requests crossed over values, drafts, fate and batch are float64's."""
    return _judge_cases(subject, trial, _sites(subject))


@properties.required("verify crossing, wide", is_long=True)
def wide_crossing(subject: VerifySubject, trial: Trial) -> str:
    """So they are in vocabularies of more than 65,536 and 131,072 ids that no vector load divides."""
    sites = _sites(subject, is_wide=True)
    if not sites:
        most = subject.capabilities.max_vocab_size or drafts.WIDE_SIZE + 1
        reason = "an effort without one" if most > drafts.WIDE_SIZE else f"a limit of {most:,}"
        trial.skip(f"needs a vocabulary above {drafts.WIDE_SIZE:,}, found {reason}")
    return _judge_cases(subject, trial, sites)


@properties.advertised("verify further filters", lambda c: bool(cases.further_filters(c)), is_long=True)
def further(subject: VerifySubject, trial: Trial) -> str:
    """So they are with typical-p, XTC, floors from moments and the temperature last; drafts have all but XTC."""
    filters = cases.further_filters(cases.per_row(subject.capabilities))
    return judge_further(subject, trial, list(filters.values()))


_QUICK_WIDE_CASES: Final = 96
"""Wide cases of a quick run; the rest of a table holds the last few pairs."""
_FURTHER_CASES: Final = 90


def judge_further(subject: VerifySubject, trial: Trial, further: Sequence[cases.Fields]) -> str:
    """Judge random calls of requests with one of some further filters each."""
    sites = _sites(subject)
    return _judge_cases(subject, trial, [s for s in sites if s.size <= cases.WIDE_SIZE] or sites, further)


def _sites(subject: VerifySubject, *, is_wide: bool = False) -> list[Site]:
    all_sites = cases.sites(subject.capabilities, subject.effort)
    return [site for site in all_sites if (site.size > drafts.WIDE_SIZE) == is_wide]


def _judge_cases(
    subject: VerifySubject, trial: Trial, sites: list[Site], further: Sequence[cases.Fields] = ()
) -> str:
    """Judge a covering table, or random calls with further filters, and the request with most drafts of each alone."""
    rng, effort, is_wide = trial.generator("requests"), subject.effort, sites[0].size > drafts.WIDE_SIZE
    domains, num_chains, num_named = drafts.draft_factors(subject, sites), 0, 0
    if further:
        domains |= {
            "batch": [9],
            "poison": [()],
            "drafts": domains["drafts"][1:],
            "layout": drafts.LAYOUTS[:1],
        }
        ways = itertools.islice(itertools.cycle(subject.ways), effort.rows(_FURTHER_CASES, least=9))
        table = [cases.random_case(domains | {"way": [way]}, rng, drafts.is_allowed) for way in ways]
    else:
        most = _QUICK_WIDE_CASES if effort.quick and is_wide else None
        table = cases.covering(domains, rng, drafts.is_allowed)[: effort.crossed_rows or most]
    for number, case in enumerate(table):
        call = drafts.make_call(subject, rng, case, domains, further)
        is_alone = len(call.requests) == 1 or is_wide
        longest = max(call.requests, key=lambda request: len(request.ids))
        for turn, part in enumerate((call, *[replace(call, requests=[longest], order=[0])] * (not is_alone))):
            is_bounded = subject.capabilities.threshold and (number + turn) % 2 == 1
            view = subject.with_need(threshold=True) if is_bounded else subject
            num_named += _judge_call(view, trial, part)
            num_chains += len(part.order)
    return f"{num_chains} chains in {len(table)} calls, {num_named} of them named by the reference"


def _judge_call(subject: VerifySubject, trial: Trial, call: drafts.CrossedCall) -> int:
    num_named = judge_chains(subject, trial, call)
    require_drafts(subject, trial, [request.to_draw() for request in call.requests], call.form.gumbel_dtype)
    return num_named


def fuzz(subject: VerifySubject, rng: Generator, trial: Trial) -> str:
    """Make and judge one random call of the same factors."""
    domains = drafts.draft_factors(subject, cases.sites(subject.capabilities, subject.effort))
    call = drafts.make_call(subject, rng, cases.random_case(domains, rng, drafts.is_allowed), domains)
    _judge_call(subject, trial, call)
    return str(call)


@properties.required("verify crossed drafts")
def crossed_drafts(subject: VerifySubject, trial: Trial) -> str:
    """Drafts of designed rows are kept tokens, and those of their seeds, in every dtype and vocabulary."""
    capabilities, num_drafts = cases.per_row(subject.capabilities), 0
    all_sites = cases.sites(capabilities, subject.effort)
    widest = max(site.size for site in all_sites)
    if subject.effort.quick:  # only the widest of the wide vocabularies
        all_sites = [site for site in all_sites if site.size in (widest, min(site.size, cases.WIDE_SIZE))]
    for site in all_sites:
        rng = trial.generator(str(site))
        rows = cases.rows_of_designs(capabilities, site, rng)
        rows += [] if site.size > cases.WIDE_SIZE else cases.threshold_rows(capabilities, site, rng)
        kinds = cases.kinds(capabilities)[:2]  # drafts of greedy rows stand beside verifications
        batch = [request for row in rows for request in cases.make_requests(row, kinds, rng)]
        require_drafts(subject, trial, batch)
        num_drafts += len(batch)
    return f"{num_drafts} drafts in {len(all_sites)} dtypes and vocabularies"


@properties.advertised("verify noise precision", cases.has_counter)
def noise_precision(subject: VerifySubject, trial: Trial) -> str:
    """Seeded requests with different chains in 53-bit and 32-bit noise get the chain of the advertised precision."""
    capabilities, precisions, num_rows = subject.capabilities, subject.noise_dtypes, 0
    has_top_k = ("top_k", "per_row") in capabilities.filters
    if (capabilities.max_vocab_size or telling.VOCAB_SIZE) < telling.VOCAB_SIZE:
        trial.skip(
            f"needs a vocabulary of {telling.VOCAB_SIZE}, found a limit of {capabilities.max_vocab_size}"
        )
    dtypes = capabilities.dtypes[: 1 if subject.effort.interpreted else None]
    for precision, dtype in itertools.product(precisions, dtypes):
        for way in subject.ways if dtype == dtypes[0] else subject.outer_ways:
            call = drafts.telling_call(subject, way, dtype, precision)
            num_rows += judge_chains(subject, trial, call, least_lead=0.0)
        batch = telling.telling_requests(
            subject, Site(dtype, telling.VOCAB_SIZE), has_top_k, reference_walk.DRAFT
        )
        require_drafts(subject, trial, batch, precision)
        num_rows += len(batch)
    return f"{num_rows} rows that tell {all_of(precisions)} noise"


# Decisions of the acceptance that hang on the last bit of p, q and u.

LEAST_U: Final = 228_227_993
"""A seed whose word of the stream ACCEPT at :data:`U_POSITION` is all zeros."""
LARGEST_U: Final = 12_713_842_529
"""A seed whose word of the stream ACCEPT at :data:`U_POSITION` is all ones."""
U_POSITION: Final = 9


@properties.advertised("verify sure drafts", lambda c: "rejection" in c.verify_modes)
def sure_drafts(subject: VerifySubject, trial: Trial) -> str:
    """p(x) = q(x) always accepts, p(x) = 0 and q(x) = 0 always reject; so do p / q nearly 0 and 1 at the ends of u."""
    count, size, num_cases = subject.effort.draws_of(2048), 4, 0
    is_seeded, rng = cases.has_counter(subject.capabilities), trial.generator("rows")
    flat, even, one = np.array([[0, 0, 0, 0], [0.25] * 4, [0, 1, 0, 0]], np.float32)
    equal = (3 * rng.standard_normal(size)).astype(np.float32)
    impossible, sure, unlikely, likely, sure_draft = np.array(
        [[0, -np.inf, 1, 0.5], [0, 60, 0, 0], [0, -14, 0, 0], [-15, 0, -20, -20], [-30, 0, -30, -30]],
        np.float32,
    )
    first = rng.integers(0, 2**40, count).tolist()
    seeds: list[int | None] = rng.integers(0, 2**63, count).tolist() if is_seeded else [None] * count
    if is_seeded:
        seeds[:2], first[:2] = (LEAST_U, LARGEST_U), (U_POSITION, U_POSITION)
    looks: tuple[tuple[str, Array, dict[DraftKind, Array], bool, int | None], ...] = (
        ("p = q", flat, {"probs": even}, True, None),
        ("p = q", equal, {"logits": equal}, True, None),
        ("p = q = 1", sure, {"probs": one, "logits": sure, "chosen": sure}, True, None),
        ("p = 0", impossible, {"probs": one, "logits": sure, "chosen": sure}, False, None),
        ("q = 0", flat, {"probs": one[::-1].copy(), "logits": impossible}, False, None),
        ("the least u", unlikely, {"probs": even, "logits": flat, "chosen": flat}, True, LEAST_U),
        ("the largest u", likely, {"probs": one, "logits": sure_draft, "chosen": flat}, False, LARGEST_U),
    )
    for look, dtype in itertools.product(looks, subject.capabilities.dtypes):
        label, target, draft_by_kind, accepted, seed = look
        for kind, draft in draft_by_kind.items():
            if kind not in subject.capabilities.draft_kinds or (seed is not None and not is_seeded):
                continue
            params, at = [SamplingParams(seed=each) for each in seeds], first
            if seed is not None:
                params, at = [SamplingParams(seed=seed)], [U_POSITION]
            num = len(params)
            draft_rows = subject.upload_draft(draft, dtype, kind).repeat(num, 1)
            logits = subject.upload(target, dtype).repeat(2 * num, 1)
            found = subject.verify_ids(logits, [[1]] * num, ("rejection", kind), draft_rows, params, at)
            hits, needed = int(found.num_accepted.sum()), num * accepted
            what = f"{label}, {dtype}, {kind}: of {num} drafts {needed}"
            trial.require(hits == needed, f"{what} need to be accepted, found {hits}")
            num_cases += 1
    return f"{num_cases} cases and dtypes, {count} drafts each" + ", and the ends of u" * is_seeded


# Exact lines.


class _ChainBatch(exact.Batch):
    """Verifications of requests of a form."""

    method, most = "verify", 64

    def __init__(self, subject: VerifySubject, call: drafts.CrossedCall, known: Sequence[bool] = ()) -> None:
        self.subject, self.crossed = subject, call
        self.need, self.options = subject.need(logprobs_mode=call.logprobs_mode), {"mode": call.form.mode}
        self.known = known or [
            answer is not None and answer.lead >= reference.NEAR_TIE and request.is_settled(len(request.rows))
            for answer, request in zip(call.answers(), call.requests, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.crossed.order)

    def __str__(self) -> str:
        return f"verify: {self.crossed}"

    def select(self, order: Sequence[int]) -> _ChainBatch:
        chosen = [self.crossed.order[i] for i in order]
        return _ChainBatch(self.subject, replace(self.crossed, order=chosen), self.known)

    def arguments(self) -> dict[str, Any]:
        names = ("target_logits", "drafts", "metadata")
        return dict(zip(names, self.crossed.arguments(self.subject), strict=True))

    def changing(self, arguments: dict[str, Any]) -> list[torch.Tensor]:
        target, drafts, metadata = arguments.values()
        return [target, drafts.draft_token_ids, metadata.positions]

    def followed(self, output: Any) -> list[torch.Tensor]:
        is_followed = [r.params.seed is not None or r.params.temperature == 0 for r in self.crossed.batch]
        return [output.token_ids[torch.tensor(is_followed)]]

    def columns(self, output: Any) -> list[exact.Columns]:
        columns = list[exact.Columns]()
        found = zip(self.crossed.order, drafts.chains(output), output.valid.tolist(), strict=True)
        for i, tokens, is_valid in found:
            rows, is_known = self.crossed.requests[i].rows, self.known[i]
            kept = [row.kept[token] or not row.certain for row, token in zip(rows, tokens, strict=False)]
            known = {"chain": tokens, "valid": is_valid} if is_known else {"chain": None, "valid": None}
            columns.append({**known, "a dropped token": not all(kept)})
        return columns


def _examples(subject: VerifySubject, rng: Generator, rows: int, size: int) -> Iterator[exact.Batch]:
    """Make batches of every way and dtype in turn, mixed from all kinds of requests, and one of drafts."""
    size, rows = min(size, subject.capabilities.max_vocab_size or size), -(-rows // 2)  # of requests
    modes = subject.capabilities.logprobs_modes
    ways = subject.outer_ways if rows > exact.MANY or size > drafts.WIDE_SIZE else subject.ways
    for turn, (way, dtype) in enumerate(zip(ways, subject.cycle_dtypes(), strict=False)):
        site = Site(dtype, size)
        domains = drafts.draft_factors(subject, [site])
        domains |= {"way": [way], "gumbel_dtype": [subject.gumbel_dtype], "logprobs_mode": [None]}
        domains |= {"poison": [()], "draft_dtype": [dtype], "best": [None], "layout": [drafts.LAYOUTS[0]]}
        few = [n for n in domains["drafts"] if n <= 5]
        domains["drafts"] = few if subject.capabilities.ragged_drafts else few[-1:]
        if not cases.has_counter(subject.capabilities):
            domains["temperature"] = [0.0 if subject.capabilities.greedy else 1e-6]
        case = cases.random_case(domains | {"batch": [1]}, rng, drafts.is_allowed) | {"batch": rows}
        crossed = drafts.make_call(subject, rng, case, domains, most_distinct=24)
        if modes and turn % 2:
            first, *others = crossed.requests
            first = replace(first, params=replace(first.params, logprobs=5))
            crossed = replace(crossed, requests=[first, *others], logprobs_mode=modes[turn % len(modes)])
        yield _ChainBatch(subject, crossed)
        if turn == 0:
            firsts = [request.to_draw() for request in crossed.batch]
            yield RowBatch(subject, firsts, None, [0] * len(firsts), "draft")


def _flat(subject: VerifySubject) -> tuple[_ChainBatch, str]:
    """Make requests without seeds, each with a token recovered from many equal tokens."""
    size = min(32_000, subject.capabilities.max_vocab_size or 32_000)
    requests = [(SamplingParams(), 0, [torch.zeros(size)] * 2, [i]) for i in range(24)]
    call = drafts.call_of(subject, subject.ways[0], Site("float32", size), requests)
    return _ChainBatch(subject, call), "chains"


KIT = OperationKit(
    view=VerifySubject,
    properties=(
        *properties.all,
        *statistics.properties.all,
        *kept_sets.lines("verify"),
        *exact.lines("verify", "verify ", _examples, _flat, device_shape=(48, 32_000)),
    ),
    fuzz=fuzz,
)
