"""An operation of another distribution, found by its entry point, works everywhere like those of the core."""

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tokendraw
from command_line import call
from fake_dists import (
    NATIVE_SERVES,
    ONE_OF_THE_OPERATIONS,
    RECORD,
    SERVED_BY_NATIVE,
    FakeDists,
    add_scaler,
    add_third_operation,
    discovered,
    fake_dists,
    place,
    scaler,
)
from tokendraw import (
    InvalidInputError,
    InvalidParameterError,
    Need,
    PluginError,
    SamplerFallbackWarning,
    SamplerUnavailableError,
)
from tokendraw.plugin import HostNeed
from tokendraw.resolution import State

ROWS = torch.tensor([1.0, 2.0])


@pytest.fixture
def dists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDists]:
    with fake_dists(tmp_path, monkeypatch) as found:
        add_third_operation(found)
        yield found


def scale_need(**fields: str) -> HostNeed:
    from scale_operation import ScaleNeed

    return ScaleNeed(**fields)


def state(name: str = "acme", **options) -> tuple[State, str | None]:
    (found,) = [c for c in tokendraw.discover(operation="scale", **options) if c.name == name]
    return found.state, found.reason


def only(operation: str, **options) -> str:
    """Return the reason why no provider serves the operation."""
    with pytest.raises(SamplerUnavailableError) as refused:
        tokendraw.load(operation, **options)
    return str(refused.value)


# It serves


def test_it_is_negotiated_proven_and_called_by_its_own_methods_alone(dists: FakeDists) -> None:
    module = add_scaler(dists, capabilities="negative=True")
    provider = tokendraw.load("scale", device="cpu")
    assert (provider.name, provider.resolution.operation) == ("acme", "scale")
    assert provider.scale(ROWS, 3.0).tolist() == [3.0, 6.0]
    assert [("scale", torch.device("cpu"), scale_need())] == sys.modules[module].BUILT
    assert repr(provider) == "<tokendraw.scale 'acme' on cpu>"
    assert not hasattr(provider, "sample")


def test_the_best_of_several_serves_and_the_reserve_is_named(dists: FakeDists) -> None:
    add_scaler(dists, "acme", capabilities="negative=True")
    add_scaler(dists, "better", priority=60)
    provider = tokendraw.load("scale", device="cpu")
    assert provider.resolution.explain() == (
        "scale on cpu: better\n"
        "  beyond better (negative factors): go to acme\n"
        "  + better: best available, priority 60\n"
        "  + acme: available, priority 50; serves the calls that better cannot\n"
        f"  - native: needs the operation scale, found {NATIVE_SERVES}"
    )
    assert tokendraw.load("scale", "acme", device="cpu").resolution.beyond == ()


def test_a_call_that_is_beyond_the_chosen_one_goes_to_its_companion(dists: FakeDists) -> None:
    add_scaler(dists, "acme", capabilities="negative=True")
    add_scaler(dists, "better", priority=60, result="rows * factor if factor > 0 else 0 * rows")
    provider = tokendraw.load("scale", device="cpu")
    assert provider.scale(ROWS, 2.0).tolist() == [2.0, 4.0]
    assert provider.scale(ROWS, -2.0).tolist() == [-2.0, -4.0]
    assert provider.stats() == {"better": 2, "acme": 2}
    alone = tokendraw.load("scale", "better", device="cpu")
    assert alone.resolution.companion == "acme"


def test_a_call_that_nobody_can_serve_is_refused(dists: FakeDists) -> None:
    add_scaler(dists)
    with pytest.raises(SamplerUnavailableError) as refused:
        tokendraw.load("scale", device="cpu").scale(ROWS, -1.0)
    assert str(refused.value).startswith("'acme' cannot serve negative factors")


def test_its_arguments_and_its_output_are_checked(dists: FakeDists) -> None:
    add_scaler(dists, result="rows * factor if len(rows) == 3 else 'nothing'")
    provider = tokendraw.load("scale", "acme", device="cpu")
    with pytest.raises(InvalidInputError) as refused:
        provider.scale(ROWS.to("meta"), 1.0)
    assert str(refused.value) == "'rows' needs the device cpu, found meta."
    with pytest.raises(PluginError) as fault:
        provider.scale(ROWS, 1.0)
    assert str(fault.value) == (
        "'acme' needs to return rows [2], found str. Mend the plugin, or set TOKENDRAW_DISABLE=acme."
    )


