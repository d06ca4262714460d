"""The launch of a page plan: one kernel for small batches and one for large, with the list of pages and without."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from tokendraw_triton_gumbel.host.compilation import Argument, Pointer
from tokendraw_triton_gumbel.host.geometry import Grid
from tokendraw_triton_gumbel.host.launch import Launch, compile_steps
from tokendraw_triton_gumbel.kernels.paged_kv.write_plan import write_plan
from tokendraw_triton_gumbel.kernels.shared.argument_groups import BlockTable, PagePlan
from tokendraw_triton_gumbel.kernels.shared.configs import PlanConfig

_LARGE_BATCH = 1024
"""Requests from which on a program takes several: each program reads all lengths."""
_PROGRAMS = 4
"""Programs a multiprocessor that columns are shared among, at most: each program reads all lengths."""
_MOST_SIZES = 2048
"""Sizes of batches whose grids are remembered, at most."""
_ANY_STRIDE = (1 << 32) + 3
"""Stand-in for every row stride: 64 bits, a multiple of nothing."""


class Division(NamedTuple):
    """How a plan is divided among programs. What it costs is in ``docs/triton-gumbel.md``."""

    config: PlanConfig
    warps: int


SMALL = Division(PlanConfig(REQUESTS=1, AT_ONCE=512, COLUMNS=256), warps=4)
LARGE = Division(PlanConfig(REQUESTS=8, AT_ONCE=1024, COLUMNS=128), warps=4)


def _stand_ins(*, listed: bool) -> tuple[Argument, ...]:
    """Return what stands for the arguments of every plan."""
    some = Pointer(torch.int32, aligned=False)
    plan = PagePlan(some, some, some if listed else None)
    return some, BlockTable(some, _ANY_STRIDE, 3), plan, 3, 3, 3


class PlanLaunches:
    """The kernels that plans are launched with on one device."""

    def __init__(self, processors: int) -> None:
        """Make them.

        :param processors: multiprocessors of the device.
        """
        self._most_programs = _PROGRAMS * processors
        self._launches = {
            (division, listed): Launch(write_plan, {"config": division.config}, {"num_warps": division.warps})
            for division in (SMALL, LARGE)
            for listed in (True, False)
        }
        self.of = functools.lru_cache(_MOST_SIZES)(self._of)
        """Returns the kernel for a batch and its grid, by (requests, width, whether pages are asked for)."""

    def compile(self) -> None:
        """Compile all of them on the current device, unless that was done: no plan needs another one."""
        compile_steps(
            (launch, (1, 1, 1), _stand_ins(listed=listed)) for (_, listed), launch in self._launches.items()
        )

    def _of(self, requests: int, width: int, listed: bool) -> tuple[Launch, Grid]:
        division = SMALL if requests < _LARGE_BATCH else LARGE
        programs = max(1, -(-requests // division.config.REQUESTS))  # without requests, one writes the 0
        sharing = min(-(-width // division.config.COLUMNS), self._most_programs // programs) if listed else 1
        return self._launches[division, listed], (programs, max(1, sharing), 1)
