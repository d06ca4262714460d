"""Native passes the lines of the kit for its draws, verifications and scores, the contract of all backends."""

import pytest

from tokendraw_testing import Status, Subject, properties, run

LINES = {prop.name: kind for kind in ("sample", "verify", "score") for prop in properties(kind)}
LONG = frozenset(
    [
        "threads",
        "distribution",
        "tails",
        "strides",
        "batch invariance",
        "noise precision",
        "independent draws",
        "further filters",
        "last ids",
        "far NaN and infinities",
        "near ties",
        "crossed distributions",
        "noise of distant rows",
        "crossed requests",
        "crossed logprobs",
        "verify crossing",
        "verify crossing, wide",
        "verify crossed drafts",
        "verify near distributions",
        "verify shared noise",
        "scores",
    ]
)
"""Lines of more than a second on a CPU, those of the same name of other operations among them."""
SLOW = {name for name in LINES if name in LONG or name.partition(" ")[2] in LONG}
NOT_OFFERED = {"limits"}
REFUSED = {"verify sync-free"}


@pytest.fixture(scope="module")
def subject(device):
    return Subject.installed("native", device=device.type, quick=True)


@pytest.mark.parametrize("line", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in LINES])
def test_native_keeps_the_promise_of_a_line(subject, line):
    if line in SLOW and subject.device.type == "cpu":
        pytest.skip("the quick run of tests/cli/test_check.py looks at the long lines on a CPU")
    lines = run(subject, only=(line,), operation=LINES[line]).lines
    if line in NOT_OFFERED:
        assert lines == ()
        return
    (found,) = lines
    if found.status is Status.NOT_RUN:
        pytest.skip(found.detail)
    assert found.status is (Status.REFUSED if line in REFUSED else Status.PASSED), found


def test_the_long_lines_are_lines_of_the_kit():
    assert set(LINES) >= LONG
