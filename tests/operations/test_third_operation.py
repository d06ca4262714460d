"""An operation of another distribution, found by its entry point, works everywhere like those of the core."""

import json
import sys
import warnings

import pytest
import torch

import call_tables
import tokendraw
from command_line import call
from fake_dists import (
    NATIVE_SERVES,
    ONE_OF_THE_OPERATIONS,
    RECORD,
    add_scaler,
    add_third_operation,
    discovered,
    place,
    scaler,
)
from fake_dists import fake_dists as fake_distributions
from tokendraw import InvalidParameterError, Need, SamplerFallbackWarning, SamplerUnavailableError
from tokendraw.resolution import State

ROWS = torch.tensor([1.0, 2.0])


@pytest.fixture
def dists(dists):
    add_third_operation(dists)
    return dists


def scale_need(**fields):
    from scale_operation import ScaleNeed

    return ScaleNeed(**fields)


def state(**options):
    (found,) = [c for c in tokendraw.discover(operation="scale", **options) if c.name == "acme"]
    return found.state, found.reason


def only(**options):
    """Return the reason why no provider serves the operation."""
    with pytest.raises(SamplerUnavailableError) as refused:
        tokendraw.load("scale", device="cpu", **options)
    return str(refused.value)


# It serves


def test_it_is_negotiated_proven_and_called_by_its_own_methods_alone(dists):
    module = add_scaler(dists, capabilities="negative=True")
    provider = tokendraw.load("scale", device="cpu")
    assert (provider.name, provider.resolution.operation) == ("acme", "scale")
    assert provider.scale(ROWS, 3.0).tolist() == [3.0, 6.0]
    assert [("scale", torch.device("cpu"), scale_need())] == sys.modules[module].BUILT
    assert repr(provider) == "<tokendraw.scale 'acme' on cpu>"
    assert not hasattr(provider, "sample")


def test_the_next_best_takes_over_a_call_that_fails(dists):
    add_scaler(dists, "acme", result="rows * factor if len(rows) == 3 else 1 / 0")
    add_scaler(dists, "beta")
    provider = tokendraw.load("scale", device="cpu")
    with pytest.warns(SamplerFallbackWarning, match=r"'acme' failed: its call raised ZeroDivisionError"):
        assert provider.scale(ROWS, 2.0).tolist() == [2.0, 4.0]
    assert provider.name == "beta"


def test_it_changes_nothing_for_who_samples(dists, monkeypatch):
    module = add_scaler(dists)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tokendraw.load_sampler(device="cpu").name == "native"
    assert sys.modules[module].BUILT == []
    assert discovered().reason == "needs the operation sample, found scale"
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")  # which binds the operations of the core alone
    assert tokendraw.load("scale", device="cpu").name == "acme"
    assert tokendraw.resolve(operation="scale", device="cpu").chosen == "acme"
    assert state() == (State.AVAILABLE, None)
    assert "needs the operation scale" in only(plugin="native")


# It is refused with reasons


def test_who_cannot_serve_it_is_refused_with_the_reason(dists):
    """Every kind of reason is in the tables of decisions, which know no operation by name."""
    add_scaler(dists, result="1 / 0")
    here = place(scaler("acme", result="1 / 0"), "return 1 / 0")
    reason = f"the proof call raised ZeroDivisionError: division by zero {here}"
    assert only() == (
        f"No plugin can serve the operation 'scale' on cpu. Found acme: {reason}; native: needs the operation "
        f"scale, found {NATIVE_SERVES}. Mend one of them; `tokendraw doctor` says how."
    )
    assert only(plugin="acme") == (
        f"'acme', asked for by the argument plugin=, cannot serve the operation 'scale' on cpu: {reason}. "
        "Nothing else is available here. Leave out plugin= to let tokendraw choose."
    )


def test_what_is_asked_of_it_and_what_it_returns_is_checked_in_words(dists):
    add_scaler(dists, result="rows * factor if len(rows) == 3 else 'nothing'")
    names = {"tokendraw": tokendraw, "torch": torch, "Need": Need, "scale_need": scale_need, "ROWS": ROWS}
    names["scale"] = tokendraw.load("scale", "acme", device="cpu").scale
    table = call_tables.Table(__file__, "scale_refusals.txt")
    assert table.found(lambda: names) == table.text
    reason = "the request needs rounding down, found nearest"
    assert reason in only(need=scale_need(rounding="down"))
    assert state(need=scale_need(rounding="down")) == (State.UNAVAILABLE, reason)


BROKEN = {
    "OPERATION = 3": "'scale_operation:OPERATION' needs to be a tokendraw.plugin.Operation, found int",
    RECORD.replace('"scale"', '"weigh"'): (
        "'scale_operation:OPERATION' needs the name of its entry point, 'scale', found 'weigh'"
    ),
    "import nonesuch": "raised ModuleNotFoundError: No module named 'nonesuch'",
    "import sys; sys.exit(3)": "loading 'scale_operation:OPERATION' raised SystemExit: 3",
}


def listed(name):
    (found,) = [o for o in json.loads(call("list", "--json").stdout)["operations"] if o["name"] == name]
    return found


@pytest.mark.parametrize("record", BROKEN, ids=["type", "name", "import", "exit"])
def test_a_broken_record_is_listed_and_refused_with_its_reason(tmp_path, monkeypatch, record):
    with fake_distributions(tmp_path, monkeypatch) as dists:
        add_third_operation(dists, record=record)
        with pytest.raises(
            InvalidParameterError, match=r"^The operation 'scale' of scale-ops is broken: "
        ) as refused:
            tokendraw.load("scale")
        assert BROKEN[record] in str(refused.value)
        assert (listed("scale")["state"], BROKEN[record] in listed("scale")["reason"]) == ("broken", True)


def test_two_distributions_with_one_operation_and_a_name_of_the_core_are_refused(dists):
    add_third_operation(dists, distribution="other-ops")
    add_third_operation(dists, "sample", distribution="third-ops")
    with pytest.raises(InvalidParameterError) as refused:
        tokendraw.load("scale")
    assert str(refused.value) == (
        "The operation 'scale' of other-ops is broken: the name 'scale' is claimed by other-ops and scale-ops; "
        "uninstall all but one."
    )
    assert listed("sample")["reason"] == (
        "the name 'sample' is reserved for the distribution tokendraw, found it in third-ops; rename the entry point"
    )
    assert tokendraw.load("sample", device="cpu").name == "native"


def test_an_operation_of_tokendraw_s_own_says_what_to_install():
    with pytest.raises(InvalidParameterError) as refused:
        tokendraw.load("pack_sm90_w4")
    assert str(refused.value) == (
        f"'operation' needs {ONE_OF_THE_OPERATIONS}, found 'pack_sm90_w4', which the distribution "
        "tokendraw-engine-ops brings; run `pip install ./engine_ops` in tokendraw's checkout."
    )
