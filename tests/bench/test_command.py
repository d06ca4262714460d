"""``tokendraw bench``: tables and notes of runs, of other operations, along axes and sweeps, and files."""

import json
from pathlib import Path

import importlib_metadata
import pytest
import torch

import tokendraw
from call_tables import agree, pairs
from command_line import FixedTimer, call, documented_keys, screen
from fake_dists import EVERYTHING, plugin
from tokendraw_bench import run
from tokendraw_bench.sweeps import SWEEPS
from tokendraw_bench.timing import HostLoad, WallTimer


@pytest.fixture
def fixed(monkeypatch):
    """Runs with fixed times on an idle host of four cores."""
    monkeypatch.setattr(run, "timer_for", lambda device, repeats, **_: FixedTimer(repeats))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(run, "read_host_load", lambda: HostLoad(cores=4, load=0.25))


def bench(*arguments):
    return call("bench", "--device", "cpu", *arguments)


TINY = ("--batch", 2, "--vocab-size", 256)
VERSIONS = (
    f"tokendraw {tokendraw.__version__}, torch {importlib_metadata.version('torch')}, "
    f"tokendraw-native {importlib_metadata.version('tokendraw-native')}"
)


def test_a_run_has_a_row_a_cell_and_says_what_it_ran_on(fixed):
    result = bench(*TINY, "--sampler", "native", "--sampler", "torch-sort")
    assert result.stdout == screen("a run has a row a cell and says what it ran on")
    assert (result.stderr, result.exit_code) == ("", 0)


def test_a_busy_machine_is_told_of_on_stderr_above_the_notes_and_in_json(fixed, monkeypatch):
    monkeypatch.setattr(run, "read_host_load", lambda: HostLoad(cores=2, load=3.9))
    result = bench(*TINY, "--filters", "none", "--sampler", "native", "--json")
    found = json.loads(result.stdout)
    assert found["busy"].startswith(
        "The machine was busy: 3.9 programs were at work on 2 cores before the run"
    )
    assert (found["notes"][0], result.stderr) == (found["busy"], f"{found['busy']}\n")


def test_the_table_is_written_as_markdown_below_the_command_that_repeats_it(fixed, tmp_path):
    path = tmp_path / "the table.md"
    result = bench(*TINY, "--filters", "none", "--sampler", "native", "--unseeded", "--output", path)
    assert result.exit_code == 0
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == (
        f"`tokendraw bench --batch 2 --vocab-size 256 --filters none --unseeded --sampler native --device cpu "
        f"--output '{path}'`"
    )
    assert lines[2].startswith(f"cpu, 2 threads, OMP_WAIT_POLICY unset: {VERSIONS}. T = 0.8, ")
    assert lines[4:] == [
        "| batch | vocabulary | dtype | filters | logits | nucleus | read us | native us |",
        "| --: | --: | --- | --- | --- | --: | --: | --: |",
        "| 2 | 256 | float32 | none | peaked-30 | 30 | 10.0 | 100.0 (10.0x) |",
        "",
        "* The read is the fastest of several: torch.sum.",
    ]


@pytest.mark.parametrize(("options", "said"), pairs(Path(__file__).with_name("commands.txt")))
def test_a_command_prints_its_table_and_notes_or_why_there_is_none(fixed, dists, options, said):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    dists.add_plugin("licensed", plugin("licensed", probe="'needs a licence, found none'"))
    result = bench(*options.split())
    assert agree(said, output_of(result)), output_of(result)
    assert result.exit_code == (2 if said.startswith("Error: ") else 1 if result.stderr else 0)


def output_of(result):
    """Return what is below the head of a run, whose machine varies, or what is said in place of a run."""
    table = [line.rstrip() for line in result.stdout.partition("\n\n")[2].splitlines() if line]
    usage = result.stderr.partition("--help'.\n")
    return "\n".join([*table, *(usage[2] or usage[0]).split("\n\n")[-1].splitlines()])


