"""Requests crossed over dtypes, vocabularies, values, kinds of drafts, fates, poison and batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from numpy.random import Generator

from tokendraw.plugin import DraftKind, VerifyCapabilities, VerifyMode
from tokendraw_testing.crossing import factors
from tokendraw_testing.crossing.covering import Case, covering, random_case
from tokendraw_testing.crossing.factors import Factors, Site
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.verify.crossing.calls import LAYOUTS, CrossedCall
from tokendraw_testing.verify.crossing.judgement import require_answers
from tokendraw_testing.verify.crossing.noise import AcceptanceNoise
from tokendraw_testing.verify.crossing.requests import FATES, DraftRequest, Form, make_request
from tokendraw_testing.verify.crossing.rows import FAMILIES, VALUE_FAMILIES
from tokendraw_testing.verify.subject import VerifySubject

properties = Properties("verify")

WIDE_SIZE: Final = 1 << 16
_DRAFT_NAN: Final = ("draft", "NaN")
"""NaN in a draft row, which only some modes and kinds of drafts read."""
_DRAFT_BELOW_0: Final = ("draft", "-1")
"""Negative probabilities in a draft row."""
POISON: Final = (
    (),
    ("bonus", "NaN"),
    ("bonus", "nothing"),
    ("bonus", "+inf"),
    ("behind", "NaN"),
    ("used", "NaN"),
    _DRAFT_NAN,
    ("draft behind", "nothing"),
)
"""Places of special values, and the values."""
_DRAFTS: Final = (0, 1, 2, 5, 8, 9, 16)
_WIDE_DRAFTS: Final = (0, 1, 3, 9)
"""Numbers of drafts in wide vocabularies."""
_QUICK_WIDE_CASES: Final = 48
"""Wide cases of a quick run; the rest of a table holds the last few pairs."""
_WIDEST_FATES: Final = (*[("rejected first", 1)] * 5, *[("all accepted", 3)] * 2)
"""Fates and numbers of drafts in the widest vocabulary, for each dtype and kind of drafts."""
_THRESHOLD_CASES: Final = 24
_MOST_DISTINCT: Final = 7
"""Requests of a call that differ; a larger batch holds them several times."""
_MOST_ELEMENTS: Final = 1 << 21
"""Logits of the target in a large batch."""
_REQUEST_FACTORS: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "filter_order",
    "best",
    "seeded",
    "drafts",
    "fate",
    "family",
    "poison",
)


@properties.required("verify crossing", is_long=True)
def crossing(subject: VerifySubject, trial: Trial) -> str:
    """Chains, valid and logprobs of requests crossed over dtype, values, drafts, fate and batch are the reference's."""
    return _check_cases(
        subject,
        trial,
        [site for site in factors.sites(subject.capabilities, subject.effort) if site.size <= WIDE_SIZE],
    )


@properties.required("verify crossing, wide", is_long=True)
def wide_crossing(subject: VerifySubject, trial: Trial) -> str:
    """So they are in vocabularies of more than 65,536 and 131,072 ids that no vector load divides."""
    sites = [site for site in factors.sites(subject.capabilities, subject.effort) if site.size > WIDE_SIZE]
    if not sites:
        limit = subject.capabilities.max_vocab_size
        reason = "an effort without one" if limit is None or limit > WIDE_SIZE else f"a limit of {limit:,}"
        trial.skip(f"needs a vocabulary above {WIDE_SIZE:,}, found {reason}")
    return _check_cases(subject, trial, sites)


@properties.advertised("verify thresholds", lambda c: c.threshold, Refusal({"threshold": True}), is_long=True)
def thresholds(subject: VerifySubject, trial: Trial) -> str:
    """Each row of the target has the threshold that ``sample`` would report, and chains stay as they are."""
    rng = trial.generator("requests")
    sites = [site for site in factors.sites(subject.capabilities, subject.effort) if site.size <= WIDE_SIZE]
    domains = _factors(subject, sites)
    noise = AcceptanceNoise(rng, subject.effort.rows(2048))
    view = subject.with_need(threshold=True)
    cases = [random_case(domains, rng, _is_allowed) for _ in range(subject.effort.rows(_THRESHOLD_CASES))]
    num_rows = 0
    for case in cases:
        call = make_call(subject, rng, case, domains, noise)
        num_rows += sum(len(call.requests[i].rows) for i in call.order)
        require_answers(view, trial, call)
    return f"{num_rows} rows in {len(cases)} calls"


