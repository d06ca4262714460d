"""The lines of ``sample``: random rows with random requests beside float64, corners, seeds, shapes and refusals."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import BatchFacts, SamplingMetadata, SamplingParams, plugin
from tokendraw.plugin import Capabilities, GumbelDtype, LogprobsMode
from tokendraw.tools import all_of
from tokendraw_testing import cases, exact, kept_sets, reference, reference_walk
from tokendraw_testing.cases import CrossedRequest, CrossedRow, RowCall, Site, telling
from tokendraw_testing.expectation import expect
from tokendraw_testing.kit.property import OperationKit, Properties, Refusal, offers
from tokendraw_testing.kit.subject import (
    RowSubject,
    SampleSubject,
    ScoreSubject,
    require_refusal,
    require_unadvertised,
    row_refusal,
)
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.row_judge import LogprobRows, judge, named_tokens, require_draws, scored_tokens
from tokendraw_testing.statistics import sample as statistics

properties = Properties("sample")

_SPECIAL_SIZE: Final = 64
_NEAR_TIE_SIZE: Final = 16
"""Smallest vocabularies of rows with special values, and of near ties."""


# Shapes, limits and refusals.


_FILTERS: Final[Mapping[str, Any]] = {"top_k": 2, "top_p": 0.5, "min_p": 0.5, "typical_p": 0.5}
_ORDERS: Final = {"top_k_first": "top_p", "joint": "top_p", "temperature_last": "temperature"}
ROW_REFUSALS: Final = (
    *((offers("dtypes", name), Refusal({"dtype": name})) for name in plugin.INPUT_DTYPES),
    *((cases.has_filter(name), row_refusal(**{name: value})) for name, value in _FILTERS.items()),
    (cases.has_filter("xtc"), row_refusal(xtc_probability=1.0)),
    (lambda c: c.greedy, row_refusal(temperature=0.0)),
    (lambda c: c.threshold, Refusal({"threshold": True})),
    *(
        (offers("logprobs_modes", m), row_refusal({"logprobs_mode": m}, logprobs=1))
        for m in plugin.LOGPROBS_MODES
    ),
)
"""Capabilities, each with a request that has to be refused without it."""
REFUSALS: Final = (
    *ROW_REFUSALS,
    *(
        (
            offers("filter_orders", n),
            row_refusal({"filter_orders": (n,)}, top_k=2, filter_order=n, **{other: 0.5}),
        )
        for n, other in _ORDERS.items()
    ),
    (offers("row_moments", "std"), row_refusal(filters={"top_n_sigma": 1.0})),
    (cases.has_counter, row_refusal(seed=1)),
    (offers("gumbel_dtypes", "fp64"), Refusal({"gumbel_dtype": "fp64"})),
    (lambda c: c.valid_flag, Refusal({"valid_flag": True})),
    (lambda c: c.logprob_token_ids, row_refusal(logprob_token_ids=(1,))),
)


@properties.required("output")
def output(subject: SampleSubject, trial: Trial) -> str:
    """token_ids [B] int64, valid [B] bool, for empty batches and V = 1 too; unadvertised requests are refused."""
    limit = subject.capabilities.max_vocab_size or 5000
    for rows, size in ((0, 50), (1, 1), (5, 1), (3, 50), (0, min(5000, limit))):
        drawn = subject.sample(torch.zeros(rows, size), SamplingParams())
        found = f"found {drawn.token_ids.tolist()}, valid {drawn.valid.tolist()}"
        trial.require(drawn.valid.all(), f"[{rows}, {size}] logits of 0 need valid rows, {found}")
        trial.require(size > 1 or not drawn.token_ids.any(), f"V = 1 needs token 0, {found}")
    return "5 shapes" + require_unadvertised(subject, REFUSALS)


@properties.advertised("limits", lambda c: c.max_top_k is not None or c.max_vocab_size is not None)
def limits(subject: SampleSubject, trial: Trial) -> str:
    """Requests at the limits of top-k and of the vocabulary are served, requests beyond them refused."""
    k, size = subject.capabilities.max_top_k, subject.capabilities.max_vocab_size
    looks = []
    if k is not None:
        at_limit = min(k + 100, size or k + 100)
        looks.append((SamplingParams(top_k=k), at_limit, row_refusal(top_k=k + 1)))
    if size is not None:
        looks.append((SamplingParams(), size, Refusal({"vocab_size": size + 1})))
    for params, width, _ in looks:
        row = gaussian(trial.generator(f"{params}"), width)
        possible = expect(row, params, subject.capabilities.tie_rule).possible
        tokens = subject.tokens(torch.from_numpy(row).repeat(subject.effort.limit_rows, 1), params)
        misses = tokens[~possible[tokens]][:1]
        what = f"V = {width}, {cases.describe(params)}"
        trial.require(not len(misses), f"{what} needs a kept token, found {misses}")
    return "beyond them: " + " ".join(require_refusal(subject, refusal) for *_, refusal in looks)


# Lines of rows whose every column is judged.


class RowSet(NamedTuple):
    """Rows and requests in one dtype and vocabulary, of which calls of several kinds are made."""

    rows: Sequence[CrossedRow] = ()
    requests: Sequence[CrossedRequest] = ()
    """Requests with rows of their own."""
    copies: int = 1
    """Requests of each row in the large batch."""
    dtype: GumbelDtype | None = None
    """Precision of the noise; None: the usual one, and others for some calls."""
    parts: int = 0
    """Requests of each further small call; 0: there are none."""
    alone: int = 0
    """Rows with a call each; where there are several, calls of like rows are made, too."""


Make = Callable[[Any, Generator], Iterator[RowSet | RowCall]]
"""Makes sets of rows, or calls, for a subject."""


def judge_all(subject: Any, trial: Trial, make: Make) -> str:
    """Judge every row of the calls that are made for a subject, and say how many there were."""
    rng, sites, num_rows, num_named = trial.generator("calls"), set[Site](), 0, 0
    for number, made in enumerate(make(subject, trial.generator("table"))):
        for call in [made] if isinstance(made, RowCall) else _calls(subject, rng, number, made):
            num_rows += len(call.requests)
            sites |= {request.row.site for request in call.requests}
            num_named += judge(subject, trial, call)
    named = f", {num_named} of them of known token" * (num_named > 0)
    return f"{num_rows} rows in {len(sites)} dtypes and vocabularies{named}"


def _line(
    name: str, advertised: Callable[[Any], bool] | None = None, *, is_long: bool = False, least: int = 1
) -> Callable[[Make], Make]:
    """Make a line of what a function makes, whose docstring states the demand.

    :param least: the smallest vocabulary of its rows.
    """

    def register(make: Make) -> Make:
        @functools.wraps(make)
        def check(subject: SampleSubject, trial: Trial) -> str:
            limit = subject.capabilities.max_vocab_size or least
            if limit < least:
                trial.skip(f"needs a vocabulary of {least}, found a limit of {limit}")
            return judge_all(subject, trial, make)

        properties.advertised(name, advertised, is_long=is_long)(check)
        return make

    return register


def _calls(subject: SampleSubject, rng: Generator, number: int, made: RowSet) -> Iterator[RowCall]:
    """Make calls of a set: large and in slots, with thresholds, with log-probabilities, of like rows, and alone."""
    c, effort, row_kinds = subject.capabilities, subject.effort, cases.kinds(subject.capabilities)
    rows, requests, copies, noise, parts, alone = made
    large = _mixed([*cases.requests_in_turn(rows, row_kinds, copies, rng), *requests], rng)
    few = _mixed([*cases.requests_in_turn(rows, row_kinds, 1, rng, number), *requests], rng)
    if not few:
        return
    size, mode = few[0].row.site.size, (*c.logprobs_modes, None)[number % max(1, len(c.logprobs_modes))]
    slots = None if effort.interpreted else rng.permutation(len(large)).tolist()
    yield RowCall(large, None, noise, order=slots)
    yield RowCall(few, None, noise, threshold=True)
    if mode is not None and noise is None and not effort.skips(size, number):
        yield RowCall([each.asking((0, 3, None)[i % 3]) for i, each in enumerate(few)], mode, noise)
    for start in range(0, len(requests), parts) if parts else ():
        yield RowCall(requests[start : start + parts], None, noise)
    if alone > 1 and not effort.interpreted and size <= cases.WIDE_SIZE:
        # Kernels take short cuts on the host's knowledge of a batch.
        for turn, group in enumerate(alike(few)):
            yield RowCall(group, None, noise, threshold=turn % 3 == 0)
    for turn, row in enumerate(rows[:alone][number % 2 :: 2] if effort.interpreted else rows[:alone]):
        yield RowCall(cases.make_requests(row, [settled_kind(c)], rng), threshold=turn % 2 == 0)
    for dtype in c.gumbel_dtypes if alone > 1 and cases.has_counter(c) else ():
        if dtype != subject.gumbel_dtype:
            yield RowCall(cases.requests_in_turn(rows, ["seeded"], 1, rng), dtype=dtype)


def settled_kind(capabilities: Capabilities) -> cases.Kind:
    """Return the kind of rows of known tokens, if there is any."""
    return "seeded" if cases.has_counter(capabilities) else "unseeded"


def alike(batch: Sequence[CrossedRequest]) -> list[list[CrossedRequest]]:
    """Group requests by filters and by kinds."""
    groups: dict[tuple[Any, ...], list[CrossedRequest]] = {}
    for request in batch:
        p = request.params
        filters = p.top_k > 0, p.top_p < 1, p.min_p > 0, p.filter_order
        for key in (filters, (p.seed is not None, p.temperature > 0)):
            groups.setdefault(key, []).append(request)
    return list(groups.values())


def _mixed(batch: Sequence[CrossedRequest], rng: Generator) -> list[CrossedRequest]:
    return [batch[i] for i in rng.permutation(len(batch))]


@_line("crossed requests", is_long=True)
def crossed_requests(subject: SampleSubject, rng: Generator) -> Iterator[RowSet]:
    """Each row, alone, among its like and in a large batch, draws a kept token, its argmax, or its seed's token."""
    effort = subject.effort
    rows_by_site = cases.covering_rows(subject, rng, on_thresholds=True)
    least = min(site.size for site in rows_by_site)
    for site, rows in rows_by_site.items():
        most = effort.by_width(site.size, effort.crossed_batch, max(1, effort.crossed_batch // 6))
        if site.size == least and effort.fewer == 1:  # here a batch has more than a thousand rows
            most *= 4
        requests, copies = cases.unfiltered_requests(subject, site, rng), -(-most // len(rows))
        yield RowSet(rows, requests, copies, alone=len(rows))
    for batch in cases.combined_requests(subject, settled_kind(subject.capabilities), rng):
        yield RowSet((), batch)


@_line("last ids")
def last_ids(subject: SampleSubject, rng: Generator) -> Iterator[RowSet]:
    """The last ids are drawn, in every dtype, for vocabularies of every remainder by 4, 8, 16 and 1024."""
    c, effort = subject.capabilities, subject.effort
    sizes = [size for size in effort.remainders if size <= (c.max_vocab_size or size)]
    for (number, size), (turn, dtype) in itertools.product(enumerate(sizes), enumerate(c.dtypes)):
        is_left_out = effort.interpreted and (number + turn) % len(c.dtypes) == 2
        if not (is_left_out or effort.skips(size, number + turn)):
            rows, copies = cases.rows_of_last_ids(c, Site(dtype, size), rng), len(cases.kinds(c))
            yield RowSet(rows, copies=copies, alone=0 if effort.interpreted else 1)


@_line("far NaN and infinities", least=_SPECIAL_SIZE)
def far_special_values(subject: SampleSubject, rng: Generator) -> Iterator[RowSet]:
    """NaN, +inf and -inf anywhere in a row, and rows beside them, in every dtype and vocabulary, with the flag."""
    c = subject.capabilities
    for site in cases.sites(c, subject.effort):
        if site.size >= _SPECIAL_SIZE:
            rows = cases.share_among_dtypes(subject, site, cases.rows_of_special_values(c, site, rng))
            yield RowSet(rows + cases.huge_rows(c, site), copies=subject.effort.copies(4, site.size))


@_line("near ties", cases.has_counter, least=_NEAR_TIE_SIZE)
def near_ties(subject: SampleSubject, rng: Generator) -> Iterator[RowSet]:
    """Seeded rows draw the winner of scores that lie 0.0002 apart: nothing on the way to them is rounded."""
    limit, order = subject.capabilities.max_top_k, subject.filter_order
    for site in cases.sites(subject.capabilities, subject.effort):
        fields: list[dict[str, Any]] = [{"temperature": t} for t in (0.7, 1.7, 0.003, 12.0, 1.0)]
        fields += [{"temperature": 0.9, "min_p": 1e-7}] * subject.has("min_p")
        if subject.has("top_k") and (limit or site.size) >= site.size - 1:
            fields.append({"temperature": 1.3, "top_k": site.size - 1})
        requests = [SamplingParams(**each, filter_order=order) for each in fields]
        for dtype in subject.capabilities.gumbel_dtypes if site.size >= _NEAR_TIE_SIZE else ():
            some = itertools.islice(itertools.cycle(requests), subject.effort.rows(8))
            made = [telling.make_near_tie(site, params, rng, dtype) for params in some]
            yield RowSet((), [request for request in made if request is not None], dtype=dtype)


_EDGE_SEEDS: Final = (0, 1, -1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**32 - 1, 2**32, -(2**32))
_EDGE_POSITIONS: Final = (0, 1, 2**32 - 1, 2**32, 2**40 + 3, 2**63 - 1)


@_line("seeds at the edges", cases.has_counter)
def seeds_at_the_edges(subject: SampleSubject, rng: Generator) -> Iterator[RowSet]:
    """Seeds are taken modulo 2**64, from -2**63 to 2**64 - 1, and positions reach beyond 32 bits."""
    c = subject.capabilities
    logits = gaussian(rng, min(1500, c.max_vocab_size or 1500))
    requests = [p for p in cases.combinations(c, len(logits)) if p.temperature > 0 and p.top_k != 1]
    for turn, position in enumerate(_EDGE_POSITIONS):
        site = Site(c.dtypes[turn % len(c.dtypes)], len(logits))
        params = requests[turn * 7 % len(requests)] if turn % 2 else SamplingParams()
        row = cases.row_of(c, site, "a row at the edges", logits, params)
        yield RowSet((), [CrossedRequest(row, replace(params, seed=s), position) for s in _EDGE_SEEDS])


@properties.advertised("noise precision", lambda c: cases.has_counter(c) or len(c.gumbel_dtypes) > 1)
def noise_precision(subject: SampleSubject, trial: Trial) -> str:
    """Seeded rows with different tokens in 53-bit and 32-bit noise draw by the advertised precision."""
    dtypes, limit = subject.noise_dtypes, subject.capabilities.max_vocab_size or telling.VOCAB_SIZE
    if not cases.has_counter(subject.capabilities):
        rows = statistics.judge_rows(subject.with_need(gumbel_dtype=dtypes[-1]), trial)
        words = "without seeds nothing tells float64 noise from float32"
        return f"{dtypes[-1]}, distribution of {rows}; {words}"
    if limit < telling.VOCAB_SIZE:
        trial.skip(f"needs a vocabulary of {telling.VOCAB_SIZE}, found a limit of {limit}")
    words = judge_all(subject, trial, _telling_rows)
    return f"{words} that tell {all_of(dtypes)} noise"


def _telling_rows(subject: SampleSubject, rng: Generator) -> Iterator[RowSet]:
    """Make rows of which the precision tells the token, alone, among few and among all, and lucky rows."""
    c, size = subject.capabilities, telling.VOCAB_SIZE
    wide = [site for site in cases.sites(c, subject.effort) if site.size > size]
    for dtype, site in itertools.product(subject.noise_dtypes, [Site(c.dtypes[0], size), *wide]):
        batch = telling.telling_requests(subject, site, subject.has("top_k"))
        parts = 1 if site.size == size else 5 * (site.size < cases.WIDE_SIZE and subject.effort.fewer == 1)
        yield RowSet((), batch, dtype=dtype, parts=parts)


@properties.advertised("further filters", lambda c: bool(cases.further_filters(c)), is_long=True)
def further(subject: SampleSubject, trial: Trial) -> str:
    """Rows keep and draw what typical-p, XTC, floors from moments and the temperature last leave, beside others."""
    statistics.judge_xtc(subject, trial)
    return f"{all_of(cases.further_filters(subject.capabilities))}: {judge_further(subject, trial)}"


def judge_further(subject: SampleSubject, trial: Trial, own: Sequence[cases.Fields] = ()) -> str:
    """Judge rows of each dtype and vocabulary with each further filter, with and without thresholds and logprobs.

    :param own: fields of requests in place of the further filters that are advertised.
    """

    def make(subject: SampleSubject, rng: Generator) -> Iterator[RowSet]:
        for number, site in enumerate(cases.some_sites(subject.capabilities, subject.effort)):
            if not (number and subject.effort.skips(site.size, number)):
                yield RowSet((), list(cases.further_requests(subject, site, rng, own)))

    return judge_all(subject, trial, make)


_NUMS_BEST: Final = (
    (5, 0, 1, None),
    (5, 21, 1),
    (50, 0, 21, None),
    (200, 5, 50),
    (5, 0, 21, 1, None, 50, 200, -1),
)
"""Numbers of best tokens that the rows of a call ask for; the largest says how the call finds them."""
_NUMS_GIVEN: Final = (1, 0, 3, 70)
"""Numbers of given ids; some more than a kernel may take at once."""


@properties.advertised("crossed logprobs", lambda c: bool(c.logprobs_modes), is_long=True)
def crossed_logprobs(subject: SampleSubject, trial: Trial) -> str:
    """Values, N best, given ids, ranks, log_kept_mass, thresholds and tokens hold in every mode, over all pairs."""
    if subject.capabilities.logprob_token_ids:
        _require_given_padding(subject, trial)
    return judge_all(subject, trial, logprob_calls)


def logprob_calls(subject: SampleSubject | ScoreSubject, rng: Generator) -> Iterator[RowCall]:
    """Make calls in every mode over a covering table, some with given ids; scores have further filters, too."""
    c, effort, is_score = subject.capabilities, subject.effort, subject.operation == "score"
    row_kinds = scored_kinds(c) if is_score else cases.kinds(c)
    modes, dtypes = c.logprobs_modes, ("fp32",) if is_score else c.gumbel_dtypes or ("fp32",)
    for number, (site, rows) in enumerate(cases.covering_rows(subject, rng, on_thresholds=is_score).items()):
        for turn, mode in enumerate(modes):
            is_first = turn == number % len(modes)
            if effort.skips(site.size, number + turn) or (is_score and effort.interpreted and not is_first):
                continue
            nums_best = _NUMS_BEST[(number + 2 * turn) % len(_NUMS_BEST)]
            copies = effort.copies(10, site.size) if is_first and not is_score else 1
            batch = cases.requests_in_turn(rows, row_kinds, copies, rng, turn)
            if is_score and is_first and site.size <= cases.WIDE_SIZE and cases.further_filters(c):
                batch += cases.further_requests(subject, site, rng)
            batch = [request.asking(nums_best[i % len(nums_best)]) for i, request in enumerate(batch)]
            dtype = dtypes[(number + turn) % len(dtypes)]
            yield RowCall(batch, mode, dtype, threshold=turn % 2 == number % 2)
            if not is_score and c.logprob_token_ids and not effort.skips(site.size, number + turn + 1):
                given = [_giving(request, i, rng) for i, request in enumerate(batch[: len(rows)])]
                yield RowCall(given, mode, dtype, threshold=turn % 2 > 0)


def scored_kinds(capabilities: Capabilities) -> list[cases.Kind]:
    """List the kinds of rows that differ for a score: only XTC looks at seeds."""
    return [kind for kind in cases.kinds(capabilities) if kind in ("unseeded", "greedy")]


def _giving(request: CrossedRequest, number: int, rng: Generator) -> CrossedRequest:
    """Give ids at the ends of the vocabulary and at random; some twice."""
    size = request.row.site.size
    ids = [size - 1, 0, *rng.integers(0, size, max(_NUMS_GIVEN)).tolist()]
    num_given = min(size, _NUMS_GIVEN[number % len(_NUMS_GIVEN)])
    return request.asking((None, 0, 3, 21)[number // len(_NUMS_GIVEN) % 4], ids[:num_given])


def _require_given_padding(subject: SampleSubject, trial: Trial) -> None:
    """Require ids of ready tensors outside of the vocabulary to be padding, of any integer dtype and stride."""
    size, pad = min(50, subject.capabilities.max_vocab_size or 50), plugin.PAD_TOKEN_ID
    inside = [[min(3, size - 1), size, -1], [-2, size - 1, 2**31 - 1]]
    logits = torch.arange(2.0 * size).view(2, size).to(subject.device)
    for dtype in (torch.int64, torch.int32):
        ids = torch.tensor(inside, dtype=dtype, device=subject.device).repeat_interleave(2, 1)[:, ::2]
        metadata = SamplingMetadata(logprob_token_ids=ids, facts=BatchFacts(max_logprobs=0))
        drawn = subject.call("sample", logits, metadata, logprobs_mode=subject.capabilities.logprobs_modes[0])
        assert drawn.logprobs is not None
        rows = LogprobRows(drawn.logprobs, drawn.log_kept_mass)
        needed = [[inside[0][0], pad, pad], [pad, size - 1, pad]]
        is_padding = (rows.given_values[rows.given_ids == pad] < -1e30).all()
        trial.require(
            rows.given_ids.tolist() == needed and is_padding,
            f"ids outside of [0, {size}) need to be padding, found {rows.given_ids.tolist()}",
        )


# Random cases.


def fuzz(subject: SampleSubject, rng: Generator, trial: Trial) -> str:
    """Make a call of several requests in a random dtype and vocabulary, and judge every row by the reference."""
    c, effort = subject.capabilities, subject.effort
    largest = min(max(effort.crossed_sizes), c.max_vocab_size or 1 << 30)
    site = Site(str(rng.choice(c.dtypes)), int(cases.log_uniform(rng, 1.0, largest + 1)))
    random = [
        cases.random_case(_random_factors(subject, site, rng), rng, cases.is_allowed)
        for _ in range(rng.integers(1, 6))
    ]
    rows = [cases.crossed_row(case, rng, c.tie_rule) for case in random]
    most = max(1, min(effort.crossed_batch, (1 << 21) // site.size))
    copies = max(1, int(most ** rng.random()) // len(rows))
    batch = _mixed(cases.requests_in_turn(rows, cases.kinds(c), copies, rng, int(rng.integers(4))), rng)
    mode = str(rng.choice(c.logprobs_modes)) if c.logprobs_modes and rng.random() < 0.5 else None
    if mode is not None:  # and now and then all tokens of a small vocabulary
        nums = [None, -1 if site.size < cases.WIDE_SIZE else 0]
        nums += [int(cases.log_uniform(rng, 1, 400)) - 1 for _ in range(6)]
        batch = [request.asking(nums[int(rng.integers(len(nums)))]) for request in batch]
    dtype = str(rng.choice(c.gumbel_dtypes or ("fp32",)))
    judge(subject, trial, RowCall(batch, mode, dtype, threshold=rng.random() < 0.3))  # type: ignore[arg-type]
    return f"{len(batch)} rows of {len(rows)} requests, {site}, {dtype} noise" + f", {mode}" * bool(mode)


def _random_factors(subject: SampleSubject, site: Site, rng: Generator) -> cases.Factors:
    """Return the cases.row_factors of rows in a vocabulary, with values off the table beside those of each filter."""
    domains, most_k = cases.row_factors(subject), min(site.size, subject.capabilities.max_top_k or site.size)
    more: dict[str, list[Any]] = {
        "temperature": [cases.log_uniform(rng, 1e-4, 200.0)],
        "top_k": [int(cases.log_uniform(rng, 1.0, most_k))],
        "top_p": [1 - cases.log_uniform(rng, 1e-4, 0.99), cases.log_uniform(rng, 1e-5, 1.0)],
        "min_p": [cases.log_uniform(rng, 1e-5, 1.0)],
    }
    values = {name: [*domains[name], *each * 4] for name, each in more.items() if len(domains[name]) > 1}
    return {**domains, **values, "design": (*domains["design"], cases.FLAT), "site": [site]}


# Parameters as ready tensors.

_NAN: Final = float("nan")
_CLAMPED_VALUES: Final[Mapping[str, Mapping[float, float]]] = {
    "temperature": {_NAN: 0.0, -0.7: 0.0, float("inf"): sys.float_info.max, 1.7: 1.7},
    "top_k": {-2: 0, -7: 0, 2**31 - 1: 0, 3: 3},
    "top_p": {0.0: 1e-6, -0.3: 1e-6, _NAN: 1.0, 1.5: 1.0, 0.3: 0.3},
    "min_p": {-0.3: 0.0, _NAN: 0.0, 0.3: 0.3},
}
"""Parameters, their values in a tensor, and the value of an equivalent request for each."""


@properties.required("ready tensors")
def ready_tensors(subject: SampleSubject, trial: Trial) -> str:
    """Tensors made elsewhere are clamped, read by their integer type, and anew in each call."""
    rng, c, num_rows = trial.generator("rows"), subject.capabilities, 0
    served = {"temperature", *(name for name, how in c.filters if how == "per_row")}
    served -= {"top_k"} if c.max_top_k is not None else set()
    values = [
        (name, value, meant)
        for name, pairs in _CLAMPED_VALUES.items()
        for value, meant in pairs.items()
        if name in served and (meant > 0 or name != "temperature" or c.greedy)
    ]
    for dtype in c.dtypes[:: subject.effort.fewer]:
        steps = [_ready_rows(subject, values, dtype, rng) for _ in range(2)]
        tensors: dict[str, Any] = {name: column.to(subject.device) for name, column in steps[0][1].items()}
        facts = replace(steps[0][2], max_top_k=None if "top_k" in served else 0)
        metadata = SamplingMetadata(**tensors, facts=facts)
        for batch, columns, _ in steps:
            for name, column in columns.items():
                tensors[name].copy_(column)
            drawn = subject.call("sample", cases.stack_logits(batch, subject.device), metadata)
            require_draws(subject, trial, batch, drawn, subject.gumbel_dtype)
            num_rows += len(batch)
    return f"{num_rows} rows of {len(values)} values, changed in place"


def _ready_rows(
    subject: SampleSubject, values: Sequence[tuple[str, float, float]], dtype: str, rng: Generator
) -> tuple[list[CrossedRequest], dict[str, torch.Tensor], BatchFacts]:
    """Make a row of each case, some times, and the ready tensors and facts of equivalent requests."""
    c, batch = subject.capabilities, list[CrossedRequest]()
    site = Site(dtype, min(1030, c.max_vocab_size or 1030))
    row_cases = [values[i % len(values)] for i in rng.permutation(subject.effort.rows(3) * len(values))]
    for (name, value, meant), seed in zip(row_cases, cases.random_seeds(rng, len(row_cases))[0], strict=True):
        given: dict[str, Any] = {"temperature": 0.9, "filter_order": subject.filter_order, name: meant}
        params = SamplingParams(**given, seed=seed if cases.has_counter(c) else None)
        row = cases.row_of(c, site, f"{name} = {value:g}", gaussian(rng, site.size), params)
        batch.append(CrossedRequest(row, params, seed % 2**31))
    made = cases.request_metadata(batch, torch.device("cpu"))
    columns = {f.name: getattr(made, f.name) for f in fields(made)}
    columns = {name: column for name, column in columns.items() if isinstance(column, torch.Tensor)}
    for i, (name, value, _) in enumerate(row_cases):
        columns[name][i] = value
    return batch, columns | {"positions": columns["positions"].int()}, made.facts


# Exact lines.


@dataclass(eq=False)
class RowBatch(exact.Batch):
    """Rows with requests of every kind, drawn or scored."""

    subject: RowSubject
    requests: list[CrossedRequest]
    mode: LogprobsMode | None
    tokens: list[int]
    """The tokens to score."""
    method: str
    """``sample``, ``score`` or ``draft``."""

    def __post_init__(self) -> None:
        self.need = self.subject.need(logprobs_mode=self.mode)

    def __len__(self) -> int:
        return len(self.requests)

    def __str__(self) -> str:
        words = f"{len(self)} rows of {self.requests[0].row.site}" + f", {self.mode}" * bool(self.mode)
        return f"{words}, the first {self.requests[0]}"

    def select(self, order: Sequence[int]) -> RowBatch:
        requests, tokens = [self.requests[i] for i in order], [self.tokens[i] for i in order]
        return replace(self, requests=requests, tokens=tokens)

    def arguments(self) -> dict[str, Any]:
        device, metadata = self.subject.device, cases.request_metadata(self.requests, self.subject.device)
        ids = {"token_ids": torch.tensor(self.tokens, dtype=torch.int64, device=device)}
        logits = {"logits": cases.stack_logits(self.requests, device)}
        return {**logits, **(ids if self.method == "score" else {}), "metadata": metadata}

    def changing(self, arguments: dict[str, Any]) -> list[torch.Tensor]:
        return [arguments["logits"], arguments.get("token_ids", arguments["metadata"].positions)]

    def followed(self, output: Any) -> list[torch.Tensor]:
        if self.method == "score":
            return super().followed(output)
        is_settled = [r.params.seed is not None or r.params.temperature == 0 for r in self.requests]
        return [output.token_ids[torch.tensor(is_settled)], output.valid]

    @functools.cached_property
    def is_named(self) -> list[bool]:
        """Whether neither noise nor rounding decides the token of each row."""
        streams = reference_walk.DRAFT if self.method == "draft" else reference.SAMPLE
        named = named_tokens(self.requests, self.subject.gumbel_dtype, streams)
        return [each is not None and each[1] >= reference.NEAR_TIE for each in named]

    def columns(self, output: Any) -> list[exact.Columns]:
        rows = None if output.logprobs is None else LogprobRows(output.logprobs, output.log_kept_mass)
        is_score, found = self.method == "score", list[exact.Columns]()
        for i, request in enumerate(self.requests):
            is_drawn, is_named = request.params.temperature > 0, is_score or self.is_named[i]
            column: exact.Columns = {}
            if not is_score:
                token = int(output.token_ids[i])
                column |= {"token": token if is_named else None, "valid": bool(output.valid[i])}
                column["a kept token"] = bool(request.row.expected.possible[token]) if is_drawn else None
            if rows is not None and (not is_drawn or request.row.is_settled):
                first = 0 if is_named else 1
                column |= {"best tokens": rows.ids[i][first:], "logprobs": rows.values[i][first:]}
                column["rank"] = rows.ranks[i] if is_named and rows.ranks is not None else None
                column["entropy"] = float(output.entropy[i]) if is_score else None
            found.append(column)
        return found


def examples(
    subject: SampleSubject | ScoreSubject, rng: Generator, rows: int, size: int
) -> Iterator[RowBatch]:
    """Make batches of designed rows and special values, mixed from all kinds of requests."""
    c, is_score = subject.capabilities, subject.operation == "score"
    size, modes = min(size, c.max_vocab_size or size), c.logprobs_modes
    for turn, dtype in enumerate(c.dtypes[: 1 if is_score and rows > exact.MANY else None]):
        site = Site(dtype, size)
        designs = cases.rows_of_designs(c, site, rng)
        designs += cases.rows_of_special_values(c, site, rng)[:: 1 + turn] if size >= _SPECIAL_SIZE else []
        batch = _mixed(cases.requests_in_turn(designs, cases.kinds(c), -(-rows // len(designs)), rng), rng)
        batch = cases.parts_of_equal_scalars(subject, batch)[0][:rows]
        tokens = scored_tokens(batch)
        if not is_score and (turn == 0 or rows <= exact.MANY or not modes):
            yield RowBatch(subject, batch, None, tokens, subject.operation)
        if modes:
            asking = [request.asking(5) for request in batch]
            yield RowBatch(subject, asking, modes[turn % len(modes)], tokens, subject.operation)


def _alike(subject: SampleSubject, rng: Generator, rows: int, size: int) -> Iterator[RowBatch]:
    """Make batches of rows of one kind, and of the same filters, for which backends have launches of their own."""
    for batch in examples(subject, rng, rows, size):
        for group in alike(batch.requests):
            yield replace(batch, requests=group, tokens=batch.tokens[: len(group)])


def _flat(subject: SampleSubject) -> tuple[RowBatch, str]:
    site = Site(subject.capabilities.dtypes[0], min(32_000, subject.capabilities.max_vocab_size or 32_000))
    row = cases.row_of(subject.capabilities, site, "flat", np.zeros(site.size), SamplingParams())
    requests = [CrossedRequest(row, SamplingParams(), 0)] * 64
    return RowBatch(subject, requests, None, [0] * 64, "sample"), "tokens"


KIT = OperationKit(
    view=SampleSubject,
    properties=(
        *properties.all,
        *statistics.properties.all,
        *kept_sets.lines("sample"),
        *exact.lines("sample", "", examples, _flat, alike=_alike),
    ),
    fuzz=fuzz,
)
