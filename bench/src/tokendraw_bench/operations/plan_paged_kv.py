"""Times the operation ``plan_paged_kv``: the page plan of a batch, written into existing buffers."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tokendraw_bench.axes import BATCH
from tokendraw_bench.operation import Axis, BenchOperation, Preset, copy_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw.paged_kv import PagedKVPlan
    from tokendraw_bench.timing.timer import Draw

    _Inputs: TypeAlias = tuple[Tensor, Tensor]
    """Lengths [B] and block table [B, W]."""


@dataclass(frozen=True)
class PlanCell:
    """A page plan to time: ``batch`` requests with up to ``width`` pages each."""

    operation: ClassVar[str] = "plan_paged_kv"
    batch: int
    width: int
    """W, the columns of the block table."""
    page_size: int = 16
    """Tokens a page."""
    page_indices: bool = field(default=True, kw_only=True)
    """Whether the plan lists the pages."""
    out: bool = field(default=True, kw_only=True)
    """Whether the plan is written into existing buffers."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the lengths and the block table."""
        return 4 * self.batch * (1 + self.width)

    def __str__(self) -> str:
        return f"{self.batch} x {self.width} pages of {self.page_size}"


_PAGE_SIZE = MappingProxyType({"page_size": (16,)})
PRESETS = MappingProxyType(
    {
        "quick": Preset(shapes=((1, 64), (256, 64)), axes=_PAGE_SIZE),
        "design": Preset(
            shapes=(
                *((1, 64), (1, 8192), (16, 64), (256, 64), (256, 512), (1024, 128), (1024, 512)),
                *((4096, 512), (16_384, 256)),
            ),
            axes=_PAGE_SIZE,
        ),
    }
)
AXES = (
    BATCH,
    Axis(
        field="width",
        help="Columns of the block table, with --op plan_paged_kv; may be given again.",
        subject="block tables",
    ),
    Axis(
        field="page_size",
        title="page size",
        help="Tokens a page, with --op plan_paged_kv; may be given again. Default: 16.",
        subject="block tables",
    ),
    Axis(
        field="page_indices",
        option="--page-indices/--no-page-indices",
        help="Whether plans list the pages of each request, with --op plan_paged_kv. Default: they do.",
        subject="block tables",
        single=True,
        changes_inputs=False,
    ),
    Axis(
        field="out",
        option="--out/--no-out",
        help="Whether plans are written into buffers that are kept, with --op plan_paged_kv. Default: they are.",
        subject="block tables",
        single=True,
        changes_inputs=False,
    ),
)


def _make_inputs(cell: PlanCell, device: torch.device, generator: torch.Generator) -> _Inputs:
    """Make random lengths from 1 to ``width * page_size`` tokens, and a random block table."""
    import torch

    def random(least: int, most: int, *shape: int) -> Tensor:
        return torch.randint(least, most + 1, shape, generator=generator, device=device, dtype=torch.int32)

    pages = cell.batch * cell.width
    return random(1, cell.width * cell.page_size, cell.batch), random(0, pages - 1, cell.batch, cell.width)


def _buffers(cell: PlanCell, device: torch.device) -> PagedKVPlan | None:
    from tokendraw.paged_kv import PagedKVPlan

    if not cell.out:
        return None
    return PagedKVPlan.empty(cell.batch, cell.width, device=device, page_indices=cell.page_indices)


def _step(planner: Any, cell: PlanCell, out: PagedKVPlan | None) -> Draw:
    def plan(inputs: _Inputs) -> object:
        seq_lens, block_table = inputs
        return planner.plan(seq_lens, block_table, cell.page_size, page_indices=cell.page_indices, out=out)

    return plan


BENCH = BenchOperation(
    name="plan_paged_kv",
    cell=PlanCell,
    axes=AXES,
    shape=("batch", "width"),
    presets=PRESETS,
    floor=copy_of("the block table", lambda inputs: inputs[1]),
    make_inputs=_make_inputs,
    arguments=_buffers,
    step=_step,
    head=lambda cell: (
        f"Plans {'with' if cell.page_indices else 'without'} page indices, into "
        f"{'buffers that are kept' if cell.out else 'new buffers'}."
    ),
    note="Lengths are random, from one token to all that the table has room for.",
)
