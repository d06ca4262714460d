"""Writes cells as a dataset of flashinfer-bench, which then times and judges any sampler on them.

Definitions have the signature of its own sampling kernels: probabilities [B, V] float32 and a top-k and a top-p for
each row, in the order joint, which its judge takes tokens by. A sampler of tokendraw is a solution that draws from the
logarithms of the probabilities. Format: https://github.com/flashinfer-ai/flashinfer-bench, 0.1.2.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from tokendraw import InvalidParameterError, __version__
from tokendraw_bench.cells import Cell
from tokendraw_bench.run import make_inputs

FORMAT = "flashinfer-bench"
_PARAMETERS = {"none": (), "top-k": ("top_k",), "top-p": ("top_p",), "both": ("top_k", "top_p")}
"""Inputs beside the probabilities, by the filters of a cell."""
_DTYPES = {"top_k": "int32", "top_p": "float32"}
_REFERENCE = """import torch

def run({arguments}):
    ordered, index = probs.sort(-1, descending=True)
    kept = torch.ones_like(ordered, dtype=torch.bool)
{steps}    weights = torch.zeros_like(probs).scatter_(-1, index, ordered * kept)
    return torch.multinomial(weights, 1).squeeze(-1)
"""
_STEPS = {
    "top_k": "    kept &= ordered >= ordered.gather(-1, (top_k.long() - 1).clamp(0, probs.shape[-1] - 1)[:, None])\n",
    "top_p": "    kept &= ordered.cumsum(-1) - ordered < top_p[:, None]\n",
}
_SOLUTION = """import tokendraw

def run({arguments}):
    sampler = tokendraw.load_sampler({sampler!r}, device=probs.device)
    ones = probs.new_ones(len(probs))
    metadata = tokendraw.SamplingMetadata(temperature=ones, joint=ones.bool(){named})
    return sampler.sample(probs.log(), metadata).token_ids
"""
_SPEC = {"language": "python", "target_hardware": ["cuda", "cpu"], "entry_point": "main.py::run"}


def export(
    cells: Iterable[Any], samplers: Sequence[str], folder: Path, device: torch.device
) -> tuple[int, list[str]]:
    """Write definitions, workloads with their tensors, and a solution for each sampler and definition.

    :returns: the number of workloads, and the cells that the format cannot hold.
    :raises InvalidParameterError: the folder holds files, or no cell can be held.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InvalidParameterError(
            f"'--export' needs an empty folder, found files in '{folder}'. Pass another one by --output."
        )
    workloads: dict[str, list[dict[str, Any]]] = {}
    left_out = []
    for cell in cells:
        if not _is_held(cell):
            left_out.append(str(cell))
            continue
        name = f"{'_'.join((*_PARAMETERS[cell.filters], 'sampling_from_probs'))}_v{cell.vocab_size}"
        if name not in workloads:
            workloads[name] = []
            _write(folder / f"definitions/sampling/{name}.json", _definition(name, cell))
            for sampler in samplers:
                path = folder / f"solutions/sampling/{name}/tokendraw_{sampler}.json"
                _write(path, _solution(name, cell, sampler))
        workloads[name].append(_workload(name, cell, folder, device))
    if not workloads:
        raise InvalidParameterError(
            f"'--export {FORMAT}' needs cells of 'sample' with the filters {', '.join(_PARAMETERS)}, found none. "
            "Add --filters."
        )
    for name, lines in workloads.items():
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        _write(folder / f"workloads/sampling/{name}.jsonl", text)
    return sum(map(len, workloads.values())), left_out


def _is_held(cell: Any) -> bool:
    """Whether the format has all that the rows of a cell ask for; of the orders it has joint alone."""
    is_draw = isinstance(cell, Cell) and cell.operation == "sample" and cell.temperature > 0
    return is_draw and cell.filters in _PARAMETERS and {*cell.deviations} <= {"joint"}


def _definition(name: str, cell: Cell) -> dict[str, Any]:
    parameters = _PARAMETERS[cell.filters]
    rows = {key: {"shape": ["batch_size"], "dtype": _DTYPES[key]} for key in parameters}
    arguments, steps = ", ".join(("probs", *parameters)), "".join(_STEPS[key] for key in parameters)
    return {
        "name": name,
        "op_type": "sampling",
        "axes": {"batch_size": {"type": "var"}, "vocab_size": {"type": "const", "value": cell.vocab_size}},
        "inputs": {"probs": {"shape": ["batch_size", "vocab_size"], "dtype": "float32"}, **rows},
        "outputs": {"samples": {"shape": ["batch_size"], "dtype": "int64"}},
        "reference": _REFERENCE.format(arguments=arguments, steps=steps),
    }


def _solution(name: str, cell: Cell, sampler: str) -> dict[str, Any]:
    parameters = _PARAMETERS[cell.filters]
    arguments, named = ", ".join(("probs", *parameters)), "".join(f", {key}={key}" for key in parameters)
    source = _SOLUTION.format(arguments=arguments, sampler=sampler, named=named)
    return {
        "name": f"tokendraw_{sampler}_{name}",
        "definition": name,
        "author": f"tokendraw {__version__}",
        "spec": {**_SPEC, "destination_passing_style": False},
        "sources": [{"path": "main.py", "content": source}],
    }


def _workload(name: str, cell: Cell, folder: Path, device: torch.device) -> dict[str, Any]:
    """Write the tensors of a cell, and return its workload as a trace without a solution."""
    from safetensors.torch import save_file

    (logits,) = make_inputs(cell, device, 1)
    tensors = {"probs": (logits.float() / cell.temperature).softmax(-1).cpu()}
    for key in _PARAMETERS[cell.filters]:
        values = [getattr(each, key) for each in cell.requests]
        tensors[key] = torch.tensor(values, dtype=getattr(torch, _DTYPES[key]))
    unique = str(uuid.uuid5(uuid.NAMESPACE_URL, f"tokendraw:{cell}"))
    path = Path("blob/workloads/sampling") / name / f"{unique}.safetensors"
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / path)
    inputs = {key: {"type": "safetensors", "path": str(path), "tensor_key": key} for key in tensors}
    return {
        "definition": name,
        "workload": {"axes": {"batch_size": cell.batch}, "inputs": inputs, "uuid": unique},
    }


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=2) + "\n", encoding="utf-8")
