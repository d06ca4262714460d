"""``tokendraw check``: the complete output of a run, and of a run without properties."""

import json
import os
import re
import subprocess
import sys

import importlib_metadata
import pytest

import tokendraw
import tokendraw_testing
from command_line import call
from fake_dists import plugin
from tokendraw_testing import Line, Report, Status, properties
from tokendraw_testing.kit.matrix import Place
from tokendraw_testing.kit.trial import MOST_CHECKS

HEADING = (
    f"native on cpu: tokendraw {tokendraw.__version__}, "
    f"tokendraw-native {importlib_metadata.version('tokendraw-native')}, "
    f"torch {importlib_metadata.version('torch')}\n\n"
)

SMALL = Place("sample", "float32", 1 << 10, "unseeded")
WIDE = SMALL._replace(up_to=None)
EXACT = Line(name="greedy rows", status=Status.PASSED, detail="5 vocabularies", about="Argmax.", seconds=0.25)
STATISTICAL = Line(
    name="top_p",
    status=Status.PASSED,
    detail="7 requests by draws, 667 kept sets in 8 families as processed_logprobs show them",
    about="Keeps the smallest set.",
    checks=14,
    draws=148_060,
    p_value=0.03412,
    worst="top_p = 0.1: token 6 drawn 1757 times, expected 1670.8",
    seconds=3.0,
    looked=((SMALL, 7),),
)
CLEARED = Line(
    name="min_p",
    status=Status.PASSED,
    detail="6 requests by draws",
    about="Keeps what is likely enough.",
    checks=1,
    draws=50_000,
    p_value=0.0004,
    worst="min_p = 0.5: token 0 drawn 9 times, expected 30.0",
)
REFUSED = Line(
    name="ranks", status=Status.REFUSED, detail="'native' cannot serve it: a long story", about="Ranks."
)
NOT_RUN = Line(
    name="sync-free", status=Status.NOT_RUN, detail="needs a CUDA device, found cpu", about="No waiting."
)
WRONG = Line(
    name="ties",
    status=Status.FAILED,
    detail="top_k = 3: token 8 [of 9] drawn 0 times, expected 250.0 (p = 1.0e-80, then 0.0e+00 in 40000 draws)",
    about="Keeps every token that is tied with the last kept one.",
    checks=1,
    draws=50_000,
    p_value=0.0,
    worst="top_k = 3: token 8 drawn 0 times, expected 250.0",
)
RAISED = Line(
    name="filter order joint",
    status=Status.FAILED,
    detail="a call raised RuntimeError: no kernel",
    about="Both filters count everything.",
    traceback='  File "/acme/sampler.py", line 31, in sample\n    return draw(logits)\n',
)


@pytest.fixture
def reports(monkeypatch):
    """``reports(*lines)``: the kit reports the lines whatever the arguments; returns the calls."""
    calls = []

    def find(*lines, places=()):
        def run(subject, *, only=None, jobs=1, starting=None, finished=None):
            calls.append((subject, only, jobs))
            print("the sampler is at work")
            return Report(
                sampler=subject.name,
                device=str(subject.device),
                quick=subject.effort.quick,
                seed=subject.seed,
                false_alarm=1e-6,
                lines=lines,
                places=places,
                jobs=jobs,
                elapsed=2.5,
            )

        monkeypatch.setattr(tokendraw_testing, "run", run)
        return calls

    return find


def check(*arguments):
    return call("check", *arguments, "--device", "cpu", "--jobs", "1")


def test_a_green_run_has_a_line_a_property_and_says_how_sure_it_is(reports):
    reports(EXACT, STATISTICAL, NOT_RUN)
    result = check("native", "--quick")
    assert result.stdout == HEADING + (
        "property     status     draws  p-value  what was looked at\n"
        "greedy rows  passed                     5 vocabularies\n"
        "top_p        passed   148,060    0.034  7 requests by draws, 667 kept sets in 8 families as "
        "processed_logprobs show them\n"
        "sync-free    not run                    needs a CUDA device, found cpu\n"
        "\n"
        "2 passed, 0 failed, 0 refused, 1 not run (needs a CUDA device, found cpu).\n"
        "Quick run, seed 0, 2.5 s, 148,060 draws for 14 statistics.\n"
        "By chance, a correct sampler fails at most one such run in 1,000,000.\n"
    )
    assert (result.stderr, result.exit_code) == ("the sampler is at work\n", 0)


