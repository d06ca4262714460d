"""Times the operation ``process_logits``: edits of logits in place, for requests in slots."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tokendraw.plugin import ProcessNeed
from tokendraw_bench.axes import BATCH, DTYPE, VOCABULARY
from tokendraw_bench.operation import Axis, BenchOperation, Preset

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw import RequestSlots, SamplingParams
    from tokendraw_bench.timing.timer import Draw

    _Arguments: TypeAlias = tuple[RequestSlots, Tensor, Tensor | None]
    """Slots, the slot of each row, and a bitmask."""

EDITS = ("penalties", "bitmask", "all")
_OUTPUT = 16


@dataclass(frozen=True)
class ProcessCell:
    """Edits to time: ``batch`` rows of requests with ``distinct`` different ids each."""

    operation: ClassVar[str] = "process_logits"
    batch: int
    vocab_size: int
    dtype: str
    edits: str
    """Edits of the requests, one of ``EDITS``."""
    distinct: int = 512
    """Ids that occur in prompt and output of each request."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of a buffer of logits."""
        return self.batch * self.vocab_size * (4 if self.dtype == "float32" else 2)

    @property
    def num_distinct(self) -> int:
        """Return the number of different ids of a request, at most V."""
        return min(self.distinct, self.vocab_size)

    def __str__(self) -> str:
        return f"{self.batch} x {self.vocab_size} {self.dtype}, {self.edits}, {self.distinct} ids"


PRESETS = MappingProxyType(
    {
        "quick": Preset(
            shapes=((1, 32_000), (64, 32_000)),
            axes={"dtype": ("float32",), "edits": EDITS, "distinct": (512,)},
        ),
        "design": Preset(
            shapes=((256, 151_936), (64, 151_936), (1, 151_936)),
            axes={"dtype": ("float32", "bfloat16"), "edits": EDITS, "distinct": (512,)},
        ),
    }
)
AXES = (
    BATCH,
    VOCABULARY,
    DTYPE,
    Axis(
        field="edits",
        option="--edits",
        help="What the requests ask for, with --op process_logits; may be given again. All: penalties, bias, a bad "
        "word, min_tokens and a bitmask.",
        subject="edits of logits",
        choices=EDITS,
        changes_inputs=False,
    ),
    Axis(
        field="distinct",
        option="--distinct",
        help="Ids that occur in each request, with --op process_logits; may be given again. Default: 512.",
        subject="edits of logits",
        changes_inputs=False,
    ),
)


def _make_logits(cell: ProcessCell, device: torch.device, generator: torch.Generator) -> Tensor:
    import torch

    logits = torch.empty(cell.batch, cell.vocab_size, device=device)
    return logits.normal_(0.0, 2.5, generator=generator).to(getattr(torch, cell.dtype))


def _params(cell: ProcessCell) -> SamplingParams:
    from tokendraw import SamplingParams

    if cell.edits == "bitmask":
        return SamplingParams()
    penalties: dict[str, Any] = {
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
    }
    if cell.edits == "all":
        ids = range(0, cell.vocab_size, -(-cell.vocab_size // 32))
        penalties |= {"logit_bias": dict.fromkeys(ids, 1.0), "bad_words": [[1, 2, 3]]}
        penalties |= {"min_tokens": 1000, "stop_token_ids": [0, 1]}
    return SamplingParams(**penalties)


def _slots(cell: ProcessCell, device: torch.device) -> _Arguments:
    """Fill a slot for each row with a request of random ids, the last 16 in the output."""
    import torch

    from tokendraw import RequestSlots

    generator = torch.Generator().manual_seed(2)
    slots = RequestSlots(cell.batch, cell.num_distinct + _OUTPUT, cell.vocab_size, device=device)
    params, last = _params(cell), []
    for slot in range(cell.batch):
        ids = torch.randperm(cell.vocab_size, generator=generator)[: cell.num_distinct].tolist()
        slots.add(slot, params, prompt_token_ids=ids)
        last.append(ids[-_OUTPUT:])
    row_index = torch.arange(cell.batch, device=device)
    for tokens in zip(*last, strict=True):
        slots.append(row_index, torch.tensor(tokens, device=device))
    if cell.edits == "penalties":
        return slots, row_index, None
    shape = cell.batch, -(-cell.vocab_size // 32)
    words = torch.randint(-(2**31), 2**31, shape, generator=generator)
    return slots, row_index, words.to(torch.int32).to(device)


def _step(processor: Any, cell: ProcessCell, arguments: _Arguments) -> Draw:
    slots, row_index, bitmask = arguments

    def process(logits: Tensor) -> object:
        return processor.process(logits, slots, row_index, bitmask)

    return process


def _need_of(cell: ProcessCell | None) -> ProcessNeed:
    return ProcessNeed() if cell is None else ProcessNeed(dtype=cell.dtype, vocab_size=cell.vocab_size)


BENCH = BenchOperation(
    name="process_logits",
    cell=ProcessCell,
    axes=AXES,
    shape=("batch", "vocab_size"),
    presets=PRESETS,
    make_inputs=_make_logits,
    arguments=_slots,
    step=_step,
    need=_need_of,
    head=lambda cell: "Edits logits in place, again and again.",
    note="A bitmask allows half of the ids, which lie anywhere.",
)
