"""The lines of ``verify``: random requests with drafts beside float64, drafts, sure decisions, shapes and refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.plugin import INPUT_DTYPES, DraftKind, GumbelDtype, VerifyCapabilities, VerifyMode
from tokendraw.tools import all_of
from tokendraw_testing import exact, kept_sets, reference
from tokendraw_testing.cases import factors
from tokendraw_testing.cases.draft_rows import AcceptanceNoise
from tokendraw_testing.cases.drafts import (
    DRAFT,
    OUTSIDE_ID,
    WIDE_SIZE,
    CrossedCall,
    chains,
    draft_factors,
    is_allowed,
    make_call,
    telling_call,
)
from tokendraw_testing.cases.factors import Case, Factors, Site, covering, random_case
from tokendraw_testing.cases.requests import (
    CrossedRequest,
    Fields,
    further_filters,
    has_counter,
    has_logprobs,
    make_requests,
    per_row,
    seed_torch,
    stack_logits,
)
from tokendraw_testing.cases.rows import WIDE_SIZE as NARROW_SIZE
from tokendraw_testing.cases.rows import rows_of_designs, threshold_rows
from tokendraw_testing.cases.telling import KEPT_COUNTS, LUCK, VOCAB_SIZE, telling_requests
from tokendraw_testing.judges.chains import Drawn, is_settled, judge_chains, judge_drafts, require_drafts
from tokendraw_testing.kit.property import OperationKit, Properties, Refusal, offers
from tokendraw_testing.kit.subject import require_unadvertised
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.statistics import verify as statistics
from tokendraw_testing.subjects import VerifySubject, draft_refusal, row_metadata

properties = Properties("verify")
Array = NDArray[Any]

SURE_LOGIT: Final = 60.0
"""A logit beside zeros that leaves nothing for anything else."""
_SURE_SIZE: Final = 300
_PLACEHOLDERS: Final = (-1, _SURE_SIZE, OUTSIDE_ID, -(2**63))
_QUICK_WIDE_CASES: Final = 48
"""Wide cases of a quick run; the rest of a table holds the last few pairs."""
_WIDEST_FATES: Final = (*[("rejected first", 1)] * 5, *[("all accepted", 3)] * 2)
"""Fates and numbers of drafts in the widest vocabulary, for each dtype and kind of drafts."""
_FURTHER_CASES: Final = 36
_COLD_DEPTH: Final = 50.0
"""Distance of y from the largest below which a token is not drawn."""


# Shapes and refusals.

_MODES: Final[tuple[VerifyMode, ...]] = ("rejection", "coupled", "block")
_KINDS: Final[tuple[DraftKind, ...]] = ("probs", "logits", "chosen")
_REFUSALS: Final[tuple[tuple[Callable[[VerifyCapabilities], bool], Refusal], ...]] = (
    *((offers("dtypes", name), Refusal({"dtype": name})) for name in INPUT_DTYPES),
    *(
        (offers("filters", (name, "per_row")), draft_refusal(params=params))
        for name, params in statistics.FILTERS.items()
    ),
    *((offers("verify_modes", mode), draft_refusal(mode=mode)) for mode in _MODES),
    *((offers("draft_kinds", kind), draft_refusal(kind=kind)) for kind in _KINDS),
    (lambda c: c.greedy, draft_refusal(params=SamplingParams(temperature=0.0))),
    (has_counter, draft_refusal(params=SamplingParams(seed=1))),
    (offers("gumbel_dtypes", "fp64"), Refusal({"gumbel_dtype": "fp64"})),
    (has_logprobs, draft_refusal(params=SamplingParams(logprobs=1))),
    (lambda c: c.threshold, Refusal({"threshold": True})),
    (lambda c: c.ragged_drafts, draft_refusal(ragged=True)),
    (lambda c: c.placeholder_drafts, draft_refusal(placeholder=True)),
)
"""Capabilities, each with a request that has to be refused without it."""


@properties.required("verify output")
def output(subject: VerifySubject, trial: Trial) -> str:
    """Sure drafts up to a placeholder are accepted, in batches of any shape; unadvertised requests are refused."""
    capabilities, most = subject.capabilities, subject.effort.rows(128)
    trial.require(subject.ways, "'verify' needs a mode and a kind of drafts, found none advertised")
    shapes: tuple[list[int], ...] = ([], [2])
    large_shapes: tuple[list[int], ...] = ([4, 4],)
    if capabilities.ragged_drafts:
        shapes, large_shapes = ([], [0], [0, 0, 0]), ([2, 0, 9], [3, 0, 1, most], [0, most, 3, 1])
    for way, large_dtype in zip(subject.ways, subject.cycle_dtypes(), strict=False):
        for counts, dtype in itertools.product(shapes, capabilities.dtypes):
            _require_sure_chains(subject, trial, way, counts, dtype=dtype)
        for counts in large_shapes:
            _require_sure_chains(subject, trial, way, counts, dtype=large_dtype)
        for placeholder in _PLACEHOLDERS if capabilities.placeholder_drafts else ():
            _require_sure_chains(subject, trial, way, large_shapes[0], placeholder, dtype=large_dtype)
    return f"{len(shapes + large_shapes)} shapes of batches" + require_unadvertised(subject, _REFUSALS)


def _require_sure_chains(
    subject: VerifySubject,
    trial: Trial,
    way: tuple[VerifyMode, DraftKind],
    counts: list[int],
    placeholder: int | None = None,
    *,
    dtype: str,
) -> None:
    """Demand that a target sure of all drafts accepts them, in the last request up to a placeholder beside NaN."""
    size, (mode, kind), rng = _SURE_SIZE, way, trial.generator(f"{counts} {placeholder}")
    sure_tokens = rng.integers(0, size, sum(counts) + len(counts))
    target = np.zeros((len(sure_tokens), size), np.float32)
    target[np.arange(len(sure_tokens)), sure_tokens] = SURE_LOGIT
    start = np.cumsum([0, *(n + 1 for n in counts)])
    ids = [sure_tokens[s : s + n].tolist() for s, n in zip(start, counts, strict=False)]
    accepted = list(counts)
    rows = [s + step for s, n in zip(start, counts, strict=False) for step in range(n)]
    draft_logits = target[rows] if kind == "logits" else (target[rows] > 0).astype(np.float32)
    if placeholder is not None:
        accepted[-1] = counts[-1] // 2
        ids[-1][accepted[-1]] = placeholder
        draft_logits[sum(counts[:-1]) + accepted[-1]] = np.nan
    draft_rows = subject.upload_draft(draft_logits, dtype, kind)
    found = subject.verify_ids(subject.upload(target, dtype), ids, way, draft_rows, first=[7] * len(counts))
    trial.require(
        found.num_accepted.tolist() == accepted,
        f"{mode}, {kind}: drafts that the target is sure of need to be accepted, {accepted} of {counts}, found "
        f"{found.num_accepted.tolist()}",
    )
    trial.require(
        found.valid.all(),
        f"{mode}, {kind}: the draft's row of a placeholder needs to be left alone, found it read",
    )
    last = [int(sure_tokens[s + n]) for s, n in zip(start, accepted, strict=False)]
    trial.require(
        [tokens[-1] for tokens in chains(found)] == last,
        f"{mode}, {kind}: after sure drafts the tokens {last} need to follow, found others",
    )


# Random requests.


@properties.required("verify crossing", is_long=True)
def crossing(subject: VerifySubject, trial: Trial) -> str:
    """Chains, valid, thresholds and logprobs of requests crossed over values, drafts, fate and batch are float64's."""
    return _judge_table(subject, trial, _sites(subject))


