"""Times ``sample`` with the vocabulary split over ranks, for ``tokendraw bench --ranks``.

``sample_on_ranks`` is no operation of the core's registry. Every rank holds ceil(V / ranks) ids, the last rank the
rest, in a buffer of the same width, as heads of engines leave it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tokendraw_bench.cells import Cell
from tokendraw_bench.operation import Axis
from tokendraw_bench.operations import sample

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw import Need, Sampler, SamplingMetadata, VocabShard
    from tokendraw.vocab_parallel import Transport
    from tokendraw_bench.timing.timer import Draw

    Arguments: TypeAlias = tuple[SamplingMetadata, VocabShard]


_MEASURED_ROWS = 16


@dataclass(frozen=True)
class RankCell(Cell):
    """A cell of ``sample`` over ranks."""

    operation: ClassVar[str] = "sample_on_ranks"
    ranks: int = field(default=2, kw_only=True)

    @property
    def width(self) -> int:
        """Return the columns of a rank's buffer."""
        return -(-self.vocab_size // self.ranks)

    @property
    def nbytes(self) -> int:
        """Return the bytes of a rank's buffer."""
        return self.num_rows * self.width * (4 if self.dtype == "float32" else 2)

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.ranks} ranks"


RANKS = Axis(
    field="ranks",
    help="Split the vocabulary over so many processes, by gloo on CPUs, by NCCL on a GPU each, with --op sample. "
    "Beside every sampler stands the same one behind an all-gather of the logits.",
    subject="a vocabulary over ranks",
    minimum=2,
    single=True,
)


def _make_logits(cell: RankCell, device: torch.device, generator: torch.Generator) -> Tensor:
    """Make the buffer [B, width] of this rank out of logits [B, V] that all ranks make alike."""
    import torch.distributed as dist

    logits = sample.BENCH.make_inputs(cell, device, generator)
    columns = logits[:, dist.get_rank() * cell.width :][:, : cell.width]
    buffer: Tensor = logits.new_full((cell.num_rows, cell.width), float("inf"))
    buffer[:, : columns.shape[1]] = columns
    return buffer


def arguments(cell: RankCell, device: torch.device, group: Any = None) -> Arguments:
    """Make the metadata of all rows, and the shard of this rank."""
    import torch.distributed as dist

    from tokendraw import VocabShard

    start = min(dist.get_rank() * cell.width, cell.vocab_size)
    return sample.BENCH.arguments(cell, device), VocabShard(start, cell.vocab_size, group)


def _sharded(sampler: Sampler, cell: RankCell, arguments: Arguments) -> Draw:
    metadata, shard = arguments
    held = min(cell.width, cell.vocab_size - shard.start)
    return lambda local: sampler.sample(local[:, :held], metadata, shard=shard)


def _gathered(sampler: Sampler, cell: RankCell, arguments: Arguments) -> Draw:
    from tokendraw.vocab_parallel import transport_of

    metadata, shard = arguments
    transport = transport_of(shard.group)

    def draw(local: Tensor) -> object:
        return sampler.sample(_whole(transport, local, cell), metadata)

    return draw


def _whole(transport: Transport, local: Tensor, cell: RankCell) -> Tensor:
    """Gather logits [B, V] on every rank."""
    gathered = transport.all_gather(local)
    return gathered.movedim(0, 1).reshape(len(local), -1)[:, : cell.vocab_size]


def _need_of(cell: RankCell | None) -> Need:
    need: Need = sample.BENCH.need(cell)
    return replace(need, vocab_parallel=True)


def _nucleus(cell: RankCell, local: Tensor) -> dict[str, float]:
    """Measure the nucleus of gathered rows; every rank takes part."""
    from tokendraw.vocab_parallel import transport_of
    from tokendraw_bench.logits import mean_nucleus

    rows = _whole(transport_of(None), local[:_MEASURED_ROWS], cell)
    return {"nucleus": mean_nucleus(rows, cell.temperature or 1.0, cell.top_p)}


BENCH = replace(
    sample.BENCH,
    cell=RankCell,
    axes=(*sample.BENCH.axes, RANKS),
    make_inputs=_make_logits,
    arguments=arguments,
    step=_sharded,
    need=_need_of,
    measured=_nucleus,
    note="A rank receives in a gather what the others hold, in a sum twice its part by a ring; the peak is of tensors "
    "beside the inputs. The read is of one rank's logits.",
    head=lambda cell: (
        f"{sample.BENCH.head(cell)} The vocabulary lies on {cell.ranks} ranks; the slowest one's time counts."
    ),
    baselines=dict,
)
GATHERED = replace(BENCH, step=_gathered)
"""Puts the same sampler behind an all-gather of the logits."""
