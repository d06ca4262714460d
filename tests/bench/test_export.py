"""``tokendraw bench --export``: a dataset for flashinfer-bench, and draws for the judge of flashinfer-bench."""

import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from tokendraw.cli.app import main

OPTIONS = "--batch 3 --vocab-size 500 --dtype float32 --sampler native --device cpu --filters"
KEPT = {"top_k": 50, "top_p": 0.9}


@pytest.fixture
def export(tmp_path):
    """``export(filters)``: runs the command; its result, and the folder."""

    def run(filters):
        options = f"{OPTIONS} {filters} --export flashinfer-bench --output {tmp_path / 'set'}"
        return CliRunner().invoke(main, ["bench", *options.split()]), tmp_path / "set"

    return run


@pytest.mark.parametrize(
    ("filters", "name"), [("both", "top_k_top_p_"), ("top-k", "top_k_"), ("top-p", "top_p_"), ("none", "")]
)
def test_a_cell_is_a_definition_a_workload_and_a_solution_that_draws_kept_tokens(export, filters, name):
    result, folder = export(filters)
    assert result.output.startswith("1 workloads in "), result.output
    name += "sampling_from_probs_v500"
    definition = json.loads((folder / f"definitions/sampling/{name}.json").read_text())
    workload = json.loads((folder / f"workloads/sampling/{name}.jsonl").read_text())["workload"]
    solution = json.loads((folder / f"solutions/sampling/{name}/tokendraw_native.json").read_text())
    assert workload["axes"] == {"batch_size": 3}
    tensors = load_file(folder / workload["inputs"]["probs"]["path"])
    assert [*definition["inputs"]] == ["probs", *(key for key in KEPT if key in name)]
    for key, tensor in tensors.items():
        assert str(tensor.dtype) == f"torch.{definition['inputs'][key]['dtype']}"
        assert key == "probs" or tensor.tolist() == pytest.approx([KEPT[key]] * 3)
    ordered, index = tensors["probs"].sort(-1, descending=True)
    kept = torch.ones_like(ordered, dtype=torch.bool)
    if "top_k" in name:
        kept[:, KEPT["top_k"] :] = False
    if "top_p" in name:
        kept &= ordered.cumsum(-1) - ordered < KEPT["top_p"] + 1e-6
    kept = torch.zeros_like(kept).scatter_(-1, index, kept)
    for source in (definition["reference"], solution["sources"][0]["content"]):
        names = {}
        exec(source, names)
        for _ in range(20):
            tokens = names["run"](*(tensors[key] for key in definition["inputs"]))
            assert kept[range(3), tokens].all()


def test_what_the_format_cannot_hold_is_named(export):
    result, _ = export("none --filters min-p --special none --special three")
    assert result.output.startswith("1 workloads in ")
    for cell in ("min-p", "none, three special", "min-p, three special"):
        assert f"left out: 3 x 500 float32, {cell}, peaked-30\n" in result.output
    result, folder = export("min-p")
    assert "needs an empty folder, found files in" in result.stderr
    assert "needs cells of 'sample'" in CliRunner().invoke(
        main, ["bench", *f"{OPTIONS} min-p --export flashinfer-bench --output {folder}-2".split()]
    ).stderr  # fmt: skip
