"""More logits than 31 and 32 bits can count: the rows around the limits draw what they draw alone.

The logits are float16 and lie in one storage, as rows of any length and distance, from an offset of 0 or 1. Rows are
drawn in the whole batch, each by itself from a copy, and by the reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from batches import Batch, mixed
from setting import Findings, Setting, markdown
from torch import Tensor

from tokendraw import SamplerUnavailableError

_CHUNK = 1 << 28
_AT_RANDOM = 24


@dataclass(frozen=True)
class _Layout:
    """Rows in a storage."""

    rows: int
    vocab_size: int
    stride: int
    offset: int

    @property
    def span(self) -> int:
        """Logits of the storage from its start to the end of the last row."""
        return self.offset + (self.rows - 1) * self.stride + self.vocab_size

    def __str__(self) -> str:
        return f"{self.rows:,} x {self.vocab_size}, stride {self.stride:,}, offset {self.offset}"


def run(setting: Setting) -> Findings:
    """Draw from every layout."""
    limits = (1 << 14, 1 << 15) if setting.small else (1 << 31, 1 << 32)
    layouts = _layouts(limits, small=setting.small)
    storage = _filled(max(layout.span for layout in layouts), setting.device)
    lines, holds = [], True
    for layout in layouts:
        line, good = _line(setting, storage, layout, limits)
        lines.append(line)
        holds = holds and good
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()
    titles = ["layout", "logits / 2^31", "rows looked at", "differ from the row alone", "from the reference",
              "logprobs differ from the row alone by"]  # fmt: skip
    return Findings(text=markdown(titles, lines), holds=holds)


def _layouts(limits: tuple[int, int], *, small: bool) -> list[_Layout]:
    sizes = (300, 1025) if small else (151_936, 262_145)
    found = []
    for size in sizes:
        for limit, gap, offset in ((limits[0], 0, 0), (limits[1], 1 + size % 2, 1)):
            found.append(_Layout(limit // size + 20, size, size + gap, offset))
    found.append(_Layout(65, sizes[1], sizes[1], 1))
    found.append(_Layout(3, 1000, limits[0] + 5, 1))  # few rows, far from each other
    return found


def _filled(numel: int, device: torch.device) -> Tensor:
    """Gaussian of standard deviation 3."""
    storage = torch.empty(numel, dtype=torch.float16, device=device)
    generator = torch.Generator(device).manual_seed(6)
    for start in range(0, numel, _CHUNK):
        storage[start : start + _CHUNK].normal_(0, 3, generator=generator)
    return storage


def _line(
    setting: Setting, storage: Tensor, layout: _Layout, limits: tuple[int, int]
) -> tuple[list[str], bool]:
    logits = storage.as_strided((layout.rows, layout.vocab_size), (layout.stride, 1), layout.offset)
    rng = np.random.default_rng(layout.rows)
    batch = mixed(rng, layout.rows)
    looked = _looked_at(layout, limits, rng)
    alone = [logits[row : row + 1].contiguous() for row in looked]
    facts = [f"{layout}", f"{layout.span / 2**31:.2f}", str(len(looked))]
    metadata = batch.metadata(setting.device)
    found = setting.subject.sample(logits, metadata).token_ids[looked]
    single = [batch.take([row]).metadata(setting.device) for row in looked]
    each = torch.cat([setting.subject.sample(x, m).token_ids for x, m in zip(alone, single, strict=True)])
    together = batch.take(looked).metadata(setting.device)
    reference = setting.other.sample(torch.cat(alone), together).token_ids
    differ, disagree = int((found != each).sum()), int((found != reference).sum())
    texts, good = _logprobs(setting, logits, batch, looked, alone)
    return [*facts, str(differ), str(disagree), texts], good and not differ and not disagree


def _looked_at(layout: _Layout, limits: tuple[int, int], rng: np.random.Generator) -> list[int]:
    """The first rows, the last, those about each limit, and some at random."""
    about = [(limit - layout.offset) // layout.stride + step for limit in limits for step in (-1, 0, 1)]
    some = rng.integers(0, layout.rows, _AT_RANDOM).tolist()
    chosen = {0, 1, layout.rows - 2, layout.rows - 1, *about, *some}
    return sorted(row for row in chosen if 0 <= row < layout.rows)


def _logprobs(
    setting: Setting, logits: Tensor, batch: Batch, looked: list[int], alone: list[Tensor]
) -> tuple[str, bool]:
    metadata = batch.metadata(setting.device, logprobs=3)
    try:
        found = setting.subject.sample(logits, metadata).logprobs
    except SamplerUnavailableError as error:
        return str(error), True
    assert found is not None
    most = 0.0
    for row, x in zip(looked, alone, strict=True):
        each = setting.subject.sample(x, batch.take([row]).metadata(setting.device, logprobs=3)).logprobs
        assert each is not None
        same = torch.equal(found.token_ids[row], each.token_ids[0]) and int(found.ranks[row]) == int(
            each.ranks[0]
        )
        gap = (found.logprobs[row] - each.logprobs[0]).abs().nan_to_num(0.0)
        most = max(most, float(gap.max()) if same else float("inf"))
    return f"{most:.1e}", most < 1e-4