def test_the_next_best_takes_over_a_call_that_fails(dists: FakeDists) -> None:
    add_scaler(dists, "acme")
    add_scaler(dists, "better", priority=60, result="rows * factor if len(rows) == 3 else 1 / 0")
    provider = tokendraw.load("scale", device="cpu")
    assert provider.name == "better"
    with pytest.warns(SamplerFallbackWarning, match=r"'better' failed: its call raised ZeroDivisionError"):
        assert provider.scale(ROWS, 2.0).tolist() == [2.0, 4.0]
    assert provider.name == "acme"


def test_what_does_not_prove_itself_is_passed_over_with_its_reason(dists: FakeDists) -> None:
    add_scaler(dists, "acme")
    add_scaler(dists, "wrong", priority=60, result="rows + factor")
    with pytest.warns(SamplerFallbackWarning) as caught:
        assert tokendraw.load("scale", device="cpu").name == "acme"
    assert [str(warning.message) for warning in caught] == [
        "'wrong' was passed over: the proof call needs [0.0, 2.0, 4.0], found [2.0, 3.0, 4.0]. "
        "Using 'acme'. Set TOKENDRAW_DISABLE=wrong to silence this."
    ]


# It is refused with reasons


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"capabilities": "device_types=('cuda',)"}, "needs a cuda device, found cpu"),
        ({"capabilities": "roundings=('down',)"}, "the request needs rounding nearest, found down"),
        ({"probe": "'needs a ruler, found none'"}, "needs a ruler, found none"),
        ({"result": "rows + factor"}, "the proof call needs [0.0, 2.0, 4.0], found [2.0, 3.0, 4.0]"),
        ({"result": "rows / 0 and 1 / 0"}, "the proof call raised {}"),
    ],
    ids=["device", "need", "probe", "proof", "raises"],
)
def test_who_cannot_serve_it_is_refused_with_the_reason(
    dists: FakeDists, options: dict[str, str], reason: str
) -> None:
    module = add_scaler(dists, **options)
    if "{}" in reason:
        here = place(scaler("acme", **options), "return rows / 0")
        reason = reason.format(
            f"RuntimeError: Boolean value of Tensor with more than one value is ambiguous {here}"
        )
    assert only("scale", device="cpu") == (
        f"No plugin can serve the operation 'scale' on cpu. Found acme: {reason}; native: needs the operation "
        f"scale, found {NATIVE_SERVES}. Mend one of them; `tokendraw doctor` says how."
    )
    assert only("scale", plugin="acme", device="cpu") == (
        f"'acme', asked for by the argument plugin=, cannot serve the operation 'scale' on cpu: {reason}. "
        "Nothing else is available here. Leave out plugin= to let tokendraw choose."
    )
    assert bool(sys.modules[module].PROBED) == (options.keys() <= {"probe", "result"})


def test_a_need_that_it_cannot_meet_is_refused(dists: FakeDists) -> None:
    add_scaler(dists)
    reason = "the request needs rounding down, found nearest"
    assert reason in only("scale", device="cpu", need=scale_need(rounding="down"))
    assert state(need=scale_need(rounding="down")) == (State.UNAVAILABLE, reason)
    with pytest.raises(InvalidParameterError) as refused:
        tokendraw.load("scale", device="cpu", need=Need())
    assert str(refused.value) == (
        "'need' needs a ScaleNeed for the operation 'scale', found tokendraw.Need. Pass one, or leave it out."
    )


def test_what_a_plugin_says_of_it_is_held_against_its_declarations(dists: FakeDists) -> None:
    add_scaler(dists, capabilities="roundings=('up',)")
    assert state() == (
        State.BROKEN,
        "ScaleCapabilities.roundings of the operation 'scale' needs a tuple of 'nearest' or 'down', found ('up',)",
    )


def test_an_object_without_its_methods_is_refused(dists: FakeDists) -> None:
    dists.add_plugin("acme", scaler("acme").replace("def scale", "def weigh"))
    reason = "tokendraw_build needs to return an object with a method scale, found Scaler"
    assert reason in only("scale", device="cpu")