@pytest.mark.parametrize(
    ("options", "axes"),
    [
        ("--special three --sampler native+native", {"special": "three"}),
        (
            "--filters kinds --filter-order joint --tie-rule either",
            {"filter_order": "joint", "tie_rule": "either"},
        ),
        (
            "--logprobs 5 --logprobs none --logprobs-mode raw_logits",
            {"logprobs": 5, "logprobs_mode": "raw_logits"},
        ),
        ("--family masked --top-k 20 --top-p 0.5 --temperature 1.5", {"family": "masked"}),
        ("--single --memory --filters top-p --row-padding 3", {"filters": "top-p", "row_padding": 3}),
        (
            "--cache warm --no-logprob-ranks --min-p 0.1 --filters min-p --gumbel-dtype fp64",
            {"filters": "min-p"},
        ),
        ("--op process_logits --bitmask runs --graph-edits any", {"bitmask": "runs", "graph": "any"}),
        ("--op verify --drafts 3 --logprobs 2 --special three --memory", {"drafts": 3, "logprobs": 2}),
        ("--op verify --unseeded --verify-mode coupled", {"mode": "coupled"}),
    ],
)
def test_a_run_along_an_axis_has_a_time_for_every_cell_under_documented_keys(options, axes, monkeypatch):
    monkeypatch.setattr(WallTimer, "buffers", lambda timer, nbytes: 2)
    sampler = () if "--sampler" in options else ("--sampler", "native")
    result = bench(*options.split(), "--batch", 4, "--vocab-size", 256, *sampler, "--repeats", 3, "--json")
    assert result.exit_code == 0, (result.stderr, result.stdout)
    found = json.loads(result.stdout)
    assert {*options.split()} <= {*found["command"].split()}
    assert {name: found["cells"][0][name] for name in axes} == axes
    for cell in found["cells"]:
        (entry,) = cell["entries"].values()
        assert 0 < entry["q1_us"] <= entry["us"] <= entry["q3_us"], entry
        assert (entry["largest_us"] is None) != ("--single" in options)
        assert ("extra_memory" in entry) == ("--memory" in options)
        assert {*found, *cell, *entry} <= documented_keys()


@pytest.mark.slow
def test_every_sweep_is_timed_and_its_keys_are_documented(fixed):
    result = bench("--preset", "cliffs", "--sampler", "native", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [one["sweep"] for one in found["sweeps"]] == list(SWEEPS)
    keys = set(found)
    for one in found["sweeps"]:
        for cell in one["cells"]:
            assert cell["entries"]["native"]["us"] == 99.96, cell["entries"]
            keys |= {*one, *cell, *cell["entries"]["native"]}
    assert keys <= documented_keys(), keys - documented_keys()


def test_a_contender_without_the_operation_of_a_sweep_is_told_of_and_left_out(fixed):
    cliffs = ("--preset", "cliffs", "--sweep", "verify-top-k", "--sampler", "torch-sort")
    result = bench(*cliffs, "--sweep", "mixed-nuclei", "--sampler", "native", "--json")
    found = json.loads(result.stdout)["sweeps"]
    assert [one["contenders"] for one in found] == [["native"], ["torch-sort", "native"]]
    assert result.stderr == "'torch-sort' cannot be timed on cpu: needs the operation sample, found verify.\n"


def test_each_complete_sweep_is_in_the_file(fixed, tmp_path, monkeypatch):
    path, texts, time = tmp_path / "cliffs.md", [], FixedTimer.time

    def timed(self, calls, buffers):
        texts.append(path.read_text(encoding="utf-8") if path.exists() else "")
        return time(self, calls, buffers)

    monkeypatch.setattr(FixedTimer, "time", timed)
    options = ("--preset", "cliffs", "--sweep", "mixed-nuclei", "--sweep", "family", "--sampler", "native")
    assert bench(*options, "--output", path).exit_code == 0
    texts.append(path.read_text(encoding="utf-8"))
    assert [text.count("\n## ") for text in dict.fromkeys(texts)] == [0, 1, 2]
    assert texts[-1].startswith("`tokendraw bench --preset cliffs --sweep mixed-nuclei --sweep family ")
    assert "\n## family: logits, k = 50 with p = 0.9\n\n| batch | " in texts[-1]
