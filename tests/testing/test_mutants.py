"""The kit on mutants, native with one planted bug each: the lines of a mutant turn red.

``make test-mutants`` runs all mutants; this module runs the quick mutants, every second of the samplers and verifiers,
and one of each family of corners.
"""

import re

import pytest

import mutants
from checkout import ROOT
from mutants.corners import Corner
from tokendraw_testing import Status

FAMILIES = mutants.families()
ALL = [mutant for rows in FAMILIES.values() for mutant in rows]
SAMPLED = [rows[len(rows) // 2] for rows in FAMILIES.values() if isinstance(rows[0], Corner)]
QUICK = [
    m
    for m in ALL
    if m.device == "cpu" and m.operation == "process_logits" and m not in FAMILIES["Races of threads"]
]
SLOW = [m for family in ("Samplers", "Verifiers") for m in FAMILIES[family][::2]]
CUDA = [m for m in ALL if m.device != "cpu"]


def require_seen(mutant):
    lines = mutant.look()
    assert mutant.is_seen(lines), lines
    return lines


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.name)
def test_a_bug_in_every_call_turns_its_lines_red(mutant):
    require_seen(mutant)


@pytest.mark.fast_first
@pytest.mark.parametrize("mutant", SLOW, ids=lambda mutant: mutant.name)
def test_a_bug_in_every_draw_turns_its_line_red(mutant):
    require_seen(mutant)


@pytest.mark.fast_first
@pytest.mark.parametrize("mutant", SAMPLED, ids=lambda mutant: mutant.name)
def test_a_bug_in_a_corner_turns_the_line_red(mutant):
    (line,) = require_seen(mutant)
    assert re.search(r"\bneeds? |\bexpected |was drawn and has no mass", line.detail)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SAMPLED[::5], ids=lambda mutant: mutant.name)
def test_the_same_line_is_green_without_the_bug(mutant):
    (line,) = mutant.honest().look()
    assert line.status is Status.PASSED, line


@pytest.mark.gpu
@pytest.mark.parametrize("mutant", CUDA, ids=lambda mutant: mutant.name)
def test_a_bug_of_a_cuda_device_turns_the_line_red_on_the_device(mutant):
    require_seen(mutant)


def test_a_mutant_has_a_name_of_its_own_and_a_line_or_a_reason():
    names = [mutant.name for mutant in ALL]
    assert sorted(set(names)) == sorted(names)
    assert [mutant.name for mutant in ALL if bool(mutant.lines) == bool(mutant.reason)] == []


def test_the_report_names_every_mutant_with_lines_or_a_reason():
    page = (ROOT / "docs/planted-bugs.md").read_text()
    rows = [row.split(" | ") for row in page.splitlines() if row.startswith("| ")]
    listed = {row[0].removeprefix("| "): row[1] for row in rows if row[0] not in ("| mutant", "| ---")}
    assert listed == {m.name: ", ".join(f"`{line}`" for line in m.lines) or "none" for m in ALL}
    assert [m.reason for m in ALL if m.reason and m.reason not in page] == []
    assert "**missed**" not in page
