"""``tokendraw bench`` beyond the draws of ``tests/cli/test_bench.py``: other operations, axes and sweeps."""

import json

import pytest

from command_line import FixedTimer, call, documented_keys
from fake_dists import EVERYTHING, plugin
from tokendraw_bench.sweeps import SWEEPS
from tokendraw_bench.timing import WallTimer


def bench(*arguments):
    return call("bench", "--device", "cpu", *arguments)


REFUSED = {
    "--edits=all": "'--edits' is about edits of logits. Add --op process_logits, or leave it out.",
    "--verify-mode=coupled": "'--verify-mode' is about drafts to verify. Add --op verify, or leave it out.",
    "--op=process_logits --unseeded": "'--unseeded' is about draws. Add --op sample or verify, or leave it out.",
    "--op=draft": "Invalid value for '--op'",
    "--op=verify --drafts=0": "Invalid value for '--drafts'",
    "--op=verify --verify-mode=typical": "Invalid value for '--verify-mode'",
    "--batch=0": "Invalid value for '--batch'",
    "--vocab-size=127": "Invalid value for '--vocab-size'",
    "--dtype=float64": "Invalid value for '--dtype'",
    "--logprobs=-1": "Invalid value for '--logprobs'",
    "--top-p=0": "Invalid value for '--top-p'",
    "--repeats=2": "Invalid value for '--repeats'",
    "--preset=huge": "Invalid value for '--preset'",
    "--family=peaked-300 --vocab-size=333": "peaked-300 needs a vocabulary of 334 or more, found 333.",
}


@pytest.mark.parametrize(("options", "message"), REFUSED.items())
def test_what_makes_no_cell_is_a_usage_error(options, message):
    result = bench(*options.split())
    assert (result.stdout, result.exit_code) == ("", 2)
    assert message in result.stderr


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


TABLES = {
    "--op verify --batch 2 --vocab-size 256 --filters both": [
        "batch  vocabulary  dtype    drafts  mode       filters  logits     nucleus  read us      native us",
        "    2         256  float32       4  rejection  both     peaked-30       30     10.0  100.0 (10.0x)",
        "    2         256  float32       4  coupled    both     peaked-30       30     10.0  100.0 (10.0x)",
        "",
        "The read is the fastest of several: torch.sum.",
        "A draft's logits are those of the target plus noise. The read is of both for rejection, of the",
        "target's alone for coupled, which looks at no others.",
    ],
    "--batch 2 --vocab-size 256 --filters none --gumbel-dtype fp64": [
        "batch  vocabulary  dtype    filters  logits     nucleus  read us  acme us      native us  torch-sort us",
        "    2         256  float32  none     peaked-30       30     10.0        -  100.0 (10.0x)   2,500 (250x)",
        "",
        "The read is the fastest of several: torch.sum.",
        "torch-sort draws by another method, whose noise is not float64.",
        "acme: the request needs fp64 noise, found fp32 (1 of 1 cells).",
    ],
    "--preset cliffs --sweep mixed-nuclei --sampler native": [
        "mixed-nuclei: filters of rows with nuclei of different widths",
        "",
        "batch  vocabulary  dtype     filters  logits        top_k  top_p  nucleus  read us      native us  edge",
        "    2        4096  bfloat16  top-p    mixed-nuclei     50    0.9    1,602     10.0  100.0 (10.0x)",
        "    2        4096  bfloat16  both     mixed-nuclei     50    0.9    1,602     10.0  100.0 (10.0x)",
        "    2        4096  bfloat16  both     mixed-nuclei   1000   0.95    1,602     10.0  100.0 (10.0x)",
        "",
        "The read is the fastest of several: torch.sum.",
        "",
    ],
}


@pytest.mark.parametrize(("options", "table"), TABLES.items())
def test_a_table_has_the_axes_of_its_operation_and_the_notes(fixed, dists, options, table):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    result = bench(*options.split())
    assert (result.stderr, result.exit_code) == ("", 0)
    assert result.stdout.partition("\n\n")[2].splitlines() == table


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
    alone = bench(*cliffs)
    assert (alone.exit_code, alone.stdout) == (1, "")


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