@properties.required("verify crossing, wide", is_long=True)
def wide_crossing(subject: VerifySubject, trial: Trial) -> str:
    """So they are in vocabularies of more than 65,536 and 131,072 ids that no vector load divides."""
    sites = _sites(subject, is_wide=True)
    if not sites:
        limit = subject.capabilities.max_vocab_size
        reason = "an effort without one" if limit is None or limit > WIDE_SIZE else f"a limit of {limit:,}"
        trial.skip(f"needs a vocabulary above {WIDE_SIZE:,}, found {reason}")
    return _judge_table(subject, trial, sites)


@properties.advertised("verify further filters", lambda c: bool(further_filters(c)), is_long=True)
def further(subject: VerifySubject, trial: Trial) -> str:
    """So they are with typical-p, XTC, floors from moments and the temperature last; drafts have all but XTC."""
    return judge_further(subject, trial, list(further_filters(per_row(subject.capabilities)).values()))


def judge_further(subject: VerifySubject, trial: Trial, further: Sequence[Fields]) -> str:
    """Judge random calls of requests with one of some further filters each."""
    rng = trial.generator("requests")
    sites = [site for site in _sites(subject) if site.size <= NARROW_SIZE] or _sites(subject)
    domains = draft_factors(subject, sites)
    domains |= {"batch": [9], "poison": [()], "drafts": domains["drafts"][1:], "layout": ["flat"]}
    ways = itertools.islice(itertools.cycle(subject.ways), subject.effort.rows(_FURTHER_CASES, least=9))
    cases = [random_case(domains | {"way": [way]}, rng, is_allowed) for way in ways]
    return _judge_cases(subject, trial, cases, domains, rng, further)


