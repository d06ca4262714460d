"""Requests crossed over dtypes, vocabularies, values, kinds of drafts, fates, poison and batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tokendraw.plugin import Capabilities, DraftKind, VerifyCapabilities, VerifyMode
from tokendraw_testing.crossing import factors
from tokendraw_testing.crossing.covering import Case, covering, random_case
from tokendraw_testing.crossing.factors import Factors, Site
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.verify.crossing.calls import LAYOUTS, CrossedCall, require_answers
from tokendraw_testing.verify.crossing.noise import AcceptanceNoise
from tokendraw_testing.verify.crossing.requests import FATES, Form, Request, design
from tokendraw_testing.verify.crossing.rows import FAMILIES, VALUE_FAMILIES
from tokendraw_testing.verify.drafting import ways
from tokendraw_testing.verify.verifying import Verifying

properties = Properties("verify")

WIDE: Final = 1 << 16
_DRAFT_NAN: Final = ("draft", "NaN")
"""In a row that only some modes and kinds of drafts look at, so that few wide cases do."""
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
"""Where poison is, and what."""
_DRAFTS: Final = (0, 1, 2, 5, 8, 9, 16)
_FEW_DRAFTS: Final = (0, 1, 3, 9)
"""Those of wide vocabularies."""
_QUICK_WIDE: Final = 48
"""Wide cases of a quick run; the rest of a table holds the last few pairs."""
_RECOVERED: Final = 2
"""Recovered tokens of each dtype and kind of drafts in the widest vocabulary."""
_MOST_DIFFERENT: Final = 7
"""Requests of a call that differ; a larger batch holds them several times."""
_MOST_ELEMENTS: Final = 1 << 21
"""Logits of the target in a large batch."""
_REQUEST: Final = (
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


@properties.required("verify crossing")
def crossing(subject: Verifying, trial: Trial) -> str:
    """Chains, valid and logprobs of requests crossed over dtype, values, drafts, fate and batch are the reference's."""
    return _look(
        subject,
        trial,
        [site for site in factors.sites(subject.capabilities, subject.effort) if site.size <= WIDE],
    )


@properties.required("verify crossing, wide")
def wide_crossing(subject: Verifying, trial: Trial) -> str:
    """So they are in vocabularies of more than 65,536 and 131,072 ids that no vector load divides."""
    sites = [site for site in factors.sites(subject.capabilities, subject.effort) if site.size > WIDE]
    if not sites:
        limit = subject.capabilities.max_vocab_size
        found = "an effort without one" if limit is None or limit > WIDE else f"a limit of {limit:,}"
        trial.skip(f"needs a vocabulary above {WIDE:,}, found {found}")
    return _look(subject, trial, sites)


def _look(subject: Verifying, trial: Trial, sites: list[Site]) -> str:
    rng = trial.generator("requests")
    given = _factors(subject, sites)
    noise = AcceptanceNoise(rng, subject.effort.rows(8192))
    chains = named = 0
    most = _QUICK_WIDE if subject.effort.quick and sites[0].size > WIDE else None
    table = covering(given, rng, _allowed)[: subject.effort.crossed_rows or most]
    few = _recoveries(given, rng) if sites[0].size > WIDE else _alone(given, rng)
    cases = [*few, *table] if not subject.effort.mixed else table
    for case in cases:
        call = make_call(subject, rng, case, given, noise)
        alone = [call.of_most_drafts()] * (len(call.requests) > 1 and call.form.site.size <= WIDE)
        for each in (call, *alone):
            chains += len(each.order)
            named += require_answers(subject, trial, each)
    return f"{chains} chains in {len(cases)} calls, {named} of them named by the reference"


def _alone(given: Factors, rng: np.random.Generator) -> list[Case]:
    """Return cases of one request with few drafts and with many, for every way and fate, in the dtypes by turns."""
    least = min(site.size for site in given["site"])
    small = [site for site in given["site"] if site.size == least]
    found: list[Case] = []
    for way in given["way"]:
        for fate in given["fate"]:
            for drafts in (2, 9, 16):
                own = {"way": way, "fate": fate, "drafts": drafts, "batch": 1, "poison": (), "seeded": True}
                fixed = {
                    name: [value] for name, value in own.items() if name != "seeded" or True in given[name]
                }
                fixed["site"] = [small[len(found) % len(small)]]
                found.append(random_case({**given, **fixed}, rng, _allowed))
    return found if True in given["seeded"] else []


def _recoveries(given: Factors, rng: np.random.Generator) -> list[Case]:
    """Return cases of one draft that is rejected by its seed, in each dtype of the widest vocabulary."""
    if True not in given["seeded"]:
        return []
    widest = max(site.size for site in given["site"])
    own = {
        "fate": "rejected first",
        "family": "places",
        "poison": (),
        "seeded": True,
        "drafts": 1,
        "batch": 1,
    }
    fixed = {name: [value] for name, value in own.items()}
    judged = dict.fromkeys(way for way in given["way"] if way[0] == "rejection")
    return [
        random_case({**given, **fixed, "site": [site], "way": [way]}, rng, _allowed)
        for site in given["site"]
        if site.size == widest
        for way in judged
        for _ in range(_RECOVERED)
    ]