def test_an_operation_that_is_in_no_registry_is_refused(dists: FakeDists) -> None:
    for ask in (tokendraw.load, lambda name: tokendraw.resolve(operation=name)):
        with pytest.raises(InvalidParameterError) as refused:
            ask("paint")
        assert str(refused.value) == (
            f"'operation' needs {ONE_OF_THE_OPERATIONS.replace(' or', ',')} or scale, found 'paint'. Pass one of these."
        )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("OPERATION = 3", "'scale_operation:OPERATION' needs to be a tokendraw.plugin.Operation, found int"),
        (
            RECORD.replace('"scale"', '"weigh"'),
            "'scale_operation:OPERATION' needs the name of its entry point, 'scale', found 'weigh'",
        ),
        ("import nonesuch", "raised ModuleNotFoundError: No module named 'nonesuch'"),
        ("import sys; sys.exit(3)", "loading 'scale_operation:OPERATION' raised SystemExit: 3"),
    ],
    ids=["type", "name", "import", "exit"],
)
def test_a_broken_record_is_listed_and_refused_with_its_reason(tmp_path, monkeypatch, record, reason):
    with fake_dists(tmp_path, monkeypatch) as dists:
        add_third_operation(dists, record=record)
        with pytest.raises(InvalidParameterError) as refused:
            tokendraw.load("scale")
        assert str(refused.value).startswith("The operation 'scale' of scale-ops is broken: ")
        assert reason in str(refused.value)
        (listed,) = [
            o for o in json.loads(call("list", "--json").stdout)["operations"] if o["name"] == "scale"
        ]
        assert (listed["state"], reason in listed["reason"]) == ("broken", True)


def test_two_distributions_with_one_operation_and_a_name_of_the_core_are_refused(dists: FakeDists) -> None:
    add_third_operation(dists, distribution="other-ops")
    add_third_operation(dists, "sample", distribution="third-ops")
    with pytest.raises(InvalidParameterError) as refused:
        tokendraw.load("scale")
    assert str(refused.value) == (
        "The operation 'scale' of other-ops is broken: the name 'scale' is claimed by other-ops and scale-ops; "
        "uninstall all but one."
    )
    (listed,) = [o for o in json.loads(call("list", "--json").stdout)["operations"] if o["name"] == "sample"]
    assert listed["reason"] == (
        "the name 'sample' is reserved for the distribution tokendraw, found it in third-ops; rename the entry point"
    )
    assert tokendraw.load("sample", device="cpu").name == "native"


def test_the_sampler_of_the_settings_binds_the_operations_of_the_core_alone(
    dists: FakeDists, monkeypatch
) -> None:
    add_scaler(dists)
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    assert tokendraw.load("scale", device="cpu").name == "acme"
    assert tokendraw.resolve(operation="scale", device="cpu").chosen == "acme"
    assert state() == (State.AVAILABLE, None)
    assert call("resolve", "--operation", "scale", "--device", "cpu").stdout == "acme\n"
    assert "needs the operation scale" in only("scale", plugin="native", device="cpu")


def test_an_operation_can_be_switched_off(dists: FakeDists, monkeypatch) -> None:
    monkeypatch.setenv("TOKENDRAW_DISABLE", "scale")
    with pytest.raises(InvalidParameterError, match="is disabled: switched off by TOKENDRAW_DISABLE"):
        tokendraw.load("scale")


def test_an_operation_of_tokendraw_s_own_says_what_to_install() -> None:
    with pytest.raises(InvalidParameterError) as refused:
        tokendraw.load("pack_sm90_w4")
    assert str(refused.value) == (
        f"'operation' needs {ONE_OF_THE_OPERATIONS}, found 'pack_sm90_w4', which the distribution "
        "tokendraw-engine-ops brings; run `pip install ./engine_ops` in tokendraw's checkout."
    )


def test_a_sampler_has_no_methods_for_it(dists: FakeDists) -> None:
    add_scaler(dists)
    with pytest.raises(InvalidParameterError) as refused:
        tokendraw.load_sampler(device="cpu", operations=("sample", "scale"))
    assert str(refused.value) == (
        "'operations' needs what a Sampler has methods for, found 'scale'. Use tokendraw.load('scale')."
    )