def _sites(subject: VerifySubject, *, is_wide: bool = False) -> list[Site]:
    all_sites = factors.sites(subject.capabilities, subject.effort)
    return [site for site in all_sites if (site.size > WIDE_SIZE) == is_wide]


def _judge_table(subject: VerifySubject, trial: Trial, sites: list[Site]) -> str:
    rng, is_wide = trial.generator("requests"), sites[0].size > WIDE_SIZE
    domains = draft_factors(subject, sites)
    most = _QUICK_WIDE_CASES if subject.effort.quick and is_wide else None
    cases = covering(domains, rng, is_allowed)[: subject.effort.crossed_rows or most]
    if not subject.effort.mixed:
        cases = (_widest_cases if is_wide else _single_request_cases)(domains, rng) + cases
    return _judge_cases(subject, trial, cases, domains, rng)


def _judge_cases(
    subject: VerifySubject,
    trial: Trial,
    cases: list[Case],
    domains: Factors,
    rng: Generator,
    further: Sequence[Fields] = (),
) -> str:
    noise, num_chains, num_named = AcceptanceNoise(rng, subject.effort.rows(8192)), 0, 0
    for number, case in enumerate(cases):
        call = make_call(subject, rng, case, domains, noise, further)
        is_alone = len(call.requests) == 1 or call.form.site.size > WIDE_SIZE
        for turn, part in enumerate((call, *[call.of_most_drafts()] * (not is_alone))):
            num_chains += len(part.order)
            is_bounded = subject.capabilities.threshold and (number + turn) % 2 == 1
            view = subject.with_need(threshold=True) if is_bounded else subject
            num_named += judge_chains(view, trial, part, part.answers())
            judge_drafts(subject, trial, part)
    return f"{num_chains} chains in {len(cases)} calls, {num_named} of them named by the reference"


def _single_request_cases(domains: Factors, rng: Generator) -> list[Case]:
    """Return cases of one request with few and with many drafts, for every way and fate, with the dtypes in turn."""
    least, cases = min(site.size for site in domains["site"]), list[Case]()
    if True not in domains["seeded"]:
        return cases
    small_sites = itertools.cycle(site for site in domains["site"] if site.size == least)
    for way, fate, drafts in itertools.product(domains["way"], domains["fate"], (2, 9, 16)):
        fixed = {"way": way, "fate": fate, "drafts": drafts, "batch": 1, "poison": (), "seeded": True}
        fixed["site"] = next(small_sites)
        cases.append(random_case(domains | {n: [v] for n, v in fixed.items()}, rng, is_allowed))
    return cases