def _check_cases(subject: VerifySubject, trial: Trial, sites: list[Site]) -> str:
    rng = trial.generator("requests")
    domains = _factors(subject, sites)
    noise = AcceptanceNoise(rng, subject.effort.rows(8192))
    num_chains = num_named = 0
    most = _QUICK_WIDE_CASES if subject.effort.quick and sites[0].size > WIDE_SIZE else None
    table = covering(domains, rng, _is_allowed)[: subject.effort.crossed_rows or most]
    make_cases = _widest_cases if sites[0].size > WIDE_SIZE else _single_request_cases
    directed_cases = make_cases(domains, rng)
    cases = [*directed_cases, *table] if not subject.effort.mixed else table
    for case in cases:
        call = make_call(subject, rng, case, domains, noise)
        is_alone = len(call.requests) == 1 or call.form.site.size > WIDE_SIZE
        single_request = [] if is_alone else [call.of_most_drafts()]
        for part in (call, *single_request):
            num_chains += len(part.order)
            num_named += require_answers(subject, trial, part)
    return f"{num_chains} chains in {len(cases)} calls, {num_named} of them named by the reference"


def _single_request_cases(domains: Factors, rng: Generator) -> list[Case]:
    """Return cases of one request with few and with many drafts, for every way and fate, with the dtypes in turn."""
    least = min(site.size for site in domains["site"])
    small_sites = [site for site in domains["site"] if site.size == least]
    cases: list[Case] = []
    for way in domains["way"]:
        for fate in domains["fate"]:
            for drafts in (2, 9, 16):
                case_values = {"way": way, "fate": fate, "drafts": drafts}
                case_values |= {"batch": 1, "poison": (), "seeded": True}
                fixed_values = {
                    name: [value]
                    for name, value in case_values.items()
                    if name != "seeded" or True in domains[name]
                }
                fixed_values["site"] = [small_sites[len(cases) % len(small_sites)]]
                cases.append(random_case({**domains, **fixed_values}, rng, _is_allowed))
    return cases if True in domains["seeded"] else []


def _widest_cases(domains: Factors, rng: Generator) -> list[Case]:
    """Return cases of one request with one rejected or a few accepted drafts, in the widest vocabulary."""
    if True not in domains["seeded"]:
        return []
    widest_size = max(site.size for site in domains["site"])
    case_values: dict[str, Any] = {"family": "places", "poison": (), "seeded": True, "batch": 1}
    fixed_values = {name: [value] for name, value in case_values.items()}
    rejection_ways = dict.fromkeys(way for way in domains["way"] if way[0] == "rejection")
    return [
        random_case(
            {**domains, **fixed_values, "site": [site], "way": [way], "fate": [fate], "drafts": [drafts]},
            rng,
            _is_allowed,
        )
        for site in domains["site"]
        if site.size == widest_size
        for way in rejection_ways
        for fate, drafts in _WIDEST_FATES
    ]


def fuzz(subject: VerifySubject, rng: Generator, trial: Trial) -> str:
    """Make and judge one random call of the same factors."""
    domains = _factors(subject, factors.sites(subject.capabilities, subject.effort))
    case = random_case(domains, rng, _is_allowed)
    call = make_call(subject, rng, case, domains, AcceptanceNoise(rng, 2048))
    require_answers(subject, trial, call)
    return str(call)


def _factors(subject: VerifySubject, sites: list[Site]) -> Factors:
    capabilities: VerifyCapabilities = subject.capabilities
    numbers = _DRAFTS if any(site.size <= WIDE_SIZE for site in sites) else _WIDE_DRAFTS
    drafts = numbers if capabilities.ragged_drafts else numbers[1:]
    per_row = tuple(pair for pair in capabilities.filters if pair[1] == "per_row")
    requests = factors.request_factors(replace(capabilities, filters=per_row))
    if capabilities.greedy:
        requests["temperature"] = (*requests["temperature"], 0.0)
    return {
        "site": sites,
        "draft_dtype": capabilities.dtypes,
        "way": _narrow_ways(subject) if numbers is _DRAFTS else _wide_ways(subject),
        "gumbel_dtype": tuple({subject.gumbel_dtype: None} | dict.fromkeys(capabilities.gumbel_dtypes)),
        "logprobs_mode": (None, *capabilities.logprobs_modes),
        "layout": (LAYOUTS[0], *LAYOUTS) if capabilities.ragged_drafts else LAYOUTS[:1],
        "batch": (1, 2, 9, *[65] * (not subject.effort.mixed), subject.effort.crossed_batch),
        **requests,
        "best": (None, 0, 1, 5, 21, 50, -1) if capabilities.logprobs_modes else (None,),
        "seeded": (True, True, True, False) if capabilities.seeding == "counter" else (False,),
        "drafts": drafts,
        "fate": FATES if capabilities.placeholder_drafts else FATES[:-2],
        "family": FAMILIES
        if capabilities.tie_rule == "value"
        else tuple(family for family in FAMILIES if family not in VALUE_FAMILIES),
        "poison": (*POISON, _DRAFT_BELOW_0) if numbers is _DRAFTS else (*POISON, _DRAFT_NAN, _DRAFT_NAN),
    }


