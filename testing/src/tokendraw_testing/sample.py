"""The lines of ``sample``: random rows with random requests beside float64, corners, seeds, shapes and refusals."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import BatchFacts, SamplingMetadata, SamplingParams
from tokendraw.plugin import (
    INPUT_DTYPES,
    LOGPROBS_MODES,
    PAD_TOKEN_ID,
    Capabilities,
    FilterOrder,
    GumbelDtype,
    LogprobsMode,
)
from tokendraw.tools import all_of
from tokendraw_testing import exact, kept_sets, reference
from tokendraw_testing.cases import telling
from tokendraw_testing.cases.corners import (
    combined_requests,
    flat_requests,
    huge_rows,
    ladder_requests,
    rows_of_last_ids,
    rows_of_special_values,
    tie_requests,
    unfiltered_requests,
)
from tokendraw_testing.cases.factors import (
    ALL_BUT_ONE,
    Case,
    Kind,
    Site,
    is_allowed,
    kinds,
    random_case,
    sites,
    some_sites,
)
from tokendraw_testing.cases.requests import (
    LAW,
    CrossedRequest,
    Fields,
    combinations,
    describe,
    further_filters,
    further_requests,
    has_counter,
    has_filter,
    has_logprobs,
    make_requests,
    random_seeds,
    requests_in_turn,
    scalar_filters,
    seed_torch,
    stack_logits,
)
from tokendraw_testing.cases.rows import (
    FLAT,
    WIDE_SIZE,
    CrossedRow,
    covering_rows,
    crossed_row,
    factors,
    row_of,
    rows_of_designs,
    share_among_dtypes,
)
from tokendraw_testing.judges.expectation import expect
from tokendraw_testing.judges.rows import LogprobRows, judge, named_tokens, require_tokens
from tokendraw_testing.kit.property import OperationKit, Properties, Refusal, offers
from tokendraw_testing.kit.subject import require_refusal, require_unadvertised
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.statistics import sample as statistics
from tokendraw_testing.statistics.draws import fit_experiment
from tokendraw_testing.subjects import SampleSubject, crossed_orders, row_refusal

properties = Properties("sample")
Array = NDArray[Any]

_SPECIAL_SIZE: Final = 64
_NEAR_TIE_SIZE: Final = 16
"""Smallest vocabularies of rows with special values, and of near ties."""


# Shapes, limits and refusals.


def _has_order(order: FilterOrder) -> Callable[[Capabilities], bool]:
    return lambda c: order in c.filter_orders and has_filter("top_p")(c) and has_filter("top_k")(c)


_FILTERS: Final = {"top_k": 2, "top_p": 0.5, "min_p": 0.5, "typical_p": 0.5}
_LAST = SamplingParams(temperature=0.5, top_k=2, filter_order="temperature_last")
_REFUSALS: Final[tuple[tuple[Callable[[Capabilities], bool], Refusal], ...]] = (
    *((offers("dtypes", name), Refusal({"dtype": name})) for name in INPUT_DTYPES),
    *((has_filter(name), row_refusal(SamplingParams(**{name: value}))) for name, value in _FILTERS.items()),  # type: ignore[arg-type]
    (has_filter("xtc"), row_refusal(SamplingParams(xtc_probability=0.5))),
    (offers("row_moments", "std"), row_refusal(SamplingParams(filters={"top_n_sigma": 1.0}))),
    *(
        (
            _has_order(order),
            row_refusal(SamplingParams(top_k=2, top_p=0.5, filter_order=order), filter_orders=(order,)),
        )
        for order in ("top_k_first", "joint")
    ),
    (
        offers("filter_orders", "temperature_last"),
        row_refusal(_LAST, filter_orders=("temperature_last",)),
    ),
    (lambda c: c.greedy, row_refusal(SamplingParams(temperature=0.0))),
    (has_counter, row_refusal(SamplingParams(seed=1))),
    (offers("gumbel_dtypes", "fp64"), Refusal({"gumbel_dtype": "fp64"})),
    (lambda c: c.valid_flag, Refusal({"valid_flag": True})),
    (lambda c: c.threshold, Refusal({"threshold": True})),
    (lambda c: c.logprob_token_ids, row_refusal(SamplingParams(logprob_token_ids=(1,)))),
    *(
        (offers("logprobs_modes", mode), row_refusal(SamplingParams(logprobs=1), logprobs_mode=mode))
        for mode in LOGPROBS_MODES
    ),
)
"""Capabilities, each with a request that has to be refused without it."""


@properties.required("output")
def output(subject: SampleSubject, trial: Trial) -> str:
    """token_ids [B] int64, valid [B] bool, for empty batches and V = 1 too; unadvertised requests are refused."""
    limit = subject.capabilities.max_vocab_size or 5000
    for rows, size in ((0, 50), (1, 1), (5, 1), (3, 50), (0, min(5000, limit))):
        tokens = subject.sample(torch.zeros(rows, size), SamplingParams()).token_ids
        trial.require(size > 1 or not tokens.any(), f"V = 1 needs token 0, found {tokens.tolist()}")
    return "5 shapes" + require_unadvertised(subject, _REFUSALS)


@properties.advertised("limits", lambda c: c.max_top_k is not None or c.max_vocab_size is not None)
def limits(subject: SampleSubject, trial: Trial) -> str:
    """Requests at the limits of top-k and of the vocabulary are served, requests beyond them refused."""
    k, size = subject.capabilities.max_top_k, subject.capabilities.max_vocab_size
    looks = []
    if k is not None:
        at_limit = min(k + 100, size or k + 100)
        looks.append((SamplingParams(top_k=k), at_limit, row_refusal(SamplingParams(top_k=k + 1))))
    if size is not None:
        looks.append((SamplingParams(), size, Refusal({"vocab_size": size + 1})))
    for params, width, _ in looks:
        row = gaussian(trial.generator(f"{params}"), width)
        possible = expect(row, params, subject.capabilities.tie_rule).possible
        tokens = subject.tokens(torch.from_numpy(row).repeat(subject.effort.limit_rows, 1), params)
        misses = tokens[~possible[tokens]][:1]
        trial.require(not len(misses), f"V = {width}, {describe(params)} needs a kept token, found {misses}")
    return "beyond them: " + " ".join(require_refusal(subject, refusal) for *_, refusal in looks)


# Random rows with random requests.

_NUMS_BEST: Final = (
    (5, 0, 1, None),
    (5, 21, 1),
    (50, 0, 21, None),
    (200, 5, 50),
    (5, 0, 21, 1, None, 50, 5, 200, -1),
)
"""Numbers of best tokens that the rows of a call ask for; the largest says how the call finds them."""
_NUMS_GIVEN: Final = (1, 0, 3, 70)
"""Numbers of given ids; some more than a kernel may take at once."""


def _bounded(subject: SampleSubject) -> SampleSubject:
    """Return the subject for calls that return thresholds, if it returns any; it may draw another way then."""
    return subject.with_need(threshold=True) if subject.capabilities.threshold else subject


def _mixed(batch: Sequence[CrossedRequest], rng: Generator) -> list[CrossedRequest]:
    return [batch[i] for i in rng.permutation(len(batch))]


@properties.required("crossed requests", is_long=True)
def crossed_requests(subject: SampleSubject, trial: Trial) -> str:
    """Each row, alone, among its like and in a large batch, draws a kept token, its argmax, or its seed's token."""
    rng, effort = trial.generator("table"), subject.effort
    rows = covering_rows(subject, rng, on_thresholds=True)
    row_kinds, least = kinds(subject.capabilities), min(site.size for site in rows)
    settled_kind: Kind = "seeded" if "seeded" in row_kinds else "unseeded"
    num_rows = num_named = 0
    seed_torch(rng)
    for number, (site, site_rows) in enumerate(rows.items()):
        # In the smallest vocabulary a batch has more than a thousand rows.
        most = effort.batch_of(site.size) * (4 if site.size == least and effort.fewer == 1 else 1)
        batch = requests_in_turn(site_rows, row_kinds, -(-most // len(site_rows)), rng)
        batch = _mixed(batch + unfiltered_requests(subject, site, rng), rng)
        order = None if effort.interpreted else rng.permutation(len(batch)).tolist()
        num_rows += len(batch)
        num_named += judge(subject, trial, batch, order=order)
        calls = [_mixed(requests_in_turn(site_rows, row_kinds, 1, rng, number), rng)]
        calls += list(_like_batches(subject, site, site_rows, rng))
        rows_alone = site_rows[number % 2 :: 2] if effort.interpreted else site_rows
        calls += [make_requests(row, [settled_kind], rng) for row in rows_alone]
        for turn, call in enumerate(calls):
            num_rows += len(call)
            num_named += judge(subject if turn % 2 else _bounded(subject), trial, call)
        for dtype in subject.capabilities.gumbel_dtypes if settled_kind == "seeded" else ():
            if dtype != subject.gumbel_dtype:
                call = [request for row in site_rows for request in make_requests(row, ["seeded"], rng)]
                num_named += judge(subject, trial, call, dtype=dtype)
    for batch in combined_requests(subject, settled_kind, rng):
        num_rows += len(batch)
        num_named += judge(subject, trial, batch)
    cases, where = sum(map(len, rows.values())), f"{len(rows)} dtypes and vocabularies"
    return f"{num_rows} rows of {cases} cases in {where}, {num_named} of them of known token"


def _like_batches(
    subject: SampleSubject, site: Site, rows: Sequence[CrossedRow], rng: Generator
) -> Iterator[list[CrossedRequest]]:
    """Make batches of rows of one kind, and of the same filters: kernels take short cuts on the host's knowledge."""
    row_kinds = kinds(subject.capabilities)
    if subject.effort.mixed or site.size > WIDE_SIZE:
        return
    for kind in row_kinds[::2]:
        yield [request for row in rows for request in make_requests(row, [kind], rng)]
    groups: dict[tuple[Any, ...], list[CrossedRow]] = {}
    for row in rows:
        p = row.params
        groups.setdefault((p.top_k > 0, p.top_p < 1, p.min_p > 0, p.filter_order), []).append(row)
    for number, group in enumerate(groups.values()):
        kind = row_kinds[number % min(2, len(row_kinds))]
        yield [request for row in group for request in make_requests(row, [kind], rng)]
    ties = tie_requests(subject, site, rng)
    yield from [ties, ties[:1]] if ties else []


@properties.advertised("crossed logprobs", has_logprobs, is_long=True)
def crossed_logprobs(subject: SampleSubject, trial: Trial) -> str:
    """Values, N best, given ids, ranks, log_kept_mass, thresholds and tokens hold in every mode, over all pairs."""
    rng, capabilities = trial.generator("table"), subject.capabilities
    rows = covering_rows(subject, rng)
    row_kinds, modes, dtypes = kinds(capabilities), capabilities.logprobs_modes, capabilities.gumbel_dtypes
    num_rows = 0
    seed_torch(rng)
    for number, (site, site_rows) in enumerate(rows.items()):
        for turn, mode in enumerate(modes):
            if subject.effort.skips(site.size, number + turn):
                continue
            nums_best = _NUMS_BEST[(number + 2 * turn) % len(_NUMS_BEST)]
            copies = subject.effort.copies(10, site.size) if turn == number % len(modes) else 1
            batch = [
                request.asking(nums_best[i % len(nums_best)])
                for i, request in enumerate(requests_in_turn(site_rows, row_kinds, copies, rng, turn))
            ]
            batch += [request.asking(0) for request in flat_requests(subject, site, rng)]
            ladder = [] if turn and subject.effort.mixed else ladder_requests(subject, site, rng)
            batch += [request.asking(most) for most in nums_best if most != -1 for request in ladder]
            dtype = dtypes[(number + turn) % len(dtypes)]
            judge(subject, trial, batch, mode, dtype)
            judge(subject, trial, [request.asking(nums_best[0]) for request in ladder], mode, dtype)
            if capabilities.logprob_token_ids and not subject.effort.skips(site.size, number + turn + 1):
                given = [_giving(request, i, rng) for i, request in enumerate(batch[: len(site_rows)])]
                judge(_bounded(subject) if turn % 2 else subject, trial, given, mode, dtype)
            num_rows += len(batch) + len(ladder)
    if capabilities.logprob_token_ids:
        _require_given_padding(subject, trial)
    return f"{num_rows} rows in {len(modes)} modes over {len(rows)} dtypes and vocabularies"


def _giving(request: CrossedRequest, number: int, rng: Generator) -> CrossedRequest:
    """Give ids at the ends of the vocabulary and at random; some twice."""
    size = request.row.site.size
    ids = [size - 1, 0, *rng.integers(0, size, max(_NUMS_GIVEN)).tolist()]
    num_given = min(size, _NUMS_GIVEN[number % len(_NUMS_GIVEN)])
    return request.asking((None, 0, 3, 21)[number // len(_NUMS_GIVEN) % 4], ids[:num_given])


def _require_given_padding(subject: SampleSubject, trial: Trial) -> None:
    """Require ids of ready tensors outside of the vocabulary to be padding, of any integer dtype and stride."""
    size, pad = min(50, subject.capabilities.max_vocab_size or 50), PAD_TOKEN_ID
    inside = [[min(3, size - 1), size, -1], [-2, size - 1, 2**31 - 1]]
    for dtype in (torch.int64, torch.int32):
        wide = torch.tensor(inside, dtype=dtype).repeat_interleave(2, 1)
        wide[:, 1::2] = 0
        ids = wide.to(subject.device)[:, ::2]
        metadata = SamplingMetadata(logprob_token_ids=ids, facts=BatchFacts(max_logprobs=0))
        logits = torch.arange(2.0 * size).view(2, size).to(subject.device)
        drawn = subject.call(logits, metadata, mode=subject.capabilities.logprobs_modes[0])
        assert drawn.logprobs is not None
        rows = LogprobRows(drawn.logprobs, drawn.log_kept_mass)
        found, values = rows.given_ids, rows.given_values
        trial.require(
            found.tolist() == [[inside[0][0], pad, pad], [pad, size - 1, pad]]
            and (values[found == pad] < -1e30).all(),
            f"ids outside of [0, {size}) need to be padding, found {found.tolist()} of {values.tolist()}",
        )


@properties.advertised("further filters", lambda c: bool(further_filters(c)), is_long=True)
def further(subject: SampleSubject, trial: Trial) -> str:
    """Rows keep and draw what typical-p, XTC, floors from moments and the temperature last leave, beside others."""
    words = judge_further(subject, trial)
    limit = subject.capabilities.max_vocab_size or len(LAW)
    if ("xtc", "per_row") in subject.capabilities.filters and limit >= len(LAW):
        share = 0.4
        kept = np.where(np.arange(len(LAW)) >= 2, LAW, 0.0)
        logits = torch.from_numpy(np.log(LAW)).to(subject.dtypes[0])
        params = SamplingParams(xtc_probability=share, filter_order=subject.filter_order)
        experiment = fit_experiment(subject, logits, params, (1 - share) * LAW + share * kept / kept.sum())
        trial.judge("rows with XTC without seeds", experiment, subject.effort.draws_of(20_000))
    return f"{all_of(further_filters(subject.capabilities))}: {words}"


def judge_further(subject: SampleSubject, trial: Trial, own: Sequence[Fields] = ()) -> str:
    """Judge rows of each dtype and vocabulary with each further filter, with and without thresholds and logprobs.

    :param own: fields of requests in place of the further filters that are advertised.
    """
    rng, modes, num_rows = trial.generator("rows"), subject.capabilities.logprobs_modes, 0
    seed_torch(rng)
    for number, site in enumerate(some_sites(subject.capabilities, subject.effort)):
        if number and subject.effort.skips(site.size, number):
            continue
        batch = list(further_requests(subject, site, rng, own))
        num_rows += len(batch)
        judge(subject, trial, batch)
        if subject.capabilities.threshold:
            judge(_bounded(subject), trial, batch)
        if modes:
            step = 3 if subject.effort.interpreted else 1
            shown = [each.asking((0, 3, None)[i % 3]) for i, each in enumerate(batch[number % step :: step])]
            judge(subject, trial, shown, modes[number % len(modes)])
    return f"{num_rows} rows"


def fuzz(subject: SampleSubject, rng: Generator, trial: Trial) -> str:
    """Make a call of several requests in a random dtype and vocabulary, and judge every row by the reference."""
    capabilities, domains = subject.capabilities, factors(subject)
    seed_torch(rng)
    largest = min(max(subject.effort.crossed_sizes), capabilities.max_vocab_size or 1 << 30)
    site = Site(_pick(capabilities.dtypes, rng), int(np.exp(rng.uniform(0.0, np.log(largest + 1)))))
    domains |= {"design": (*domains["design"], FLAT), "site": [site]}
    rows, row_kinds = [], kinds(capabilities)
    for _ in range(int(rng.integers(1, 6))):
        case = random_case(domains, rng, is_allowed)
        for name, value in _random_values(case, capabilities.max_top_k, rng).items():
            if rng.random() < 0.5 and is_allowed({**case, name: value}):
                case[name] = value
        rows.append(crossed_row(case, rng, capabilities.tie_rule))
    most = max(len(rows), min(subject.effort.crossed_batch, (1 << 21) // site.size))
    copies = max(1, int(most ** rng.random()) // len(rows))
    batch = [
        request
        for row in rows
        for request in make_requests(row, [_pick(row_kinds, rng) for _ in range(copies)], rng)
    ]
    batch, dtype = _mixed(batch, rng), _pick(capabilities.gumbel_dtypes or ("fp32",), rng)
    words, modes = (
        f"{len(batch)} rows of {len(rows)} requests, {site}, {dtype} noise",
        capabilities.logprobs_modes,
    )
    mode = _pick(modes, rng) if modes and rng.random() < 0.5 else None
    if mode is not None:  # and now and then all tokens of a small vocabulary
        nums = [int(np.exp(rng.uniform(0.0, 6.0))) - 1 for _ in batch]
        nums = [-1 if rng.random() < 0.1 and site.size < WIDE_SIZE else num for num in nums]
        batch = [each if rng.random() < 0.2 else each.asking(n) for each, n in zip(batch, nums, strict=True)]
    judge(subject, trial, batch, mode, dtype)
    return f"{words}, {mode}" if mode else words


def _random_values(case: Case, max_top_k: int | None, rng: Generator) -> Case:
    """Return values off the table."""
    size = case["site"].size
    changes: Case = {"temperature": float(np.exp(rng.uniform(np.log(1e-4), np.log(200.0))))}
    if case["top_k"] not in (0, ALL_BUT_ONE):
        changes["top_k"] = int(np.exp(rng.uniform(0.0, np.log(min(size, max_top_k or size)))))
    if case["top_p"] < 1:
        near_1 = float(1 - np.exp(rng.uniform(np.log(1e-4), np.log(0.99))))
        changes["top_p"] = near_1 if rng.random() < 0.5 else float(np.exp(rng.uniform(np.log(1e-5), 0.0)))
    if case["min_p"] > 0:
        changes["min_p"] = float(np.exp(rng.uniform(np.log(1e-5), 0.0)))
    return changes


def _pick(values: Any, rng: Generator) -> Any:
    return values[int(rng.integers(len(values)))]


# Corners.


@properties.required("last ids")
def last_ids(subject: SampleSubject, trial: Trial) -> str:
    """The last ids are drawn, in every dtype, for vocabularies of every remainder by 4, 8, 16 and 1024."""
    row_kinds, limit, dtypes = (
        kinds(subject.capabilities),
        subject.capabilities.max_vocab_size,
        subject.capabilities.dtypes,
    )
    sizes = [size for size in subject.effort.remainders if size <= (limit or size)]
    rng = trial.generator("rows")
    seed_torch(rng)
    for (number, size), (turn, dtype) in itertools.product(enumerate(sizes), enumerate(dtypes)):
        is_left_out = subject.effort.interpreted and (number + turn) % len(dtypes) == 2
        if is_left_out or subject.effort.skips(size, number + turn):
            continue
        rows = list(rows_of_last_ids(subject, Site(dtype, size), rng))
        judge(subject, trial, [request for row in rows for request in make_requests(row, row_kinds, rng)])
        for request in [] if subject.effort.mixed else make_requests(rows[0], row_kinds, rng):
            judge(subject, trial, [request])
    return f"{len(sizes)} vocabularies from {min(sizes)} to {max(sizes)} in {len(dtypes)} dtypes"


@properties.required("far NaN and infinities")
def far_special_values(subject: SampleSubject, trial: Trial) -> str:
    """NaN, +inf and -inf anywhere in a row, and rows beside them, in every dtype and vocabulary, with the flag."""
    row_kinds, num_rows = kinds(subject.capabilities), 0
    all_sites = sites(subject.capabilities, subject.effort)
    special_sites = [site for site in all_sites if site.size >= _SPECIAL_SIZE]
    if not special_sites:
        trial.skip(_narrow_reason(subject, _SPECIAL_SIZE))
    for site in special_sites:
        rng = trial.generator(str(site))
        seed_torch(rng)
        rows = share_among_dtypes(subject, site, rows_of_special_values(subject, site, rng))
        copies = subject.effort.copies(4, site.size)
        batch = requests_in_turn(rows + huge_rows(subject, site), row_kinds, copies, rng)
        for row in rows if "seeded" in row_kinds else ():
            batch += make_requests(row, ["seeded"], rng) if "+inf" in row.design else []
        for _ in range(min(2, copies)):  # in another order, so that what is left of a call meets other rows
            judge(subject, trial, _mixed(batch, rng))
            num_rows += len(batch)
        if subject.capabilities.threshold:
            judge(_bounded(subject), trial, batch[:: copies if copies > 1 else 3])
        is_shown = site.size <= 2000 and subject.effort.fewer == 1
        for mode in subject.capabilities.logprobs_modes if is_shown else ():
            shown = [request.asking(3) for request in batch[: len(rows) * copies : copies]]
            judge(subject, trial, shown, mode)
    return f"{num_rows} rows in {len(special_sites)} dtypes and vocabularies"


@properties.advertised("near ties", has_counter)
def near_ties(subject: SampleSubject, trial: Trial) -> str:
    """Seeded rows draw the winner of scores that lie 0.0002 apart: nothing on the way to them is rounded."""
    limit, num_rows = subject.capabilities.max_top_k, 0
    for site in sites(subject.capabilities, subject.effort):
        if site.size < _NEAR_TIE_SIZE:
            continue
        rng = trial.generator(str(site))
        params_list = [SamplingParams(temperature=t) for t in (0.7, 1.7, 0.003, 12.0, 1.0)]
        params_list += [SamplingParams(temperature=0.9, min_p=1e-7)] * subject.has("min_p")
        if subject.has("top_k") and (limit or site.size) >= site.size - 1:
            params_list.append(SamplingParams(temperature=1.3, top_k=site.size - 1))
        params_list = [replace(params, filter_order=subject.filter_order) for params in params_list]
        params_by_row = [params_list[i % len(params_list)] for i in range(subject.effort.rows(8))]
        for dtype in subject.capabilities.gumbel_dtypes:
            made = [telling.make_near_tie(site, params, rng, dtype) for params in params_by_row]
            if batch := [request for request in made if request is not None]:
                judge(subject, trial, batch, dtype=dtype)
            num_rows += len(batch)
    if not num_rows:
        trial.skip(_narrow_reason(subject, _NEAR_TIE_SIZE))
    return f"{num_rows} seeded rows"


def _narrow_reason(subject: SampleSubject, least: int) -> str:
    return f"needs a vocabulary of {least}, found a limit of {subject.capabilities.max_vocab_size}"


_EDGE_SEEDS: Final = (0, 1, -1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**32 - 1, 2**32, -(2**32))
_EDGE_POSITIONS: Final = (0, 1, 2**32 - 1, 2**32, 2**40 + 3, 2**63 - 1)


@properties.advertised("seeds at the edges", has_counter)
def seeds_at_the_edges(subject: SampleSubject, trial: Trial) -> str:
    """Seeds are taken modulo 2**64, from -2**63 to 2**64 - 1, and positions reach beyond 32 bits."""
    capabilities, size = subject.capabilities, 1500
    logits = gaussian(trial.generator("row"), min(size, capabilities.max_vocab_size or size))
    requests = [p for p in combinations(capabilities, len(logits)) if p.temperature > 0 and p.top_k != 1]
    for turn, position in enumerate(_EDGE_POSITIONS):
        site = Site(capabilities.dtypes[turn % len(capabilities.dtypes)], len(logits))
        params = requests[turn * 7 % len(requests)] if turn % 2 else SamplingParams()
        row = row_of(capabilities, site, "a row at the edges", logits, params)
        judge(
            subject,
            trial,
            [CrossedRequest(row, replace(params, seed=seed), position) for seed in _EDGE_SEEDS],
        )
    return f"{len(_EDGE_SEEDS)} seeds, {len(_EDGE_POSITIONS)} positions"


@properties.advertised("noise precision", lambda c: has_counter(c) or len(c.gumbel_dtypes) > 1)
def noise_precision(subject: SampleSubject, trial: Trial) -> str:
    """Seeded rows with different tokens in 53-bit and 32-bit noise draw by the advertised precision."""
    dtypes = subject.noise_dtypes
    if not has_counter(subject.capabilities):
        details = statistics.judge_rows(subject.with_need(gumbel_dtype=dtypes[-1]), trial)
        return (
            f"{dtypes[-1]}, distribution of {details}; without seeds nothing tells float64 noise from float32"
        )
    num_rows = sum(_require_precision(subject, trial, dtype) for dtype in dtypes)
    if not num_rows:
        limit = subject.capabilities.max_vocab_size
        trial.skip(f"needs a vocabulary of {telling.VOCAB_SIZE}, found a limit of {limit}")
    return f"{num_rows} rows that tell {all_of(dtypes)} noise"


def _require_precision(subject: SampleSubject, trial: Trial, dtype: GumbelDtype) -> int:
    """Require the tokens of this noise precision, and of lucky rows, impossible with less precision.

    Each row is alone in a call of the first dtype; of every dtype and vocabulary that holds them it is among few and
    among all of them.

    :returns: how many there were.
    """
    size, capabilities = telling.VOCAB_SIZE, subject.capabilities
    exact_sites = [Site(capabilities.dtypes[0], size)] * ((capabilities.max_vocab_size or size) >= size)
    wide_sites = [site for site in sites(capabilities, subject.effort) if site.size > size]
    num_rows = 0
    for site in (*exact_sites, *wide_sites):
        batch = telling.telling_requests(subject, site, (reference.TOKEN, reference.TILE))
        calls = [[request] for request in batch] if site in exact_sites else [batch]
        if site.size < WIDE_SIZE and subject.effort.fewer == 1:
            calls += [batch[i : i + 5] for i in range(0, len(batch), 5)]
        for call in calls:
            judge(subject, trial, call, dtype=dtype)
        num_rows += len(batch)
    return num_rows


# Parameters as ready tensors.

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
_Columns = dict[str, torch.Tensor]


@properties.required("ready tensors")
def ready_tensors(subject: SampleSubject, trial: Trial) -> str:
    """Tensors made elsewhere are clamped, read by their integer type, and anew in each call."""
    rng, capabilities = trial.generator("rows"), subject.capabilities
    seed_torch(rng)
    cases = [case for case in _CLAMPED_VALUES if _is_served(subject, case[0], case[2])]
    orders, num_rows = crossed_orders(capabilities), 0
    facts = BatchFacts(
        any_greedy=capabilities.greedy,
        any_seeded=has_counter(capabilities),
        all_seeded=has_counter(capabilities),
        any_top_p=subject.has("top_p"),
        any_min_p=subject.has("min_p"),
        max_top_k=None if _is_served(subject, "top_k", 1) else 0,
        any_joint=orders == ("joint",),
        any_top_k_first=orders != ("joint",),
    )
    for dtype in capabilities.dtypes[:: subject.effort.fewer]:
        site = Site(dtype, min(1030, capabilities.max_vocab_size or 1030))
        steps = [_ready_requests(subject, cases, site, rng) for _ in range(2)]
        tensors: dict[str, Any] = {name: column.to(subject.device) for name, column in steps[0][1].items()}
        metadata = SamplingMetadata(**tensors, facts=facts)
        for batch, columns in steps:
            for name, column in columns.items():
                tensors[name].copy_(column)
            drawn = subject.call(stack_logits(batch, subject.device), metadata)
            require_tokens(trial, batch, drawn.token_ids.tolist(), subject.gumbel_dtype)
            num_rows += len(batch)
    return f"{num_rows} rows of {len(cases)} values, changed in place"


def _is_served(subject: SampleSubject, name: str, value: float) -> bool:
    """Whether a row may have this value for a parameter."""
    if name == "temperature":
        return value > 0 or subject.capabilities.greedy
    if name == "top_k" and subject.capabilities.max_top_k is not None:
        return False
    return subject.has(name) and name not in scalar_filters(subject.capabilities)  # type: ignore[arg-type]


def _ready_requests(
    subject: SampleSubject, cases: Sequence[tuple[str, float, float]], site: Site, rng: Generator
) -> tuple[list[CrossedRequest], _Columns]:
    """Make requests in random order, and equivalent parameter tensors on the host."""
    row_cases = [cases[i % len(cases)] for i in rng.permutation(subject.effort.rows(3) * len(cases))]
    seeds, _ = random_seeds(rng, len(row_cases))
    positions = rng.integers(0, 2**31, len(row_cases)).tolist()
    is_seeded, batch = has_counter(subject.capabilities), []
    defaults: dict[str, Any] = {"temperature": 0.9, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    for (name, value, meant), seed, position in zip(row_cases, seeds, positions, strict=True):
        fields = defaults | {name: meant, "filter_order": subject.filter_order}
        params = SamplingParams(**fields, seed=seed if is_seeded else None)
        logits = torch.from_numpy(gaussian(rng, site.size)).to(site.torch_dtype)
        row = row_of(subject.capabilities, site, f"'{name}' = {value:g} in a tensor", logits, params)
        batch.append(CrossedRequest(row, params, position))
    values = {
        field: [value if name == field else default for name, value, _ in row_cases]
        for field, default in defaults.items()
    }
    served = [name for name in defaults if name == "temperature" or _is_served(subject, name, 1)]
    columns = {
        name: torch.tensor(values[name], dtype=torch.int32 if name == "top_k" else None) for name in served
    }
    if is_seeded:
        columns["seed"] = torch.from_numpy(np.array(seeds, np.uint64).view(np.int64))
        columns["positions"] = torch.tensor(positions, dtype=torch.int32)
    return batch, columns


# Exact lines.


class _RowBatch(exact.Batch):
    """Rows with requests of every kind."""

    method = "sample"

    def __init__(
        self, subject: SampleSubject, requests: list[CrossedRequest], mode: LogprobsMode | None
    ) -> None:
        self.subject, self.requests, self.mode = subject, requests, mode
        self.need = None if mode is None else subject.need(mode)

    def __len__(self) -> int:
        return len(self.requests)

    def __str__(self) -> str:
        row, mode = self.requests[0].row, f", {self.mode}" if self.mode else ""
        return f"{len(self)} rows of {row.site}{mode}, the first {row.design}, {describe(row.params)}"

    def select(self, order: Sequence[int]) -> _RowBatch:
        return _RowBatch(self.subject, [self.requests[i] for i in order], self.mode)

    def arguments(self) -> dict[str, Any]:
        params, positions = [r.params for r in self.requests], [r.position for r in self.requests]
        device = self.subject.device
        metadata = SamplingMetadata.from_params(params, device=device, positions=positions)
        return {"logits": stack_logits(self.requests, device), "metadata": metadata}

    def changing(self, arguments: dict[str, Any]) -> list[torch.Tensor]:
        return [arguments["logits"], arguments["metadata"].positions]

    def followed(self, output: Any) -> list[torch.Tensor]:
        is_settled = [r.params.seed is not None or r.params.temperature == 0 for r in self.requests]
        return [output.token_ids[torch.tensor(is_settled)], output.valid]

    def columns(self, output: Any) -> list[exact.Columns]:
        if not hasattr(self, "named"):
            named = named_tokens(self.requests, self.subject.gumbel_dtype)
            self.named = [each is not None and each[1] >= reference.NEAR_TIE for each in named]
        rows = None if output.logprobs is None else LogprobRows(output.logprobs, output.log_kept_mass)
        found, tokens, valid = [], output.token_ids.tolist(), output.valid.tolist()
        for i, (request, token, is_named) in enumerate(zip(self.requests, tokens, self.named, strict=True)):
            is_drawn = request.params.temperature > 0
            column: exact.Columns = {"token": token if is_named else None, "valid": valid[i]}
            column["a kept token"] = bool(request.row.expected.possible[token]) if is_drawn else None
            if rows is not None and (not is_drawn or request.row.is_settled):
                first = 0 if is_named else 1
                column |= {"best tokens": rows.ids[i][first:], "logprobs": rows.values[i][first:]}
                column["rank"] = rows.ranks[i] if is_named and rows.ranks is not None else None
            found.append(column)
        return found


def _examples(subject: SampleSubject, rng: Generator, rows: int, size: int) -> Iterator[_RowBatch]:
    """Make batches of designed rows and special values, mixed from all kinds of requests."""
    capabilities = subject.capabilities
    seed_torch(rng)
    size, modes = min(size, capabilities.max_vocab_size or size), capabilities.logprobs_modes
    for turn, dtype in enumerate(capabilities.dtypes):
        site = Site(dtype, size)
        designs = rows_of_designs(capabilities, site, rng)
        designs += rows_of_special_values(subject, site, rng)[:: 1 + turn] if size >= _SPECIAL_SIZE else []
        names = scalar_filters(capabilities)  # of which a call has one value
        designs = [
            row
            for row in designs
            if all(getattr(row.params, n) == getattr(designs[0].params, n) for n in names)
        ]
        batch = _mixed(requests_in_turn(designs, kinds(capabilities), -(-rows // len(designs)), rng), rng)[
            :rows
        ]
        if turn == 0 or rows <= exact.MANY or not modes:
            yield _RowBatch(subject, batch, None)
        if modes:
            mode = modes[turn % len(modes)]
            yield _RowBatch(subject, [request.asking(5) for request in batch], mode)


def _alike(subject: SampleSubject, rng: Generator, rows: int, size: int) -> Iterator[_RowBatch]:
    """Make batches of a request each, then of all of them, and with logprobs, in the dtypes in turn."""
    c, size = subject.capabilities, min(size, subject.capabilities.max_vocab_size or size)
    seed_torch(rng)
    requests = combinations(c, size)
    groups = [[params] for params in requests[:: max(1, len(requests) // 8)]]
    groups += [requests] * (not scalar_filters(c))
    batches: list[tuple[list[SamplingParams], LogprobsMode | None]] = [(group, None) for group in groups]
    batches += [([SamplingParams(logprobs=5)], mode) for mode in c.logprobs_modes]
    logits = [gaussian(rng, size) for _ in range(rows)]
    for (params, mode), dtype in zip(batches, itertools.cycle(c.dtypes), strict=False):
        site, batch = Site(dtype, size), []
        for i, x in enumerate(logits):
            row = row_of(c, site, "bell", x, params[i % len(params)])
            seed = i if i % 2 and has_counter(c) else None
            batch.append(CrossedRequest(row, replace(row.params, seed=seed), i))
        yield _RowBatch(subject, batch, mode)


def _flat(subject: SampleSubject) -> tuple[_RowBatch, str]:
    site = Site(subject.capabilities.dtypes[0], min(32_000, subject.capabilities.max_vocab_size or 32_000))
    row = row_of(subject.capabilities, site, "flat", np.zeros(site.size), SamplingParams())
    return _RowBatch(subject, [CrossedRequest(row, SamplingParams(), 0)] * 64, None), "tokens"


KIT = OperationKit(
    view=SampleSubject,
    properties=(
        *properties.all,
        *statistics.properties.all,
        *kept_sets.lines("sample"),
        *exact.lines("sample", "", _examples, _flat, alike=_alike),
    ),
    fuzz=fuzz,
)
