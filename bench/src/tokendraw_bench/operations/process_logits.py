"""Times the operation ``process_logits``: edits of logits in place, for requests in slots."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tokendraw.plugin import ProcessNeed
from tokendraw_bench.cells import BATCH, DTYPE, VOCABULARY
from tokendraw_bench.operation import Axis, BenchOperation, Preset

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw import RequestSlots, SamplingParams
    from tokendraw_bench.timing import Draw

EDITS = ("penalties", "bitmask", "all")
BOTH = "penalties-and-bitmask"
BITMASKS = ("half", "runs", "lower-half", "1-percent", "all")
_OUTPUT = 16


@dataclass(frozen=True)
class ProcessCell:
    """Edits to time: ``batch`` rows of requests with ``distinct`` different ids each."""

    operation: ClassVar[str] = "process_logits"
    batch: int
    vocab_size: int
    dtype: str
    edits: str
    """Edits of the requests, one of ``EDITS``, or ``BOTH``."""
    distinct: int = 512
    """Ids that occur in prompt and output of each request."""
    bitmask: str = "half"
    """Ids that a bitmask allows, one of ``BITMASKS``."""
    graph: str = "requested"
    """Edits that a CUDA graph serves: those of its requests, or ``any``."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of a buffer of logits."""
        return self.batch * self.vocab_size * (4 if self.dtype == "float32" else 2)

    @property
    def num_distinct(self) -> int:
        """Return the number of different ids of a request, at most V."""
        return min(self.distinct, self.vocab_size)

    def __str__(self) -> str:
        bitmask = f" ({self.bitmask})" * (self.bitmask != "half")
        graph = ", any in a graph" * (self.graph == "any")
        return f"{self.batch} x {self.vocab_size} {self.dtype}, {self.edits}{bitmask}, {self.distinct} ids{graph}"


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
_edits = partial(Axis, subject="edits of logits", changes_inputs=False)
AXES = (
    BATCH,
    VOCABULARY,
    DTYPE,
    _edits(
        "edits",
        "What the requests ask for, with --op process_logits; may be given again. All: penalties, bias, a bad "
        "word, min_tokens and a bitmask.",
        choices=(*EDITS, BOTH),
    ),
    _edits(
        "distinct",
        "Ids that occur in each request, with --op process_logits; may be given again. Default: 512.",
    ),
    _edits(
        "bitmask",
        "Ids that bitmasks allow, with --op process_logits: half of them, anywhere, in runs of 256, or the lower "
        "half; 1 % of them; or all. May be given again. Default: half.",
        choices=BITMASKS,
        optional=True,
    ),
    _edits(
        "graph",
        "Edits that a CUDA graph serves, with --op process_logits: those that the requests ask for, or any; may "
        "be given again. Default: requested.",
        option="--graph-edits",
        title="edits of a graph",
        choices=("requested", "any"),
        optional=True,
    ),
)


class EditArguments(NamedTuple):
    """The requests of a cell: their slots and edits, and the slot of each row."""

    slots: RequestSlots
    params: SamplingParams
    row_index: Tensor
    """[B] int64."""
    bitmask: Tensor | None
    """[B, ceil(V / 32)] int32."""


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


def _arguments(cell: ProcessCell, device: torch.device) -> EditArguments:
    """Fill a slot for each row with a request of random ids, the last 16 in the output."""
    import torch

    from tokendraw import RequestSlots

    generator = torch.Generator().manual_seed(2)
    slots = RequestSlots(cell.batch, cell.num_distinct + _OUTPUT, cell.vocab_size, device=device)
    params, row_index = _params(cell), torch.arange(cell.batch, device=device)
    orders = [torch.randperm(cell.vocab_size, generator=generator) for _ in range(cell.batch)]
    ids = torch.stack([order[: cell.num_distinct] for order in orders])
    for slot, prompt in enumerate(ids.tolist()):
        slots.add(slot, params, prompt_token_ids=prompt)
    for tokens in ids[:, -_OUTPUT:].T.contiguous().to(device):
        slots.append(row_index, tokens)
    bitmask = None if cell.edits == "penalties" else _bitmask(cell, generator).to(device)
    return EditArguments(slots, params, row_index, bitmask)


def _bitmask(cell: ProcessCell, generator: torch.Generator) -> Tensor:
    """Make the words [B, ceil(V / 32)] of a bitmask."""
    import torch

    rows, words = cell.batch, -(-cell.vocab_size // 32)
    if cell.bitmask == "half":
        return torch.randint(-(2**31), 2**31, (rows, words), generator=generator).to(torch.int32)
    if cell.bitmask == "runs":
        runs = -torch.randint(2, (rows, -(-words // 8)), generator=generator)
        return runs.repeat_interleave(8, 1)[:, :words].to(torch.int32).contiguous()
    if cell.bitmask == "1-percent":
        bits = torch.rand(rows, words, 32, generator=generator) < 0.01
        return (bits.int() << torch.arange(32, dtype=torch.int32)).sum(2).to(torch.int32)
    allowed = words if cell.bitmask == "all" else words // 2
    return -(torch.arange(words).expand(rows, -1) < allowed).to(torch.int32)


def _step(processor: Any, cell: ProcessCell, arguments: EditArguments) -> Draw:
    from tokendraw.plugin import EditFacts

    slots = arguments.slots
    edits = EditFacts() if cell.graph == "any" else slots.facts

    def process(logits: Tensor) -> object:
        slots.captured_edits = edits
        return processor.process(logits, slots, arguments.row_index, arguments.bitmask)

    return process


def _make_logits(cell: ProcessCell, device: torch.device, generator: torch.Generator) -> Tensor:
    import torch

    logits = torch.empty(cell.batch, cell.vocab_size, device=device)
    return logits.normal_(0.0, 2.5, generator=generator).to(getattr(torch, cell.dtype))


BENCH = BenchOperation(
    name="process_logits",
    cell=ProcessCell,
    axes=AXES,
    shape=("batch", "vocab_size"),
    presets=PRESETS,
    make_inputs=_make_logits,
    arguments=_arguments,
    step=_step,
    need=lambda cell: ProcessNeed(dtype=cell.dtype, vocab_size=cell.vocab_size) if cell else ProcessNeed(),
    head=lambda cell: "Edits logits in place, again and again.",
    note="A bitmask allows half of the ids, which lie anywhere, where no column says otherwise.",
)