def fuzz(subject: Verifying, rng: np.random.Generator, trial: Trial) -> str:
    """Look at one random call of the same factors."""
    given = _factors(subject, factors.sites(subject.capabilities, subject.effort))
    case = random_case(given, rng, _allowed)
    call = make_call(subject, rng, case, given, AcceptanceNoise(rng, 2048))
    require_answers(subject, trial, call)
    return str(call)


def _factors(subject: Verifying, sites: list[Site]) -> Factors:
    offered: VerifyCapabilities = subject.capabilities
    numbers = _DRAFTS if any(site.size <= WIDE for site in sites) else _FEW_DRAFTS
    drafts = numbers if offered.ragged_drafts else numbers[1:]
    per_row = tuple(pair for pair in offered.filters if pair[1] == "per_row")
    requests = factors.request_factors(_only(offered, per_row))
    if offered.greedy:
        requests["temperature"] = (*requests["temperature"], 0.0)
    return {
        "site": sites,
        "draft_dtype": offered.dtypes,
        "way": ways(offered) if numbers is _DRAFTS else _wide_ways(offered),
        "gumbel_dtype": tuple({subject.gumbel_dtype: None} | dict.fromkeys(offered.gumbel_dtypes)),
        "logprobs_mode": (None, *offered.logprobs_modes),
        "layout": (LAYOUTS[0], *LAYOUTS) if offered.ragged_drafts else LAYOUTS[:1],
        "batch": (1, 2, 9, *[65] * (not subject.effort.mixed), subject.effort.crossed_batch),
        **requests,
        "best": (None, 0, 1, 5, 21, 50, -1) if offered.logprobs_modes else (None,),
        "seeded": (True, True, True, False) if offered.seeding == "counter" else (False,),
        "drafts": drafts,
        "fate": FATES if offered.placeholder_drafts else FATES[:-2],
        "family": FAMILIES
        if offered.tie_rule == "value"
        else tuple(family for family in FAMILIES if family not in VALUE_FAMILIES),
        "poison": POISON if numbers is _DRAFTS else (*POISON, _DRAFT_NAN, _DRAFT_NAN),
    }


def _wide_ways(offered: VerifyCapabilities) -> list[tuple[VerifyMode, DraftKind]]:
    """Return the ways that look at a draft's rows twice, and one way of a mode that never does."""
    every = ways(offered)
    judged = [way for way in every if way[0] == "rejection"]
    looked = [way for way in judged if way[1] != "chosen"]
    return [*judged, *looked, *[way for way in every if way[0] == "coupled"][-1:]]


def _only(offered: VerifyCapabilities, per_row: Any) -> Capabilities:
    return replace(offered, filters=per_row)


def _allowed(case: Mapping[str, Any]) -> bool:
    """Allow batches of as many logits as a call may cost, and what :func:`factors.allowed` does."""
    site, batch, drafts = case.get("site"), case.get("batch", 1), case.get("drafts", 0)
    if (
        site is not None
        and (batch - 1) * site.size * (4 if batch > _MOST_DIFFERENT else 1) > _MOST_ELEMENTS // 8
    ):
        return False
    if site is not None and site.size > WIDE and case.get("best") == -1 and (drafts > 1 or batch > 1):
        return False
    if case.get("fate", FATES[0]) != FATES[0] and drafts == 0 and "drafts" in case:
        return False
    return factors.allowed(case)


def make_call(
    subject: Verifying,
    rng: np.random.Generator,
    case: Case,
    given: Factors,
    noise: AcceptanceNoise,
) -> CrossedCall:
    """Make a call whose first request is that of a case, beside others of the same form at random."""
    offered = subject.capabilities
    mode, kind = case["way"]
    form = Form(
        site=case["site"],
        draft_dtype=case["draft_dtype"],
        mode=mode,
        kind=kind,
        gumbel_dtype=case["gumbel_dtype"],
    )
    requests = [_request(rng, form, case, noise)]
    own = {name: given[name] for name in _REQUEST}
    for _ in range(min(case["batch"], _MOST_DIFFERENT) - 1):
        other = {**case, **random_case(own, rng, lambda part: _allowed({"site": form.site, **part}))}
        if not offered.ragged_drafts:
            other["drafts"] = case["drafts"]
        if rng.random() < 0.7:
            other["poison"] = ()
        requests.append(_request(rng, form, other, noise))
    order = [*range(len(requests)), *rng.integers(0, len(requests), case["batch"] - len(requests)).tolist()]
    return CrossedCall(
        form=form,
        requests=requests,
        order=rng.permutation(order).tolist(),
        logprobs_mode=case["logprobs_mode"],
        layout=case["layout"],
    )


def _request(rng: np.random.Generator, form: Form, case: Case, noise: AcceptanceNoise) -> Request:
    wanted = case["best"] if case["logprobs_mode"] else None
    return design(rng, form, case, factors.params_of(case, logprobs=wanted), noise)
