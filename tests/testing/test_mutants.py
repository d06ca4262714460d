"""Each line of the kit is green on a right backend and red on its bugs: native with one planted bug each.

``make test-mutants`` looks at all of them; this module at a third, every edit of logits among them.
"""

import re

import pytest
import torch

import mutants
from checkout import ROOT
from mutants import by_name
from mutants.corners import Corner
from mutants.samplers import SAMPLERS, SamplerMutant, sampler_mutant
from special_rows import drop_float64
from tokendraw import philox
from tokendraw_native import plugin
from tokendraw_native.sampler import NativeSampler
from tokendraw_testing import Effort, Status, Subject, run
from tokendraw_testing.cases.telling import SEEDS

FAMILIES = mutants.families()
ALL = [mutant for rows in FAMILIES.values() for mutant in rows]
LOOKS = [m for m in ALL if m.lines and m.device == "cpu"]
FAST = [m for m in FAMILIES["Processors of logits"] if m in LOOKS]
SLOW = [m for m in LOOKS if m not in FAST and m not in FAMILIES["Races of threads"]][::3]
CUDA = [m for m in ALL if m.device != "cpu"]
NEEDED = re.compile(r"\bneeds? |\bexpected |was drawn and has no mass|\bdrawn ")


def require_seen(mutant):
    lines = mutant.look()
    assert mutant.is_seen(lines), lines
    assert all(NEEDED.search(line.detail) for line in lines), lines


@pytest.mark.parametrize("mutant", FAST, ids=lambda mutant: mutant.name)
def test_a_bug_of_an_edit_turns_its_lines_red(mutant):
    require_seen(mutant)


@pytest.mark.fast_first
@pytest.mark.parametrize("mutant", SLOW, ids=lambda mutant: mutant.name)
def test_a_bug_turns_its_lines_red(mutant):
    require_seen(mutant)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", [m for m in SLOW if isinstance(m, Corner)][::5], ids=lambda mutant: mutant.name
)
def test_the_same_line_is_green_without_the_bug(mutant):
    (line,) = mutant.honest().look()
    assert line.status is Status.PASSED, line


@pytest.mark.gpu
@pytest.mark.parametrize("mutant", CUDA, ids=lambda mutant: mutant.name)
def test_a_bug_of_a_cuda_device_turns_the_line_red_on_the_device(mutant):
    require_seen(mutant)


def test_a_bug_has_its_own_name_and_a_line_or_a_reason_and_at_most_180_are_there():
    names = [mutant.name for mutant in ALL]
    assert sorted(set(names)) == sorted(names)
    assert [mutant.name for mutant in ALL if bool(mutant.lines) == bool(mutant.reason)] == []
    assert len(names) <= 180


def test_the_page_of_numbers_counts_the_bugs_of_each_family():
    page = (ROOT / "docs/numbers.md").read_text()
    for family, rows in FAMILIES.items():
        assert f"\n| {family.lower()} | {len(rows)} | " in page


# The kit at its smallest, for kernels in an interpreter: every line is run, in few rows, and most bugs still show.


BY_NAME = by_name(SAMPLERS)
TOO_SMALL_FOR = {
    "1 % of the tail dropped": ["crossed requests"],  # the line of its own sees nothing, this one does
    "noise index wrapping at 2**15 rows": [],
    "uniforms of 24 bits": [],
    "p is halved where p <= 0.01 and the row is flat and no threshold asked for": [],
    "p is halved where p <= 0.01 and the row is flat, of a sampler without seeds and thresholds": [],
    "the deviation of a sample in place of the population": [],  # seen with two of six seeds
}
"""Bugs that take more draws, or more rows, than an interpreter has time for."""


class Counting(SamplerMutant):
    rows = 0

    def change(self, logits, metadata):
        Counting.rows += len(logits)
        return logits, metadata


def tiny(mutant, **options):
    return mutant.subject(effort=Effort.tiny(), **options)


@pytest.mark.slow
def test_every_line_is_run_in_few_rows():
    report = run(tiny(sampler_mutant(Counting)))
    interpreted = "needs compiled kernels, found an effort for interpreted ones"
    assert report.failed == ()
    assert {line.name: line.detail for line in report.lines if line.status is not Status.PASSED} == {
        "threads": interpreted,
        "sync-free": "needs a CUDA device, found cpu",
        "graph capture": "needs a CUDA device, found cpu",
    }
    assert Counting.rows < 7000


@pytest.mark.parametrize("bug", [name for name in BY_NAME if name not in TOO_SMALL_FOR])
def test_most_bugs_of_samplers_turn_their_lines_red_at_the_smallest_effort(bug):
    lines = BY_NAME[bug].look(effort=Effort.tiny())
    assert BY_NAME[bug].is_seen(lines), lines


@pytest.mark.parametrize("bug", TOO_SMALL_FOR)
def test_a_bug_with_too_few_draws_is_seen_by_the_listed_lines(bug):
    lines = [*BY_NAME[bug].lines, *TOO_SMALL_FOR[bug]]
    report = run(tiny(BY_NAME[bug]), only=lines)
    assert [line.name for line in report.failed] == [
        line.name for line in report.lines if line.name in TOO_SMALL_FOR[bug]
    ]


# The noise precision of every draw, at both levels, and of the acceptance of drafts.


CAPABILITIES = plugin.tokendraw_describe().operations
LINES = ("noise precision", "verify noise precision")


def native(refusals=lambda need: need, **options):
    return Subject(
        "native",
        capabilities=CAPABILITIES,
        device="cpu",
        build=lambda operation, need: NativeSampler(torch.device("cpu"), refusals(need)),
        effort=Effort.tiny(),
        **options,
    )


def failed(subject, lines=LINES):
    return {line.name for line in run(subject, only=lines).lines if line.status is Status.FAILED}


@pytest.mark.parametrize("stream", [philox.TOKEN, philox.TILE])
def test_float32_noise_of_a_stream_in_place_of_float64_turns_the_line_of_draws_red(monkeypatch, stream):
    drop_float64(monkeypatch, stream)
    assert failed(native(), ["noise precision"]) == {"noise precision"}


@pytest.mark.parametrize("stream", SEEDS)
@pytest.mark.fast_first
def test_float32_noise_in_place_of_float64_turns_the_line_of_verifications_red(monkeypatch, stream):
    drop_float64(monkeypatch, stream)
    assert failed(native(), ["verify noise precision"]) == {"verify noise precision"}


class TestARunForOnePrecision:
    @pytest.mark.slow
    def test_every_build_has_the_precision(self):
        needs = []
        subject = native(lambda need: needs.append(need) or need, need={"gumbel_dtype": "fp64"})
        report = run(subject, only=["output", "seeds at the edges", *LINES])
        assert report.failed == ()
        assert {need.gumbel_dtype for need in needs} == {"fp64"}

    def test_operations_without_noise_are_left_out(self):
        subject = native(need={"gumbel_dtype": "fp64"})
        assert subject.capabilities.keys() == {"sample", "verify", "score"}
        assert native(need={"graph_safe": False}).capabilities.keys() == CAPABILITIES.keys()