def _widest_cases(domains: Factors, rng: Generator) -> list[Case]:
    """Return cases of one request with one rejected or a few accepted drafts, in the widest vocabulary."""
    widest, cases = max(site.size for site in domains["site"]), list[Case]()
    if True not in domains["seeded"]:
        return cases
    ways = dict.fromkeys(way for way in domains["way"] if way[0] == "rejection")
    sites = [site for site in domains["site"] if site.size == widest]
    for site, way, (fate, drafts) in itertools.product(sites, ways, _WIDEST_FATES):
        fixed = {"family": "places", "poison": (), "seeded": True, "batch": 1}
        fixed |= {"site": site, "way": way, "fate": fate, "drafts": drafts}
        cases.append(random_case(domains | {n: [v] for n, v in fixed.items()}, rng, is_allowed))
    return cases


def fuzz(subject: VerifySubject, rng: Generator, trial: Trial) -> str:
    """Make and judge one random call of the same factors."""
    domains = draft_factors(subject, factors.sites(subject.capabilities, subject.effort))
    case = random_case(domains, rng, is_allowed)
    call = make_call(subject, rng, case, domains, AcceptanceNoise(rng, 2048))
    judge_chains(subject, trial, call, call.answers())
    judge_drafts(subject, trial, call)
    return str(call)


@properties.required("verify crossed drafts")
def crossed_drafts(subject: VerifySubject, trial: Trial) -> str:
    """Drafts of designed rows are kept tokens, and those of their seeds, in every dtype and vocabulary."""
    capabilities, num_drafts = per_row(subject.capabilities), 0
    all_sites = factors.sites(capabilities, subject.effort)
    widest = max(site.size for site in all_sites)
    if subject.effort.quick:  # only the widest of the wide vocabularies
        all_sites = [site for site in all_sites if site.size in (widest, min(site.size, NARROW_SIZE))]
    for site in all_sites:
        rng = trial.generator(str(site))
        seed_torch(rng)
        rows = rows_of_designs(capabilities, site, rng)
        rows += [] if site.size > NARROW_SIZE else threshold_rows(capabilities, site, rng)
        kinds = factors.kinds(capabilities)[:2]  # drafts of greedy rows stand beside verifications
        batch = [request for row in rows for request in make_requests(row, kinds, rng)]
        _require_drafts(subject, trial, batch)
        num_drafts += len(batch)
    return f"{num_drafts} drafts in {len(all_sites)} dtypes and vocabularies"


def _require_drafts(
    subject: VerifySubject, trial: Trial, batch: list[CrossedRequest], dtype: GumbelDtype | None = None
) -> None:
    rows = [
        Drawn(r.params, r.position, r.row.prepared, r.row.expected.possible, r.row.is_settled, str(r))
        for r in batch
    ]
    require_drafts(subject, trial, stack_logits(batch, subject.device), rows, dtype)