def test_a_red_run_tells_what_was_needed_and_found_and_how_to_see_it_again(reports):
    reports(EXACT, RAISED, WRONG, REFUSED)
    result = check("native", "--seed", "7")
    assert result.stdout == HEADING + (
        "property            status    draws  p-value  what was looked at\n"
        "greedy rows         passed                    5 vocabularies\n"
        "filter order joint  failed                    see below\n"
        "ties                failed   50,000    0e+00  see below\n"
        "ranks               refused                   not advertised; requests for it are refused\n"
        "\n"
        "filter order joint\n"
        "  demanded   Both filters count everything.\n"
        "  found      a call raised RuntimeError: no kernel\n"
        '  raised in    File "/acme/sampler.py", line 31, in sample\n'
        "                 return draw(logits)\n"
        "\n"
        "ties\n"
        "  demanded  Keeps every token that is tied with the last kept one.\n"
        "  found     top_k = 3: token 8 [of 9] drawn 0 times, expected 250.0 (p = 1.0e-80, then 0.0e+00 in "
        "40000 draws)\n"
        "\n"
        "Again: tokendraw check native --device cpu --seed 7 --only 'filter order joint' --only ties\n"
        "\n"
        "1 passed, 2 failed, 1 refused (not advertised), 0 not run.\n"
        "Full run, seed 7, 2.5 s, 50,000 draws for 1 statistic.\n"
        "By chance, a correct sampler fails at most one such run in 1,000,000.\n"
    )
    assert result.exit_code == 1


def test_a_place_that_raised_twice_is_shown_once(reports):
    again = Line(
        name="ties", status=Status.FAILED, detail="it raised", about="Ties.", traceback=RAISED.traceback
    )
    reports(RAISED, again)
    assert "  raised in  the same place as in 'filter order joint'\n" in check("native").stdout


def test_a_statistic_that_a_second_look_cleared_says_so(reports):
    reports(CLEARED)
    assert check("native").stdout.splitlines()[3] == (
        "min_p     passed  50,000    4e-04  6 requests by draws; a second look cleared min_p = 0.5: token 0 "
        "drawn 9 times, expected 30.0"
    )


def test_a_run_without_statistics_claims_nothing_about_chance(reports):
    reports(EXACT)
    assert check("native").stdout.endswith(
        "1 passed, 0 failed, 0 refused, 0 not run.\nFull run, seed 0, 2.5 s.\n"
    )


def test_nothing_to_check_is_no_success(reports):
    reports()
    result = check("native", "--only", "noise precision")
    assert result.stdout == HEADING + "Nothing was checked: native advertises none of it.\n"
    assert result.exit_code == 1


def test_the_options_reach_the_kit(reports):
    calls = reports(EXACT)
    check("native", "--quick", "--seed", "3", "--only", "limits", "--only", "output")
    ((subject, only, _),) = calls
    assert (subject.name, str(subject.device), subject.effort.quick, subject.seed) == (
        "native",
        "cpu",
        True,
        3,
    )
    assert only == ("output", "limits")


def test_without_only_every_property_is_checked(reports):
    calls = reports(EXACT)
    check("native")
    assert calls[0][1] == tuple(prop.name for prop in properties())


def test_one_operation_can_be_checked_alone(reports):
    calls = reports(EXACT)
    check("native", "--operation", "verify")
    assert calls[0][1] == tuple(prop.name for prop in properties("verify"))


def test_json_is_complete(reports):
    reports(STATISTICAL, WRONG, places=[SMALL, WIDE])
    result = check("native", "--json", "--only", "distribution", "--only", "tails")
    found = json.loads(result.stdout)
    (listed,) = [c for c in json.loads(call("list", "--json").stdout)["candidates"] if c["name"] == "native"]
    assert found.pop("candidate") == listed
    assert found.pop("host") == json.loads(call("resolve", "--json", "--device", "cpu").stdout)["host"]
    assert [line["name"] for line in found["lines"]] == ["top_p", "ties"]
    assert found.pop("lines")[0] == {
        "name": "top_p",
        "status": "passed",
        "detail": STATISTICAL.detail,
        "about": "Keeps the smallest set.",
        "checks": 14,
        "draws": 148_060,
        "p_value": 0.03412,
        "worst": STATISTICAL.worst,
        "traceback": "",
        "seconds": 3.0,
        "again": "tokendraw check native --device cpu --only top_p",
        "looked": [{"call": "sample", "dtype": "float32", "up_to": 1024, "kind": "unseeded", "rows": 7}],
    }
    assert found == {
        "schema_version": 1,
        "error": "1 passed, 1 failed, 0 refused, 0 not run.",
        "command": "tokendraw check native --device cpu --only distribution --only tails --jobs 1 --json",
        "sampler": "native",
        "device": "cpu",
        "tokendraw": tokendraw.__version__,
        "torch": importlib_metadata.version("torch"),
        "quick": False,
        "seed": 0,
        "only": ["distribution", "tails"],
        "gumbel_dtype": None,
        "heavy_imports": [],
        "passed": False,
        "false_alarm": 1e-6,
        "seconds": 3.0,
        "elapsed": 2.5,
        "jobs": 1,
        "missed": [{"call": "sample", "dtype": "float32", "up_to": None, "kind": "unseeded"}],
    }
    assert (result.stderr, result.exit_code) == ("the sampler is at work\n", 1)


