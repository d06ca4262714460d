"""``tokendraw bench --gumbel-dtype``: timed calls draw float64 noise, and the notes name baselines without it."""

import importlib
import json
from dataclasses import replace

import pytest
import torch

from command_line import call
from fake_dists import EVERYTHING, plugin
from tokendraw import Drafts, Need, SamplingMetadata, load_sampler, philox
from tokendraw_bench import Cell, make_inputs, metadata_of, operations
from tokendraw_bench.contenders import select_contenders
from tokendraw_bench.operations.verify import VerifyCell, draft_ids

CPU = torch.device("cpu")
V = 512
SAMPLE = Cell(32, V, "float32", "none", "flat")
VERIFY = VerifyCell(8, V, "float32", "none", "flat", 3, "coupled")
CELLS = pytest.mark.parametrize("cell", [SAMPLE, VERIFY], ids=["sample", "verify"])


def contested(metadata: SamplingMetadata) -> torch.Tensor:
    """Logits that cancel the noise of each row up to rounding: the precision of the noise decides."""
    seed, position = metadata.seed, metadata.positions
    if metadata.row_index is not None:
        seed = seed[metadata.row_index]
    noise = philox.gumbel(seed[:, None], position[:, None], torch.arange(V), philox.TOKEN, "fp64")
    return (-0.8 * noise).float()


def drawn(cell, logits):
    """The tokens of a contender's call."""
    (native,) = select_contenders(("native",), CPU, cell.operation)
    (one,) = native.prepare(cell, operations.get(cell.operation).arguments(cell, CPU), logits)
    return one.draw(logits).token_ids


def expected(cell, metadata, logits, gumbel_dtype):
    """Draw with a sampler loaded for this noise."""
    need = Need(gumbel_dtype=gumbel_dtype)
    sampler = load_sampler("native", device="cpu", need=need, operations=("verify",))
    if cell.operation == "sample":
        return sampler.sample(logits, metadata).token_ids
    drafts = Drafts.from_lists(draft_ids(cell, CPU).view(cell.batch, -1).tolist())
    return sampler.verify(logits, drafts, metadata, mode="coupled").token_ids


@CELLS
def test_timed_draws_have_the_requested_noise(cell):
    metadata = metadata_of(cell, CPU)
    logits = contested(metadata)
    single, double = (expected(cell, metadata, logits, dtype) for dtype in ("fp32", "fp64"))
    assert not torch.equal(single, double)
    assert torch.equal(drawn(replace(cell, gumbel_dtype="fp64"), logits), double)
    assert torch.equal(drawn(cell, logits), single)


BOTH = f"{EVERYTHING}, gumbel_dtypes=('fp32', 'fp64')"


def bench(*arguments):
    tiny = ("--batch", 2, "--vocab-size", 256, "--filters", "none")
    return call("bench", "--device", "cpu", *tiny, *arguments)


@pytest.mark.parametrize("gumbel_dtype", ["fp32", "fp64"])
def test_the_need_of_a_plugin_says_the_noise(fixed, dists, gumbel_dtype):
    source = plugin("acme", capabilities=BOTH).replace(
        "def tokendraw_build(self, operation, device, need):",
        "def tokendraw_build(self, operation, device, need):\n        NEEDS.append(need)",
    )
    module = dists.add_plugin("acme", f"NEEDS = []\n{source}")
    assert bench("--sampler", "acme", "--gumbel-dtype", gumbel_dtype).exit_code == 0
    assert {need.gumbel_dtype for need in importlib.import_module(module).NEEDS} == {gumbel_dtype}


def test_the_report_names_the_noise_and_contenders_without_the_noise(fixed, dists):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    names = [word for name in ("native", "acme", "torch-sort") for word in ("--sampler", name)]
    result = bench(*names, "--gumbel-dtype", "fp64")
    lines = result.stdout.splitlines()
    assert lines[2:] == [
        "T = 0.8, k = 50, p = 0.9, min-p = 0.05; seeded rows, float64 noise. Medians of 15, in turns; a clock",
        "that stands. In brackets the ratio to the read; ± half the distance of the quartiles, where it is",
        "over 5 %.",
        "",
        "batch  vocabulary  dtype    filters  logits     nucleus  read us      native us  acme us  torch-sort us",
        "    2         256  float32  none     peaked-30       30     10.0  100.0 (10.0x)        -   2,500 (250x)",
        "",
        "The read is the fastest of several: torch.sum.",
        "torch-sort draws by another method, whose noise is not float64.",
        "acme: the request needs fp64 noise, found fp32 (1 of 1 cells).",
    ]


def test_by_default_a_sampler_without_the_noise_takes_part_and_gives_the_reason(fixed, dists):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    found = json.loads(bench("--gumbel-dtype", "fp64", "--json").stdout)
    assert (found["contenders"], found["gumbel_dtype"]) == (["acme", "native", "torch-sort"], "fp64")
    (cell,) = found["cells"]
    assert {name: entry["reason"] for name, entry in cell["entries"].items()} == {
        "acme": "the request needs fp64 noise, found fp32",
        "native": "",
        "torch-sort": "",
    }


def test_of_float32_noise_nothing_is_noted(fixed):
    lines = bench("--sampler", "torch-sort").stdout.splitlines()
    assert lines[-2:] == ["", "The read is the fastest of several: torch.sum."]


def test_several_baselines_are_named_together():
    baseline_note = operations.get("sample").baseline_note
    assert baseline_note(replace(SAMPLE, gumbel_dtype="fp64"), ["torch-sort", "flashinfer-direct"]) == (
        "torch-sort and flashinfer-direct draw by another method, whose noise is not float64."
    )


@CELLS
def test_cells_of_float64_noise_have_the_same_logits(cell):
    double = replace(cell, gumbel_dtype="fp64")
    assert torch.equal(make_inputs(cell, CPU, 1)[0], make_inputs(double, CPU, 1)[0])
