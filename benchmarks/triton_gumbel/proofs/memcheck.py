r"""Odd shapes, strides, offsets and dtypes, to be run under compute-sanitizer.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --target-processes application-only \
        --error-exitcode 9 python benchmarks/triton_gumbel memcheck-run

Without the variable torch hands out parts of blocks of 2 MiB and more, and a read beyond a tensor stays within its
block. Every storage here ends with the last logit of the last row. The sanitizer says ``ERROR SUMMARY: 0 errors``; the
command itself checks that every id lies in the vocabulary and that every row is valid.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import numpy as np
import torch
from batches import Batch, mixed
from setting import Findings, Setting
from torch import Tensor

from tokendraw import SamplerUnavailableError

_SIZES = (1, 2, 31, 33, 999, 1025, 4097, 50_257, 128_257)
_BATCHES = (1, 3, 65)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LAYOUTS = ((0, 0), (0, 1), (7, 1))
"""Logits between the rows, and before the first."""


def run(setting: Setting) -> Findings:
    """Draw from each shape in all layouts, dtypes in turn: mixed filters, none at all, and with logprobs."""
    sizes = _SIZES[:6] if setting.small else _SIZES
    rng, generator = np.random.default_rng(7), torch.Generator(setting.device).manual_seed(7)
    dtypes = itertools.cycle(_DTYPES)
    calls = wrong = 0
    refused: dict[str, int] = {}
    for size, rows, layout in itertools.product(sizes, _BATCHES, _LAYOUTS):
        logits = _logits(rows, size, *layout, next(dtypes), generator)
        for batch, logprobs in _requests(rng, rows):
            metadata = batch.metadata(setting.device, logprobs=logprobs)
            try:
                output = setting.subject.sample(logits, metadata)
            except SamplerUnavailableError as error:
                refused[str(error)] = refused.get(str(error), 0) + 1
                continue
            good = (output.token_ids >= 0) & (output.token_ids < size) & output.valid
            wrong += int((~good).sum())
            calls += 1
        del logits
    setting.synchronize()
    caching = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1"
    text = f"{calls} calls, {wrong} rows out of range or not valid."
    text += "".join(f" {count} calls not made: {reason}" for reason, count in refused.items())
    if caching and setting.device.type == "cuda":
        text += " PYTORCH_NO_CUDA_MEMORY_CACHING was not 1: nothing is proven about memory."
    return Findings(text=text, holds=calls > 0 and wrong == 0)


def _logits(
    rows: int, size: int, gap: int, offset: int, dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Rows in a storage that ends with the last of them."""
    stride = size + gap
    storage = torch.randn(offset + (rows - 1) * stride + size, generator=generator, device=generator.device)
    return storage.mul_(3).to(dtype).as_strided((rows, size), (stride, 1), offset)


def _requests(rng: np.random.Generator, rows: int) -> Iterator[tuple[Batch, int | None]]:
    batch = mixed(rng, rows)
    plain = Batch(
        np.ones(rows), np.zeros(rows, np.int64), np.ones(rows), np.zeros(rows), np.zeros(rows, bool), batch.seed,
        batch.position,
    )  # fmt: skip
    yield batch, None
    yield plain, None
    yield batch, 3
