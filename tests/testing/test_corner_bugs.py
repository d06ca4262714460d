"""The kit on plugins with a mistake in one corner each: its line turns red, and stays green without it."""

import re

import pytest

from checkout import ROOT
from corner_bugs import catalogue, table
from corner_bugs.plugin import NATIVE, NoBug
from tokendraw_testing.kit.report import Status

RUN = catalogue.SEEN[::8]
"""Every eighth of them: docs/planted-bugs.md is made by all."""
LOOKS = sorted({(bug.line, catalogue.operation(bug)) for bug in RUN})
WIDTHS = {
    look: tuple(
        sorted(
            {
                size
                for bug in RUN
                if (bug.line, catalogue.operation(bug)) == look
                for size in catalogue.widths(bug)
            }
        )
    )
    for look in LOOKS
}
"""All vocabularies in which a line is red for any of them."""


@pytest.mark.fast_first
@pytest.mark.parametrize("bug", RUN, ids=lambda bug: bug.__name__)
def test_a_mistake_in_one_corner_turns_its_line_red(bug):
    found = catalogue.seen(bug)
    assert found.status is Status.FAILED, found
    assert "a call raised" not in found.detail  # red for its bug, not for a slip of this suite
    assert re.search(r"\bneeds? |\bexpected |was drawn and has no mass", found.detail)


@pytest.mark.slow
@pytest.mark.parametrize(("line", "operation"), LOOKS)
def test_the_same_line_is_green_without_the_mistake(line, operation):
    found = catalogue.look(NoBug, line, operation, WIDTHS[line, operation], NATIVE["sample"].dtypes)
    assert found.status is Status.PASSED, found


def test_a_bug_has_a_line_or_a_reason_why_no_line_sees_it():
    assert [bug.__name__ for bug in catalogue.BUGS if bool(bug.line) == bool(bug.unseen)] == []


def test_every_bug_says_where_it_goes_wrong_in_words_of_its_own():
    words = [bug.__doc__ for bug in catalogue.BUGS]
    assert all(words)
    assert len(set(words)) == len(words)


def test_the_page_names_every_bug_with_its_line_or_its_reason():
    page = (ROOT / "docs/planted-bugs.md").read_text()
    told = [
        f"| {table.words(bug)} | {f'`{bug.line}`' if bug.line else bug.unseen} |" for bug in catalogue.BUGS
    ]
    assert [words for words in told if words not in page] == []
