"""``tokendraw doctor`` builds and proves plugins in new processes: plugins may end, block or litter them."""

import json
import time

import pytest

import tokendraw
from command_line import call
from fake_dists import EVERYTHING, place, plugin
from tokendraw.cli import doctor as _doctor

LIBACME = plugin("acme", capabilities=EVERYTHING, build="raise OSError('libacme.so: cannot open')")
RAISED = f"tokendraw_build raised OSError: libacme.so: cannot open {place(LIBACME, 'raise OSError')}"
BOTH = f"""return tokendraw.plugin.PluginInfo(
            name="acme",
            api_version=1,
            priority=50,
            operations={{
                "sample": tokendraw.plugin.Capabilities({EVERYTHING}),
                "process_logits": tokendraw.plugin.ProcessCapabilities(device_types=None),
            }},
        )"""


def built(*operations):
    """Outcomes without their times, after a check that all times are positive."""
    trouble, outcomes = _doctor.build(operations)
    assert trouble is None
    assert all(outcome["seconds"] > 0 for outcome in outcomes.values() if outcome["culprit"] is None)
    return {name: {**outcome, "seconds": 0.0} for name, outcome in outcomes.items()}


def outcome(**fields):
    return {**_doctor._NOT_BUILT, "warnings": [], "culprit": None, **fields}


def test_a_plugin_that_does_not_build_is_found_with_the_one_that_takes_its_place(dists):
    dists.add_plugin("acme", LIBACME)
    result = call("doctor")
    samplers, findings = result.stdout.partition("\nsamplers\n")[2].partition("\norigins\n")[::2]
    assert samplers == (
        "  name    state        priority  version  what it does, or why it cannot\n"
        f"  native  available    0         {tokendraw.__version__}    "
        "the reference in plain PyTorch: every device, every request\n"
        f"  acme    unavailable  50        1.0      {RAISED}\n"
        "\n"
        "operations\n" + samplers.partition("operations\n")[2]  # with times
    )
    rows = [line.split() for line in samplers.partition("operations\n")[2].splitlines()]
    assert [(row[0], row[1], " ".join(row[2:5])) for row in rows[1:]] == [
        (name, "native", "built and proven") for name in ("sample", "verify", "score", "process_logits")
    ]
    assert findings.partition("findings\n")[2] == (
        f"  1.  'acme' cannot be built for sample: {RAISED}. Mend that, or report it to its author.\n"
        "      export TOKENDRAW_DISABLE=acme\n"
        "\n"
        "A program gets native here.\n"
    )
    assert (result.stderr, result.exit_code) == ("", 0)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os; os._exit(3)", "loading it ended the process: exit status 3"),
        ("import time; time.sleep(600)", "loading it was not done after 5 s"),
    ],
)
def test_a_plugin_that_ends_the_process_or_hangs_as_it_is_loaded_is_named(dists, monkeypatch, source, reason):
    monkeypatch.setattr(_doctor, "LOAD_SECONDS", 5)
    dists.add_plugin("acme", source)
    result = call("doctor", "--json")
    checkup = json.loads(result.stdout)
    states = {c["name"]: (c["state"], c["reason"]) for c in checkup["candidates"]}
    assert states["acme"] == ("broken", reason)
    assert states["native"] == ("available", None)
    assert checkup["findings"] == [
        {
            "problem": f"'acme' is broken: {reason}.",
            "mend": "pip install --upgrade acme-tokendraw (or switch it off: export TOKENDRAW_DISABLE=acme)",
        }
    ]
    assert (checkup["chosen"], result.exit_code) == (None, 1)
    monkeypatch.setenv("TOKENDRAW_DISABLE", "acme")
    assert json.loads(call("doctor", "--json", "--no-build").stdout)["chosen"] == "native"


def test_without_building_the_verdict_is_as_far_as_that_goes(dists):
    dists.add_plugin("acme", LIBACME)
    result = call("doctor", "--no-build")
    assert "\n  acme    available  50        1.0\n" in result.stdout
    assert "\noperations\n  name            who would serve\n  sample          acme\n" in result.stdout
    assert result.stdout.endswith(
        "\nfindings\n"
        "  nothing is wrong\n"
        "\n"
        "A program gets acme here, if that can be built: --no-build leaves it untried.\n"
    )
    assert json.loads(call("doctor", "--no-build", "--json").stdout)["builds"] is None


@pytest.mark.slow
def test_after_a_plugin_ended_the_process_a_new_one_goes_on_with_the_next_operation(dists):
    dies = "import os; os._exit(3) if operation == 'process_logits' else None; return ArgmaxSampler()"
    dists.add_plugin("acme", plugin("acme", describe=BOTH, build=dies))
    assert built("sample", "process_logits", "verify") == {
        "sample": outcome(chosen="acme"),
        "process_logits": outcome(
            error="building 'acme' ended the process: exit status 3",
            rejections={"acme": "building it ended the process: exit status 3"},
            culprit="acme",
        ),
        "verify": outcome(chosen="native"),
    }


@pytest.mark.slow
def test_a_plugin_that_hangs_is_ended_with_the_processes_that_it_started(dists, tmp_path, monkeypatch):
    beats = tmp_path / "beats"
    child = f"import time\nwhile True:\n open({str(beats)!r}, 'a').write('.'); time.sleep(.02)"
    hangs = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING, build=hangs))

    monkeypatch.setattr(_doctor, "BUILD_SECONDS", 15)  # with the import of torch
    assert built("sample") == {
        "sample": outcome(
            error="building 'acme' was not done after 15 s",
            rejections={"acme": "building it was not done after 15 s"},
            culprit="acme",
        )
    }
    count = beats.stat().st_size
    assert count > 0
    time.sleep(0.2)
    assert beats.stat().st_size == count


@pytest.mark.slow
def test_the_companion_is_built_too_and_an_untested_library_of_the_successor_is_told_of(dists):
    dists.add("beta-kernels", "2.5")
    upstream = "tokendraw.plugin.Upstream('beta-kernels', '>=2,<3', ('2.1',))"
    some = EVERYTHING.replace("greedy=True", "greedy=False")
    dists.add_plugin("acme", LIBACME)
    dists.add_plugin("beta", plugin("beta", priority=40, capabilities=some, upstream=upstream))
    assert built("sample") == {
        "sample": outcome(
            chosen="beta",
            companion="native",
            rejections={"acme": RAISED},
            warnings=[
                "'beta' needs beta-kernels >=2,<3 and was tested with 2.1, found 2.5. "
                "Set TOKENDRAW_DISABLE=beta to do without it."
            ],
        )
    }