@properties.advertised("verify noise precision", lambda c: has_counter(c) or len(c.gumbel_dtypes) > 1)
def noise_precision(subject: VerifySubject, trial: Trial) -> str:
    """Seeded requests with different chains in 53-bit and 32-bit noise get the chain of the advertised precision."""
    capabilities, dtypes, num_rows = subject.capabilities, subject.noise_dtypes, 0
    if not has_counter(capabilities):
        view = subject.with_need(gumbel_dtype=dtypes[-1])
        for mode in capabilities.verify_modes:
            case = statistics.markov_case(trial, capabilities.draft_kinds[0], mode)
            draws = subject.effort.draws // 4
            statistics.judge(view, trial, f"Markov, {mode}", case, draws, seeded=False)
        return f"{dtypes[-1]}, distribution; without seeds nothing tells float64 noise from float32"
    if (capabilities.max_vocab_size or VOCAB_SIZE) < VOCAB_SIZE:
        trial.skip(f"needs a vocabulary of {VOCAB_SIZE}, found a limit of {capabilities.max_vocab_size}")
    plain_params = SamplingParams(filter_order=subject.filter_order)
    largest = max(KEPT_COUNTS)
    is_filtered = ("top_k", "per_row") in capabilities.filters and (
        capabilities.max_top_k or largest
    ) >= largest
    looks = list(itertools.product(capabilities.dtypes, (False, True)[: 1 + is_filtered]))
    for dtype, (name, filtered) in itertools.product(dtypes, looks[: 2 if subject.effort.mixed else None]):
        ways = subject.ways if name == capabilities.dtypes[0] else subject.outer_ways
        for way, luck in itertools.product(ways, (0.0, LUCK)):
            call = telling_call(way, plain_params, name, filtered=filtered, luck=luck, gumbel_dtype=dtype)
            found, answers = chains(call.verify(subject)), call.answers()
            for tokens, answer, request in zip(found, answers, call.requests, strict=True):
                assert answer is not None
                trial.require(
                    tokens == answer.tokens, f"{call}, {request} needs {answer.tokens}, found {tokens}"
                )
            num_rows += len(found)
    for dtype, name in itertools.product(dtypes, capabilities.dtypes[: 1 if subject.effort.mixed else None]):
        drafts = telling_requests(subject, Site(name, VOCAB_SIZE), DRAFT, per_row=True)
        _require_drafts(subject, trial, drafts, dtype)
        num_rows += len(drafts)
    return f"{num_rows} rows that tell {all_of(dtypes)} noise"


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
    is_seeded, rng = has_counter(subject.capabilities), trial.generator("rows")
    flat, eye = np.zeros(size, np.float32), np.eye(size, dtype=np.float32)
    even = np.full(size, 0.25, np.float32)
    impossible = np.array([0.0, -np.inf, 1.0, 0.5], np.float32)
    equal = (3 * rng.standard_normal(size)).astype(np.float32)
    sure = np.array([0.0, SURE_LOGIT, 0.0, 0.0], np.float32)
    unlikely, likely = np.array([[0.0, -14.0, 0.0, 0.0], [-15.0, 0.0, -20.0, -20.0]], np.float32)
    sure_draft = np.array([-30.0, 0.0, -30.0, -30.0], np.float32)
    first = rng.integers(0, 2**40, count).tolist()
    seeds: list[int | None] = rng.integers(0, 2**63, count).tolist() if is_seeded else [None] * count
    if is_seeded:
        seeds[:2], first[:2] = (LEAST_U, LARGEST_U), (U_POSITION, U_POSITION)
    cases: list[tuple[str, DraftKind, Array, Array, bool, int | None]] = [
        ("p = q", "probs", flat, even, True, None),
        ("p = q", "logits", equal, equal, True, None),
        ("p = q = 1", "probs", sure, eye[1], True, None),
        ("p = q = 1", "logits", sure, sure, True, None),
        ("p = q = 1", "chosen", sure, sure, True, None),
        ("p = 0", "probs", impossible, eye[1], False, None),
        ("p = 0", "logits", impossible, sure, False, None),
        ("p = 0", "chosen", impossible, sure, False, None),
        ("q = 0", "probs", flat, eye[2], False, None),
        ("q = 0", "logits", flat, impossible, False, None),
        ("the least u", "chosen", unlikely, flat, True, LEAST_U),
        ("the least u", "logits", unlikely, flat, True, LEAST_U),
        ("the least u", "probs", unlikely, even, True, LEAST_U),
        ("the largest u", "chosen", likely, flat, False, LARGEST_U),
        ("the largest u", "logits", likely, sure_draft, False, LARGEST_U),
        ("the largest u", "probs", likely, eye[1], False, LARGEST_U),
    ]
    served = [case for case in cases if case[1] in subject.capabilities.draft_kinds]
    for (label, kind, target, draft, accepted, seed), dtype in itertools.product(
        served, subject.capabilities.dtypes
    ):
        if seed is not None and not is_seeded:
            continue
        params, at = [SamplingParams(seed=each) for each in seeds], first
        if seed is not None:
            params, at = [SamplingParams(seed=seed)], [U_POSITION]
        num = len(params)
        draft_rows = subject.upload_draft(draft, dtype, kind).repeat(num, 1)
        logits = subject.upload(target, dtype).repeat(2 * num, 1)
        seed_torch(rng)
        found = subject.verify_ids(logits, [[1]] * num, ("rejection", kind), draft_rows, params, at)
        hits = int(found.num_accepted.sum())
        trial.require(
            hits == num * accepted,
            f"{label}, {dtype}, {kind}: of {num} drafts {num * accepted} need to be accepted, found {hits}",
        )
        num_cases += 1
    return f"{num_cases} cases and dtypes, {count} drafts each" + ", and the ends of u" * is_seeded