class TestTheListOfProperties:
    def test_it_has_a_line_for_each(self):
        result = call("check", "--list")
        lines = result.stdout.splitlines()
        assert (result.stderr, result.exit_code) == ("", 0)
        width = max(len(prop.name) for prop in properties())
        assert lines == [f"{prop.name.ljust(width)}  {prop.about}" for prop in properties()]
        assert "tails  " in "\n".join(lines)

    def test_only_picks_from_it(self):
        result = call("check", "--list", "--only", "sync-free", "--only", "verify output", "--json")
        assert json.loads(result.stdout) == {
            "schema_version": 1,
            "error": None,
            "properties": [
                {
                    "name": "sync-free",
                    "about": "No call waits for the device: by torch's own check, and by a stopwatch behind a sleeping "
                    "device.",
                    "operation": "sample",
                    "advertised": True,
                    "needs_cuda": True,
                },
                {
                    "name": "verify output",
                    "about": "Sure drafts up to a placeholder are accepted, in batches of any shape; unadvertised "
                    "requests are refused.",
                    "operation": "verify",
                    "advertised": False,
                    "needs_cuda": False,
                },
            ],
        }

    def test_it_can_be_that_of_one_operation(self):
        found = json.loads(call("check", "--list", "--operation", "verify", "--json").stdout)["properties"]
        assert [prop["name"] for prop in found] == [prop.name for prop in properties("verify")]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            plugin("acme", probe="'needs a licence, found none'"),
            (),
            "'acme' cannot be checked on cpu: needs a licence, found none.",
        ),
        (
            plugin("acme"),
            ("--operation", "verify"),
            "'acme' cannot be checked on cpu: needs the operation verify, found sample.",
        ),
        (
            plugin("acme", build="raise RuntimeError('no [kernels]')"),
            (),
            "'acme' needs to build and to pass its proof on cpu before it can be checked, found: "
            "tokendraw_build raised RuntimeError: no [kernels] (fake_acme.py:36). Mend the plugin.",
        ),
    ],
    ids=["another machine", "another operation", "it does not build"],
)
def test_a_sampler_that_cannot_be_checked_gives_the_reason_once(dists, source, options, message):
    dists.add_plugin("acme", source)
    result = check("acme", *options)
    assert (result.stdout, result.stderr, result.exit_code) == ("", f"{message}\n", 1)


def in_a_process(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "tokendraw", "check", "native", "--device", "cpu", *arguments],
        encoding="utf-8",
        timeout=300,
        check=False,
        **options,
    )


@pytest.mark.slow
def test_on_a_terminal_a_bar_on_stderr_shows_what_is_being_looked_at(terminal):
    options, streams = ("--quick", "--only", "seeds at the edges"), {"stdout": subprocess.PIPE}
    environment = os.environ | {"TERM": "xterm"}
    shown, result = terminal(lambda stderr: in_a_process(*options, **streams, stderr=stderr, env=environment))
    assert "0/1" in shown
    assert "seeds at the edges" in shown
    assert result.stdout.startswith(HEADING + "property            status ")


@pytest.mark.slow
def test_native_passes_the_quick_run_on_a_cpu_in_its_time():
    """Two idle cores take at most 60 s; under the suite the limit is wider."""
    result = in_a_process("--quick", "--json", capture_output=True)
    said = [
        line for line in result.stderr.splitlines() if not re.match(r"\d+ of \d+ lines after|loading ", line)
    ]
    assert (said, result.returncode) == ([], 0)
    found = json.loads(result.stdout)
    assert [line["name"] for line in found["lines"]] == [p.name for p in properties() if p.name != "limits"]
    odd = {line["name"]: line["detail"] for line in found["lines"] if line["status"] != "passed"}
    assert odd.pop("verify sync-free").startswith(
        "'native' cannot serve the operation 'verify'"
    )  # not advertised
    assert odd == dict.fromkeys(
        [prop.name for prop in properties() if prop.needs_cuda and prop.name != "verify sync-free"],
        "needs a CUDA device, found cpu",
    )
    assert (
        100 < sum(line["checks"] for line in found["lines"]) <= MOST_CHECKS
    )  # what the false-alarm rate is for
    assert found["elapsed"] < 240
