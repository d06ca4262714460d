"""Native passes the lines of the kit for ``sample`` and ``verify``, the contract of all backends."""

import pytest

from tokendraw_testing import Status, Subject, properties, run

LINES = {prop.name: operation for operation in ("sample", "verify") for prop in properties(operation)}
LONG = frozenset(
    (
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
        "verify batch invariance",
        "verify distribution",
        "verify further filters",
        "verify threads",
        "verify crossing",
        "verify crossing, wide",
        "verify crossed drafts",
        "verify noise precision",
        "verify near distributions",
        "verify shared noise",
    )
)
"""Lines of more than a second on a CPU."""
NOT_OFFERED = {"limits"}
REFUSED = {"verify sync-free"}


@pytest.fixture(scope="module")
def subject(device):
    return Subject.installed("native", device=device.type, quick=True)


@pytest.mark.parametrize(
    "line",
    [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in LINES],
)
def test_native_keeps_the_promise_of_a_line(subject, line):
    if line in LONG and subject.device.type == "cpu":
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