# Exact lines.


class _ChainBatch(exact.Batch):
    """Verifications of requests of a form, or drafts drawn from their first rows."""

    most = 64

    def __init__(self, subject: VerifySubject, call: CrossedCall, method: str = "verify") -> None:
        self.subject, self.crossed, self.method = subject, call, method
        self.need = subject.need(call.logprobs_mode)
        self.options = {"mode": call.form.mode} if method == "verify" else {}

    def __len__(self) -> int:
        return len(self.crossed.order)

    def __str__(self) -> str:
        return f"{self.method}: {self.crossed}"

    def select(self, order: Sequence[int]) -> _ChainBatch:
        chosen = [self.crossed.order[i] for i in order]
        batch = _ChainBatch(self.subject, replace(self.crossed, order=chosen), self.method)
        batch.known = self.known
        return batch

    def arguments(self) -> dict[str, Any]:
        if self.method == "verify":
            names = ("target_logits", "drafts", "metadata")
            return dict(zip(names, self.crossed.arguments(self.subject), strict=True))
        batch = [self.crossed.requests[i] for i in self.crossed.order]
        params, first = [r.params for r in batch], [r.first for r in batch]
        metadata = SamplingMetadata.from_params(params, device=self.subject.device, positions=first)
        rows = np.stack([request.target[0] for request in batch])
        return {"logits": self.subject.upload(rows, self.crossed.form.site.dtype), "metadata": metadata}

    def changing(self, arguments: dict[str, Any]) -> list[torch.Tensor]:
        ids = [arguments["drafts"].draft_token_ids] if "drafts" in arguments else []
        return [next(iter(arguments.values())), *ids, arguments["metadata"].positions]

    def followed(self, output: Any) -> list[torch.Tensor]:
        batch = [self.crossed.requests[i] for i in self.crossed.order]
        is_settled = [r.params.seed is not None or r.params.temperature == 0 for r in batch]
        return [output.token_ids[torch.tensor(is_settled)]]

    @property
    def known(self) -> list[bool]:
        """Whether the reference names the chain of each request beyond a near tie."""
        if not hasattr(self, "_known"):
            pairs = zip(self.crossed.answers(), self.crossed.requests, strict=True)
            self._known = [
                (answer.lead >= reference.NEAR_TIE if answer else all(map(_is_cold, request.rows)))
                and is_settled(self.subject, request, len(request.rows))
                for answer, request in pairs
            ]
        return self._known

    @known.setter
    def known(self, known: list[bool]) -> None:
        self._known = known

    def columns(self, output: Any) -> list[exact.Columns]:
        is_chain = self.method == "verify"
        found = chains(output) if is_chain else [[token] for token in output.token_ids.tolist()]
        columns, valid = [], output.valid.tolist()
        for place, (i, tokens) in enumerate(zip(self.crossed.order, found, strict=True)):
            rows = self.crossed.requests[i].rows if is_chain else [self.crossed.requests[i].draft_row]
            kept = [
                bool(row.kept[token]) or not row.certain for row, token in zip(rows, tokens, strict=False)
            ]
            column = {"chain": tokens if self.known[i] else None, "a dropped token": not all(kept)}
            columns.append(column | {"valid": valid[place] if self.known[i] or not is_chain else None})
        return columns


