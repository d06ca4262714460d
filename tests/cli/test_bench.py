"""``tokendraw bench``: the complete output of a run, refusals, and a run in a new process."""

import json
from dataclasses import replace

import importlib_metadata
import pytest
import torch

import tokendraw
from command_line import FixedTimer, call, documented_keys, screen
from fake_dists import EVERYTHING, plugin
from tokendraw_bench import run as _run
from tokendraw_bench.timing import host_load
from tokendraw_bench.timing.host_load import HostLoad


@pytest.fixture
def fixed(monkeypatch):
    """Times do not depend on the machine, and neither do the number of threads and its load."""
    monkeypatch.setattr(host_load, "read_host_load", lambda: HostLoad(cores=4, load=0.25))
    monkeypatch.setattr(_run, "timer_for", lambda device, repeats, **_: FixedTimer(repeats))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def bench(*arguments):
    return call("bench", "--device", "cpu", *arguments)


TINY = ("--batch", 2, "--vocab-size", 256)
VERSIONS = (
    f"tokendraw {tokendraw.__version__}, torch {importlib_metadata.version('torch')}, "
    f"tokendraw-native {importlib_metadata.version('tokendraw-native')}"
)
HEAD = (
    f"cpu, 2 threads, OMP_WAIT_POLICY unset: {VERSIONS}.\n"
    "T = 0.8, k = 50, p = 0.9, min-p = 0.05; seeded rows, float32 noise. Medians of 15, in turns; a clock\n"
    "that stands. In brackets the ratio to the read; ± half the distance of the quartiles, where it is\n"
    "over 5 %.\n"
    "\n"
)


def test_a_run_has_a_row_a_cell_and_says_what_it_ran_on(fixed):
    result = bench(*TINY, "--sampler", "native", "--sampler", "torch-sort")
    assert result.stdout == screen("a run has a row a cell and says what it ran on")
    assert (result.stderr, result.exit_code) == ("", 0)


def test_a_sampler_that_cannot_serve_shows_a_dash_and_the_reason(fixed, dists):
    capabilities = EVERYTHING.replace("'counter'", "'launch'")
    dists.add_plugin("acme", plugin("acme", capabilities=capabilities))
    result = bench(*TINY, "--sampler", "torch-sort", "--sampler", "acme", "--filters", "none")
    assert result.stdout.splitlines()[-5:] == [
        "batch  vocabulary  dtype    filters  logits     nucleus  read us  torch-sort us  acme us",
        "    2         256  float32  none     peaked-30       30     10.0   2,500 (250x)        -",
        "",
        "The read is the fastest of several: torch.sum.",
        "acme: it does not serve seeded rows (1 of 1 cells).",
    ]
    unseeded = bench(*TINY, "--sampler", "acme", "--filters", "none", "--unseeded")
    assert unseeded.stdout.splitlines()[-3].endswith("  11.0 (1.10x)")
    assert "; unseeded rows, float32 noise. " in unseeded.stdout


def test_a_busy_machine_is_told_of_above_the_notes_on_stderr_and_in_json(fixed, monkeypatch, tmp_path):
    times = FixedTimer.time

    def disturbed(self, calls, buffers):
        found = times(self, calls, buffers)
        return found | {"native": replace(found["native"], q1_us=20.0, q3_us=367.86)}

    monkeypatch.setattr(FixedTimer, "time", disturbed)
    monkeypatch.setattr(host_load, "read_host_load", lambda: HostLoad(cores=2, load=3.9))
    options = (*TINY, "--filters", "none", "--sampler", "native", "--output", tmp_path / "table.md")
    result = bench(*options)
    sentence = (
        "The machine was busy: 3.9 programs were at work on 2 cores before the run, and times spread by up to ±174 % "
        "(native). Repeat it on an idle one, or with OMP_NUM_THREADS=1 (2 threads here) and more --repeats (15 here)."
    )
    assert (result.stderr, result.exit_code) == (f"{sentence}\n", 0)
    assert result.stdout.splitlines()[-7:] == [
        "batch  vocabulary  dtype    filters  logits     nucleus  read us             native us",
        "    2         256  float32  none     peaked-30       30     10.0  100.0 (10.0x) ±174 %",
        "",
        "The machine was busy: 3.9 programs were at work on 2 cores before the run, and times spread by up to",
        "±174 % (native). Repeat it on an idle one, or with OMP_NUM_THREADS=1 (2 threads here) and more",
        "--repeats (15 here).",
        "The read is the fastest of several: torch.sum.",
    ]
    assert f"* {sentence}\n" in (tmp_path / "table.md").read_text(encoding="utf-8")
    in_json = bench(*options, "--json")
    found = json.loads(in_json.stdout)
    assert (found["cores"], found["load"], found["busy"]) == (2, 3.9, sentence)
    assert in_json.stderr == f"{sentence}\n"


def test_every_key_is_documented(fixed):
    found = json.loads(bench(*TINY, "--filters", "none", "--sampler", "native", "--json").stdout)
    (cell,) = found["cells"]
    keys = {*found, *cell, *cell["read"], *cell["entries"]["native"]}
    assert keys <= documented_keys(), keys - documented_keys()


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
