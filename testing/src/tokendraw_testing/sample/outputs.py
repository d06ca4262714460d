"""Outputs that outlive the next calls, and rows farther apart than 32 bits count."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np
import torch

from tokendraw import SamplingParams
from tokendraw_testing.crossing.comparison import make_requests
from tokendraw_testing.crossing.factors import Site, kinds
from tokendraw_testing.crossing.rows import CrossedRow
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample.crossed_calls import judge_call

properties = Properties("sample")

_VOCAB_SIZE: Final = 1100
_STRIDE: Final = 1 << 30
"""Elements from row to row: the third begins 2**31 behind the first."""


@properties.required("outputs outlive calls")
def outputs_outlive(subject: SampleSubject, trial: Trial) -> str:
    """What a call returned stays as it is in the calls after it, of the same shape and of others."""
    rng = trial.generator("rows")
    seed_torch(rng)
    modes = subject.capabilities.logprobs_modes
    for turn, dtype in enumerate(subject.capabilities.dtypes[:: subject.effort.fewer]):
        for mode in (None, *modes[turn :: len(subject.capabilities.dtypes)]):
            params = SamplingParams(logprobs=None if mode is None else 3)
            outputs: list[tuple[Any, dict[str, torch.Tensor]]] = []
            for rows in (5, 5, 5, 64, 64, 3) if subject.effort.fewer == 1 else (3, 3):
                logits = np.stack([gaussian(rng, _VOCAB_SIZE) for _ in range(rows)])
                if len(outputs) % 2:
                    logits[::2, 7] = np.nan
                output = subject.sample(torch.from_numpy(logits).to(getattr(torch, dtype)), params, mode=mode)
                outputs.append((output, _copy_tensors(output)))
            for number, (output, before) in enumerate(outputs):
                for name, tensor in tensors_of(output).items():
                    trial.require(
                        torch.equal(tensor.nan_to_num(nan=7.0), before[name]),
                        f"'{name}' of call {number} of {len(outputs)} in {dtype} needs to stay as it is, "
                        "found changed by a later call",
                    )
    return f"6 calls in each of {len(subject.capabilities.dtypes)} dtypes, {len(modes)} logprobs modes"


def _copy_tensors(output: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.nan_to_num(nan=7.0).clone() for name, tensor in tensors_of(output).items()}


def tensors_of(output: Any) -> dict[str, torch.Tensor]:
    """List the tensors of an output by field."""
    tensors: dict[str, torch.Tensor] = {}
    for field in fields(output):
        value = getattr(output, field.name)
        if isinstance(value, torch.Tensor):
            tensors[field.name] = value
        elif is_dataclass(value):
            tensors |= {f"{field.name}.{name}": tensor for name, tensor in tensors_of(value).items()}
    return tensors


@properties.required("rows behind 2**31 elements")
def far_rows(subject: SampleSubject, trial: Trial) -> str:
    """A row whose offset in elements needs more than 31 bits is read from where it lies."""
    narrow_dtype = min(subject.capabilities.dtypes, key=lambda name: getattr(torch, name).itemsize)
    site = Site(narrow_dtype, min(_VOCAB_SIZE, subject.capabilities.max_vocab_size or _VOCAB_SIZE))
    if subject.effort.interpreted:
        trial.skip("needs compiled kernels, found an effort for interpreted ones")
    try:
        # Memory that nobody writes to is not there yet: on a CPU this takes three rows.
        buffer = torch.empty(2 * _STRIDE + site.size, dtype=site.torch_dtype, device=subject.device)
    except RuntimeError:
        trial.skip("needs memory for 2**31 elements, found too little on the device")
    rng = trial.generator("rows")
    seed_torch(rng)
    params, ties = SamplingParams(temperature=1e-3), subject.capabilities.tie_rule
    logits = torch.from_numpy(np.stack([gaussian(rng, site.size) for _ in range(3)])).to(site.torch_dtype)
    rows = [
        CrossedRow(site, f"row {i} of 3, 2**30 elements apart", logits[i], params, ties) for i in range(3)
    ]
    strided_logits = buffer.as_strided((3, site.size), (_STRIDE, 1))
    strided_logits.copy_(logits)
    for kind in kinds(subject.capabilities):
        batch = [request for row in rows for request in make_requests(row, [kind], rng)]
        judge_call(subject, trial, batch, logits=strided_logits)
    return f"3 rows of {site}, 2**30 elements apart"
