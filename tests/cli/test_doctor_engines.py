"""``tokendraw doctor`` on inference engines: every installed adapter is asked in a new process."""

import json

import pytest

from command_line import be_on, call
from fake_candidates import LAPTOP, NATIVE
from fake_dists import fake_dists

FITS = """
from tokendraw.engines import EngineState

def state():
    print("a banner of the engine")
    return EngineState(
        engine="Acme", installed="1.2.0", tested=("1.1.0", "1.2.0"), applies=True, reason="would replace its sampler"
    )

def nothing():
    pass

def lethal():
    import os
    os._exit(7)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install({"acme": "fake_adapter:state"})``: a distribution with adapters of inference engines."""
    with fake_dists(tmp_path, monkeypatch) as dists:

        def add(adapters, name="acme-adapter", source=FITS):
            folder = dists.add(name, modules={"fake_adapter": source})
            lines = "".join(f"{key} = {value}\n" for key, value in adapters.items())
            (entry_points,) = [path / "entry_points.txt" for path in folder.glob("*.dist-info")]
            entry_points.write_text(f"[tokendraw.engines]\n{lines}")

        yield add


def test_what_an_adapter_says_is_shown_and_what_its_engine_prints_is_not(install, monkeypatch):
    be_on(monkeypatch, LAPTOP, (NATIVE,))
    install({"acme": "fake_adapter:state"})
    stdout = call("doctor", "--no-build").stdout
    assert (
        "\nengines\n"
        "  name  installed  tested        applies  what is replaced, or why nothing is\n"
        "  Acme  1.2.0      1.1.0, 1.2.0  yes      would replace its sampler\n\n"
    ) in stdout
    assert "banner" not in stdout


@pytest.mark.slow
def test_an_adapter_that_is_broken_is_named_with_the_reason_beside_the_others(install):
    install(
        {
            "acme": "fake_adapter:state",
            "absent": "fake_adapter:absent",
            "lethal": "fake_adapter:lethal",
            "nothing": "fake_adapter:nothing",
        }
    )
    states = json.loads(call("doctor", "--no-build", "--json").stdout)["engines"]
    assert next(state for state in states if state["engine"] == "Acme")["applies"]
    reasons = {state["engine"]: state["reason"] for state in states if not state["applies"]}
    assert reasons["absent"] == (
        "asking 'fake_adapter:absent' raised AttributeError: module 'fake_adapter' has no attribute 'absent'"
    )
    assert reasons["lethal"] == "asking 'fake_adapter:lethal' ended the process: exit status 7"
    assert reasons["nothing"] == "'fake_adapter:nothing' needs to return an EngineState, found NoneType"
