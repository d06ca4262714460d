"""Each line of the kit is green on a right backend and red on its bugs: native with one planted bug each.

``make test-mutants`` looks at all of them; this module at a third, every edit of logits among them.
"""

import re

import pytest

import mutants
from checkout import ROOT
from mutants.corners import Corner
from tokendraw_testing import Status

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


def test_a_bug_has_a_name_of_its_own_and_a_line_or_a_reason_and_there_are_at_most_180():
    names = [mutant.name for mutant in ALL]
    assert sorted(set(names)) == sorted(names)
    assert [mutant.name for mutant in ALL if bool(mutant.lines) == bool(mutant.reason)] == []
    assert len(names) <= 180


def test_the_page_of_numbers_counts_the_bugs_of_each_family():
    page = (ROOT / "docs/numbers.md").read_text()
    for family, rows in FAMILIES.items():
        assert f"\n| {family.lower()} | {len(rows)} | " in page
