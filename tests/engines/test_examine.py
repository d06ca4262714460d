"""The comparison of an adapter with its engine: whether it applies, and the reason in words."""

from pathlib import Path

import pytest

from call_tables import agree, pairs
from tokendraw.engines import changed_signature, examine

SWITCH = "TOKENDRAW_VLLM"


def broken():
    raise SystemExit("no driver")


@pytest.mark.parametrize(("call", "expected"), pairs(Path(__file__).with_name("examine.txt")))
def test_an_adapter_applies_where_nothing_stands_against_it(dists, monkeypatch, call, expected):
    monkeypatch.delenv(SWITCH, raising=False)

    def installed(name, version, *, switch=None, misfit=lambda: None):
        if switch is not None:
            monkeypatch.setenv(SWITCH, switch)
        if name is not None:
            dists.add(name, version)
        found = examine(
            "Acme",
            distributions=("acme-engine", "acme-engine-cpu"),
            tested=("1.1.0", "1.2.0"),
            misfit=misfit,
            would="its sampler",
            switch=SWITCH,
        )
        assert (found.engine, found.installed, found.tested) == ("Acme", version, ("1.1.0", "1.2.0"))
        return f"{found.applies}: {found.reason}"

    assert agree(expected, eval(call, {"installed": installed, "broken": broken}))


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
