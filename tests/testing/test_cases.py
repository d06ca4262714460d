"""Covering tables hold every allowed pair in few cases, random cases are allowed ones, and places are counted."""

import itertools

import numpy as np
import pytest
import torch

from tokendraw import Drafts, SamplingMetadata, SamplingParams
from tokendraw.plugin import ProcessCapabilities
from tokendraw_native import plugin
from tokendraw_testing import Subject, run
from tokendraw_testing.cases import Site, covering, crossed_row, is_allowed, random_case
from tokendraw_testing.cases import rows as designed
from tokendraw_testing.kit.report import Place, width_class
from tokendraw_testing.kit.subject import VerifySubject
from tokendraw_testing.process_logits import EditRequest, ProcessSubject

FACTORS = {"a": range(8), "b": range(7), "c": range(5), "d": (0, 1), "e": ("x", "y", "z")}


def pairs(cases):
    return {
        ((one, case[one]), (other, case[other]))
        for case in cases
        for one, other in itertools.combinations(FACTORS, 2)
    }


def every(allowed=lambda case: True):
    cases = [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values())]
    return [case for case in cases if allowed(case)]


def test_every_pair_of_values_is_held_in_little_more_than_the_fewest_cases():
    cases = covering(FACTORS, np.random.default_rng(0))
    assert pairs(cases) == pairs(every())
    assert 56 <= len(cases) <= 66
    assert all(list(case) == list(FACTORS) for case in cases)


def test_forbidden_pairs_stay_out_and_allowed_pairs_are_held():
    def allowed(case):
        return (
            not (case.get("a", 1) == 0 and case.get("d", 0) == 1) and case.get("b", 0) + case.get("c", 0) < 9
        )

    cases = covering(FACTORS, np.random.default_rng(1), allowed)
    assert all(map(allowed, cases))
    assert pairs(cases) == pairs(every(allowed))


def test_random_cases_reach_every_pair_that_is_allowed():
    def allowed(case):
        return case.get("a", 1) != 0 or case.get("d", 1) == 1

    rng = np.random.default_rng(2)
    cases = [random_case(FACTORS, rng, allowed) for _ in range(3000)]
    assert pairs(cases) == pairs(every(allowed))


@pytest.mark.slow
def test_rounding_decides_the_filters_of_few_designed_rows():
    sites = [Site(dtype, v) for dtype in ("float32", "bfloat16", "float16") for v in (2, 33, 1025, 5003)]
    requests = designed.request_factors(plugin.tokendraw_describe().operations["sample"])
    factors = {"site": sites, "design": designed.DESIGNS, "top": designed.TOPS, **requests}
    rngs = [np.random.default_rng(seed) for seed in range(3)]
    rows = [crossed_row(case, rng, "value") for rng in rngs for case in covering(factors, rng, is_allowed)]
    assert sum(row.is_settled for row in rows) > 0.85 * len(rows)


# The places where a line has looked at rows, by call, dtype and width, and those that a run has missed.


GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(seed=3)
PLAIN = SamplingParams()


@pytest.fixture(scope="module")
def native():
    return Subject.installed("native", device="cpu", quick=True)


@pytest.mark.parametrize(
    ("vocab_size", "up_to"),
    [
        (1, 1024),
        (1024, 1024),
        (1025, 65536),
        (65536, 65536),
        (65537, 131072),
        (131072, 131072),
        (131073, None),
    ],
)
def test_the_classes_of_widths_end_where_kernels_change(vocab_size, up_to):
    assert width_class(vocab_size) == up_to


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_verifications_are_counted_by_mode(native, mode):
    view = VerifySubject(native)
    drafts = Drafts.from_lists([[1, 2], [], [3]])
    metadata = SamplingMetadata.from_params(
        [GREEDY, SEEDED, PLAIN], positions=[5, 6, 7]
    )  # an entry a request
    view.verify(torch.zeros(6, 8, dtype=torch.float16), drafts, metadata, mode)
    view.call("draft", torch.zeros(1, 70_000), SamplingMetadata.from_params([PLAIN]))
    assert view.looked == {(f"verify {mode}", "float16", 1024), ("verify draft", "float32", 131072)}


def test_edits_have_places_within_the_limits(native):
    view = ProcessSubject(native)
    engine = view.engine({0: EditRequest(SamplingParams(repetition_penalty=2.0), [1])}, 1, 8)
    logits, drafts = torch.zeros(3, 8, dtype=torch.float16), Drafts.from_lists([[3, 4]])
    view.make(view.new_call("process", logits, engine.slots, torch.tensor([0]), None, drafts))
    assert view.looked == {("process_logits", "float16", 1024)}
    limited = ProcessCapabilities(dtypes=("float32",), max_vocab_size=5)
    one = Subject(
        "acme", capabilities={"process_logits": limited}, device="cpu", build=lambda operation, need: None
    )
    assert ProcessSubject(one).places() == (Place("process_logits", "float32", 1024),)


def test_a_line_has_its_places_and_the_report_the_missed_places(native):
    report = run(native, only=["seeds at the edges", "torch.manual_seed"])
    every = {Place("sample", dtype, 1024) for dtype in ("float32", "bfloat16", "float16")}
    wide = {Place("sample", dtype, 65536) for dtype in ("float32", "bfloat16", "float16")}
    assert {line.name: line.looked for line in report.lines} == {
        "seeds at the edges": wide,
        "torch.manual_seed": every,
    }
    assert not (every | wide) & set(report.missed)
    assert len(report.missed) == 6
