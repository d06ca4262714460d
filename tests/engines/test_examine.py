"""The comparison of an adapter with its engine: whether it applies, and the reason in words."""

import pytest

from tokendraw.engines import EngineState, changed_signature, examine

SWITCH = "TOKENDRAW_VLLM"
TESTED = ("1.1.0", "1.2.0")
APPLIES = (True, "would replace its sampler")
MALFORMED = "'TOKENDRAW_VLLM' needs 0, 1, false or true, found 'off'. Set one of these, or unset it"


def broken():
    raise SystemExit("no driver")


def untested(version):
    return False, f"Acme {version} is untested, tested are 1.1.0 and 1.2.0"


CASES = {
    "a tested version": ("acme-engine", "1.2.0", None, None, APPLIES),
    "a local version of another distribution": ("acme-engine-cpu", "1.1.0+cpu", None, None, APPLIES),
    **{
        version: ("acme-engine", version, None, None, untested(version))
        for version in ("1.3.0", "1.2.0rc1", "1.2.0.post1", "recent")
    },
    "a missing engine": (None, None, None, None, (False, "Acme is not installed")),
    **{f"on by {value!r}": ("acme-engine", "1.2.0", value, None, APPLIES) for value in ("", "1", "true")},
    **{  # before an import of the engine
        f"off by {value!r}": (
            "acme-engine",
            "1.2.0",
            value,
            broken,
            (False, "switched off by TOKENDRAW_VLLM"),
        )
        for value in ("0", "false", "False")
    },
    "a malformed variable": ("acme-engine", "1.2.0", "off", None, (False, MALFORMED)),
    "a misfit": (
        "acme-engine",
        "1.2.0",
        None,
        lambda: "its sampler has gone",
        (False, "its sampler has gone"),
    ),
    "a broken import": (
        "acme-engine",
        "1.2.0",
        None,
        broken,
        (False, "importing Acme 1.2.0 raised SystemExit: no driver"),
    ),
}


@pytest.mark.parametrize(("name", "version", "switch", "misfit", "expected"), CASES.values(), ids=CASES)
def test_an_adapter_applies_where_nothing_stands_against_it(
    dists, monkeypatch, name, version, switch, misfit, expected
):
    monkeypatch.delenv(SWITCH, raising=False)
    if switch is not None:
        monkeypatch.setenv(SWITCH, switch)
    if name is not None:
        dists.add(name, version)
    found = examine(
        "Acme",
        distributions=("acme-engine", "acme-engine-cpu"),
        tested=TESTED,
        misfit=misfit or (lambda: None),
        would="its sampler",
        switch=SWITCH,
    )
    applies, reason = expected
    place = found.reason.removeprefix(reason)
    assert not place or place.startswith(" (")  # where an import failed
    assert found == EngineState(
        engine="Acme", installed=version, tested=TESTED, applies=applies, reason=reason + place
    )


def draw(logits, k, *, seed=None):
    return logits, k, seed


@pytest.mark.parametrize("leading", [(), ("logits",), ("logits", "k"), ("logits", "k", "seed")])
def test_further_parameters_may_follow_the_leading_ones(leading):
    assert changed_signature("draw", draw, leading) is None


@pytest.mark.parametrize(
    ("function", "parameters"), [(draw, "logits, k, seed"), (None, "none"), (lambda: None, "none")]
)
def test_wrong_leading_parameters_are_reported_with_both_lists(function, parameters):
    assert changed_signature("draw", function, ("logits", "p")) == (
        f"'draw' needs the parameters logits, p, found {parameters}"
    )