def _examples(subject: VerifySubject, rng: Generator, rows: int, size: int) -> Iterator[_ChainBatch]:
    """Make batches of every way and dtype in turn, mixed from all kinds of requests, and one of drafts."""
    size, rows = min(size, subject.capabilities.max_vocab_size or size), -(-rows // 2)  # of requests
    distinct = min(24, rows)
    modes, noise = subject.capabilities.logprobs_modes, AcceptanceNoise(rng, subject.effort.rows(2048))
    seed_torch(rng)
    ways = subject.outer_ways if rows > exact.MANY or size > WIDE_SIZE else subject.ways
    for turn, (way, dtype) in enumerate(zip(ways, subject.cycle_dtypes(), strict=False)):
        site = Site(dtype, size)
        fixed = {"site": site, "way": way, "gumbel_dtype": subject.gumbel_dtype, "layout": "flat"}
        fixed |= {"poison": (), "batch": 7, "draft_dtype": dtype, "best": None}
        domains = draft_factors(subject, [site])
        if not subject.capabilities.ragged_drafts:
            fixed["drafts"] = domains["drafts"][-1]
        domains |= {name: [value] for name, value in fixed.items()}
        if not has_counter(subject.capabilities):
            domains["temperature"] = [0.0 if subject.capabilities.greedy else 1e-6]
        domains["drafts"] = [n for n in domains["drafts"] if n <= 5] or domains["drafts"]
        calls = []
        for _ in range(-(-distinct // 7)):
            case = random_case(domains | {"batch": [1]}, rng, is_allowed)
            calls.append(make_call(subject, rng, case | {"batch": 7}, domains, noise))
        requests = [request for call in calls for request in call.requests][:distinct]
        order = [*range(distinct), *rng.integers(0, distinct, max(0, rows - distinct)).tolist()]
        mode = modes[turn % len(modes)] if modes and turn % 2 else None
        if mode is not None:
            requests[0] = replace(requests[0], params=replace(requests[0].params, logprobs=5))
        crossed = replace(calls[0], requests=requests, order=order, logprobs_mode=mode)
        yield _ChainBatch(subject, crossed)
        if turn == 0:
            yield _ChainBatch(subject, replace(crossed, logprobs_mode=None), "draft")


def _is_cold(row: reference.ReferenceRow) -> bool:
    """Whether a row has a single token with any mass, so that no noise decides."""
    return bool(np.count_nonzero(row.kept & (row.y > -_COLD_DEPTH)) == 1)


class _FlatBatch(_ChainBatch):
    """Flat rows of requests without seeds: each emits a bonus or recovered token from many equal tokens."""

    def __init__(self, subject: VerifySubject) -> None:
        self.subject, self.method, self.need = subject, "verify", None
        self.options = {"mode": subject.ways[0][0]}

    def arguments(self) -> dict[str, Any]:
        count, size, kind = 24, 32_000, self.subject.ways[0][1]
        size = min(size, self.subject.capabilities.max_vocab_size or size)
        device = self.subject.device
        rows = torch.full((count, size), 1.0 / size if kind == "probs" else 0.0, device=device)
        drafts = self.subject.drafts([[i] for i in range(count)], size, kind, rows)
        metadata = row_metadata(drafts, [SamplingParams()] * count, [0] * count)
        return {"target_logits": torch.zeros(2 * count, size, device=device), "drafts": drafts, "m": metadata}


def _flat(subject: VerifySubject) -> tuple[_FlatBatch, str]:
    return _FlatBatch(subject), "chains"


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