def test_it_changes_nothing_for_who_samples(dists: FakeDists) -> None:
    module = add_scaler(dists)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tokendraw.load_sampler(device="cpu").name == "native"
    assert sys.modules[module].BUILT == []
    assert discovered().reason == "needs the operation sample, found scale"


# The command line tells of it


def test_it_is_listed(dists: FakeDists) -> None:
    add_scaler(dists)
    lines = call("list", "--operation", "scale").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["acme", "available"], ["native", "unavailable"]]
    assert f"needs the operation scale, found {NATIVE_SERVES}" in " ".join(" ".join(lines).split())
    assert "needs the operation sample, found scale" in call("list").stdout


def test_it_is_shown(dists: FakeDists) -> None:
    add_scaler(dists, capabilities="roundings=('nearest', 'down')")
    result = call("show", "acme")
    assert result.stdout == (
        "acme\n"
        "  summary       scales rows\n"
        "  state         available\n"
        "  distribution  acme-tokendraw 1.0, third-party\n"
        "  entry point   fake_acme:plugin\n"
        "  plugin API    1, this core speaks 1\n"
        "  priority      50\n"
        "  upstream      none\n"
        "  verified on   nothing stated\n"
        "\n"
        "operation scale\n"
        "  device types        cpu\n"
        "  compute capability  any\n"
        "  ROCm architectures  any\n"
        "  least SMs           0\n"
        "  roundings           nearest, down\n"
        "  negative            no\n"
        "  graph safe          no\n"
        "  sync free           no\n"
    )
    (entry,) = json.loads(call("show", "acme", "--json").stdout)["candidates"]
    assert entry["operations"]["scale"]["roundings"] == ["nearest", "down"]


def test_it_is_resolved_and_explained(dists: FakeDists) -> None:
    add_scaler(dists)
    assert call("resolve", "--operation", "scale", "--device", "cpu").stdout == "acme\n"
    explained = call("resolve", "--operation", "scale", "--device", "cpu", "--explain").stdout
    assert explained.startswith(
        "scale on cpu: acme\n"
        "\n"
        "decisions\n"
        "  acme    available    best available, priority 50\n"
        "  native  unavailable  needs the operation scale, found process_logits, sample, score and verify\n"
        "\n"
        "who serves what\n"
        "  acme    all calls but negative factors\n"
        "  nobody  negative factors\n"
    )
    assert json.loads(call("resolve", "--operation", "scale", "--device", "cpu", "--json").stdout)[
        "need"
    ] == {
        "graph_safe": False,
        "sync_free": False,
        "rounding": "nearest",
    }


def test_its_own_need_is_given_by_the_names_of_its_fields(dists: FakeDists) -> None:
    add_scaler(dists, capabilities="roundings=('nearest', 'down')")
    ask = ("resolve", "--operation", "scale", "--device", "cpu", "--json", "--need")
    assert json.loads(call(*ask, "rounding=down").stdout)["need"]["rounding"] == "down"
    refused = call(*ask, "rounding=up")
    assert (json.loads(refused.stdout)["error"], refused.exit_code) == (
        "'rounding' of ScaleNeed needs 'nearest' or 'down', found 'up'. Pass one of these.",
        2,
    )
    assert refused.stderr.splitlines()[-1].removeprefix("Error: ") == (
        "'rounding' of ScaleNeed needs 'nearest' or 'down', found 'up'. Pass one of these."
    )


def test_an_option_that_is_no_part_of_its_need_is_a_usage_error(dists: FakeDists) -> None:
    result = call("resolve", "--operation", "scale", "--dtype", "float16")
    assert result.exit_code == 2
    assert "'--dtype' is no part of what 'scale' may need. Leave it out." in result.stderr


def test_the_doctor_says_who_would_serve_it(dists: FakeDists) -> None:
    add_scaler(dists)
    report = call("doctor", "--no-build", "--json")  # another process knows no third operation
    assert json.loads(report.stdout)["operations"] == {
        **SERVED_BY_NATIVE,
        "scale": "acme",
    }
