"""A plugin's table of upstream releases decides, row by row, unless the installed files differ."""

from dataclasses import replace

import pytest

from fake_candidates import EVERYTHING, LAPTOP, NATIVE, candidate
from tokendraw import Need, resolve
from tokendraw.plugin import Release, Upstream, VerifyCapabilities
from tokendraw.resolution import Choice

TABLE = (
    Release("0", "was never looked at", refused=True),
    Release("2", "has all that is called"),
    Release("2.5", "returns the wrong rows (pull request 17)", refused=True),
    Release("2.5.post1", "has all that is called"),
    Release("0", "has no kernel that draws", "sample", refused=True),
    Release("2.1", "draws with layout v1", "sample"),
    Release("2.3", "draws with layout v2", "sample"),
    Release("2.3.post2", "draws with layout v1", "sample"),
    Release("2.4", "draws with layout v2", "sample"),
)
ACME = Upstream("acme-kernels", ">=2,<3", ("2.1", "2.4"), TABLE)
USED = {"v1": "draws with layout v1", "v2": "draws with layout v2"}


def acme(installed, upstream=ACME):
    return replace(candidate("acme", 50, EVERYTHING, upstream), upstream_version=installed)


def reason(installed, upstream=ACME):
    """The words about acme where it is resolved for sampling beside native."""
    decisions = resolve([acme(installed, upstream), NATIVE], LAPTOP, Need(), Choice()).decisions
    return {decision.name: decision.reason for decision in decisions}["acme"]


def refused_by_table(installed, needed, says):
    return f"needs acme-kernels {needed}, found {installed}, which {says}"


@pytest.mark.parametrize(
    ("installed", "layout"),
    [
        ("2.1", "v1"),
        ("2.1rc1", "v1"),
        ("2.1.dev20260101", "v1"),
        ("2.1+cu128", "v1"),
        ("2.1.1", "v1"),
        ("2.2.post9", "v1"),
        ("2.3a1", "v2"),
        ("2.3", "v2"),
        ("2.3+cu130", "v2"),
        ("2.3.post1", "v2"),
        ("2.3.post1+cu130", "v2"),
        ("2.3.post2.dev0", "v1"),
        ("2.3.post2", "v1"),
        ("2.3.1", "v1"),
        ("2.4rc2", "v2"),
        ("2.4", "v2"),
        ("2.5.post1", "v2"),
        ("2.99", "v2"),
    ],
)
def test_the_row_of_a_version_is_told_with_the_decision(installed, layout):
    assert reason(installed) == f"best available, priority 50; acme-kernels {installed} {USED[layout]}"


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ("2.0", refused_by_table("2.0", ">=2.1", "has no kernel that draws")),
        ("2.0.9+cu128", refused_by_table("2.0.9+cu128", ">=2.1", "has no kernel that draws")),
        (
            "2.5",
            refused_by_table("2.5", ">=2,<2.5 or >=2.5.post1", "returns the wrong rows (pull request 17)"),
        ),
        (
            "2.5rc1",
            refused_by_table("2.5rc1", ">=2,<2.5 or >=2.5.post1", "returns the wrong rows (pull request 17)"),
        ),
        ("1.9", "needs acme-kernels >=2,<3, found 1.9, which has no kernel that draws"),
        ("2.0rc1", "needs acme-kernels >=2,<3, found 2.0rc1, which has no kernel that draws"),
        ("3.0", "needs acme-kernels >=2,<3, found 3.0"),
        ("3.0.dev1", "needs acme-kernels >=2,<3, found 3.0.dev1"),
    ],
)
def test_a_refused_version_is_refused_by_its_row_or_by_the_range(installed, words):
    assert reason(installed) == words


def test_a_version_that_is_refused_for_one_operation_serves_the_others():
    verifying = VerifyCapabilities.of(EVERYTHING)
    both = replace(
        acme("2.0"), info=replace(acme("2.0").info, operations={"sample": EVERYTHING, "verify": verifying})
    )
    decided = resolve([both], LAPTOP, Need(), Choice(), operation="verify").decisions
    assert [(d.accepted, d.reason) for d in decided] == [(True, "best available, priority 50")]


def test_an_operation_that_a_version_lacks_is_not_offered_for_the_reason_of_its_row():
    info = replace(acme("2.0").info, operations={"verify": VerifyCapabilities.of(EVERYTHING)})
    assert {
        installed: resolve([replace(acme(installed), info=info), NATIVE], LAPTOP, Need(), Choice())
        .decisions[1]
        .reason
        for installed in ("2.0", "2.1", None)
    } == {
        "2.0": "needs acme-kernels >=2.1, found 2.0, which has no kernel that draws",
        "2.1": "needs the operation sample, found verify",
        None: "needs the operation sample, found verify",
    }


@pytest.mark.parametrize(
    ("installed", "found", "words"),
    [
        ("2.1", "draws with layout v1", "best available, priority 50; acme-kernels 2.1 draws with layout v1"),
        (
            "2.1",
            "draws with layout v2",
            "best available, priority 50; acme-kernels 2.1 draws with layout v2 by its files",
        ),
        (
            "2.0",
            "draws with layout v2",
            "best available, priority 50; acme-kernels 2.0 draws with layout v2 by its files",
        ),
        (
            "2.4",
            "draws with layout v3",
            "best available, priority 50; acme-kernels 2.4 draws with layout v3 by its files",
        ),
        (
            "2.4",
            "has no kernel that draws",
            "needs acme-kernels >=2.1, found 2.4, which has no kernel that draws by its files",
        ),
        ("1.9", "draws with layout v2", "needs acme-kernels >=2,<3, found 1.9, which was never looked at"),
    ],
)
def test_what_the_files_say_beats_the_version(installed, found, words):
    assert reason(installed, replace(ACME, found={"sample": found})) == words


def test_a_version_that_no_row_of_the_operation_is_about_is_refused_for_all_of_them():
    about_all = replace(ACME, releases=TABLE[:4])
    assert reason("1.9", about_all) == "needs acme-kernels >=2,<3, found 1.9, which was never looked at"
    assert reason("2.4", about_all) == "best available, priority 50"


def test_a_library_without_a_table_is_judged_by_its_range_alone():
    bare = replace(ACME, releases=())
    assert reason("2.0", bare) == "best available, priority 50"
    assert reason("1.9", bare) == "needs acme-kernels >=2,<3, found 1.9"