def _narrow_ways(subject: VerifySubject) -> list[tuple[VerifyMode, DraftKind]]:
    """Return every way, and rejection twice beside blocks, which more requests use."""
    has_block = any(mode == "block" for mode, _ in subject.ways)
    return [*subject.ways, *(way for way in subject.ways if has_block and way[0] == "rejection")]


def _wide_ways(subject: VerifySubject) -> list[tuple[VerifyMode, DraftKind]]:
    """Return the ways with two reads of a draft's rows, and one coupled way without any read."""
    rejection_ways = [way for way in subject.ways if way[0] == "rejection"]
    two_pass_ways = [way for way in rejection_ways if way[1] != "chosen"]
    coupled_ways, block_ways = (
        [way for way in subject.ways if way[0] == mode] for mode in ("coupled", "block")
    )
    return [*rejection_ways, *two_pass_ways, *coupled_ways[-1:], *block_ways[:2]]


def _is_allowed(case: Mapping[str, Any]) -> bool:
    """Allow batches within the limit on logits, if :func:`factors.is_allowed` allows the case."""
    site, batch, drafts = case.get("site"), case.get("batch", 1), case.get("drafts", 0)
    copies = 4 if batch > _MOST_DISTINCT else 1
    if site is not None and (batch - 1) * site.size * copies > _MOST_ELEMENTS // 8:
        return False
    if site is not None and site.size > WIDE_SIZE and case.get("best") == -1 and (drafts > 1 or batch > 1):
        return False
    if case.get("fate", FATES[0]) != FATES[0] and drafts == 0 and "drafts" in case:
        return False
    mode, kind = case.get("way", ("rejection", "probs"))
    if case.get("poison") == _DRAFT_BELOW_0 and (mode == "coupled" or kind != "probs"):
        return False
    return factors.is_allowed(case)


def make_call(
    subject: VerifySubject, rng: Generator, case: Case, domains: Factors, noise: AcceptanceNoise
) -> CrossedCall:
    """Make a call with the request of a case first, followed by random requests of the same form."""
    capabilities = subject.capabilities
    mode, kind = case["way"]
    form = Form(
        site=case["site"],
        draft_dtype=case["draft_dtype"],
        mode=mode,
        kind=kind,
        gumbel_dtype=case["gumbel_dtype"],
    )
    gives_ids = capabilities.logprob_token_ids
    requests = [_request(rng, form, case, noise, gives_ids=gives_ids)]
    request_factors = {name: domains[name] for name in _REQUEST_FACTORS}
    for _ in range(min(case["batch"], _MOST_DISTINCT) - 1):
        other_case = {
            **case,
            **random_case(
                request_factors,
                rng,
                lambda part: _is_allowed({"site": form.site, "way": case["way"], **part}),
            ),
        }
        if not capabilities.ragged_drafts:
            other_case["drafts"] = case["drafts"]
        if rng.random() < 0.7:
            other_case["poison"] = ()
        requests.append(_request(rng, form, other_case, noise, gives_ids=gives_ids))
    order = [*range(len(requests)), *rng.integers(0, len(requests), case["batch"] - len(requests)).tolist()]
    return CrossedCall(
        form=form,
        requests=requests,
        order=rng.permutation(order).tolist(),
        logprobs_mode=case["logprobs_mode"],
        layout=case["layout"],
    )


def _request(
    rng: Generator, form: Form, case: Case, noise: AcceptanceNoise, *, gives_ids: bool
) -> DraftRequest:
    num_best = case["best"] if case["logprobs_mode"] else None
    params = factors.params_of(case, logprobs=num_best)
    if gives_ids and num_best is not None and case["drafts"] % 2 == 0:
        last = form.site.size - 1
        params = replace(params, logprob_token_ids=(last, 0, last // 3))
    return make_request(rng, form, case, params, noise)
