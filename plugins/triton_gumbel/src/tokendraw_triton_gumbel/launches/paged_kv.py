"""The launch of a page plan: a kernel each for small and large batches, with the list of pages and without."""

from __future__ import annotations

import functools
from typing import NamedTuple

from tokendraw_triton_gumbel.host.compilation import ANY_INT, ANY_STRIDE, INT32, Argument
from tokendraw_triton_gumbel.host.geometry import Grid
from tokendraw_triton_gumbel.host.launch import Launch, compile_steps
from tokendraw_triton_gumbel.kernels.paged_kv.write_plan import write_plan
from tokendraw_triton_gumbel.kernels.shared.argument_groups import BlockTable, PagePlan
from tokendraw_triton_gumbel.kernels.shared.configs import PlanConfig

_LARGE_BATCH_REQUESTS = 1024
"""Requests from which on a program takes several: each program reads all lengths."""
_PROGRAMS = 4
"""Upper limit of programs a multiprocessor that columns are divided among: each program reads all lengths."""
_MAX_SIZES = 2048
"""Upper limit of batch sizes whose grids are cached."""


class PlanDivision(NamedTuple):
    """How programs divide a plan. ``HISTORY.md`` of the plugin has the times of others."""

    config: PlanConfig
    warps: int


SMALL = PlanDivision(PlanConfig(REQUESTS=1, AT_ONCE=512, COLUMNS=256), warps=4)
LARGE = PlanDivision(PlanConfig(REQUESTS=8, AT_ONCE=1024, COLUMNS=128), warps=4)


def _placeholders(*, has_page_indices: bool) -> tuple[Argument, ...]:
    """Return the placeholders of the arguments of every plan."""
    plan = PagePlan(INT32, INT32, INT32 if has_page_indices else None)
    return INT32, BlockTable(INT32, ANY_STRIDE, ANY_INT), plan, ANY_INT, ANY_INT, ANY_INT


class PlanLaunches:
    """The launches of page plans on a device."""

    def __init__(self, processors: int) -> None:
        """Set the limit of programs.

        :param processors: multiprocessors of the device.
        """
        self._max_programs = _PROGRAMS * processors
        self._launches = {
            (division, has_page_indices): Launch(
                write_plan, {"config": division.config}, {"num_warps": division.warps}
            )
            for division in (SMALL, LARGE)
            for has_page_indices in (True, False)
        }
        self.of = functools.lru_cache(_MAX_SIZES)(self._of)
        """Returns the launch for a batch and its grid, by (requests, width, whether pages are asked for)."""

    def compile(self) -> None:
        """Compile all kernels of plans on the current device, unless this process has done so."""
        compile_steps(
            (launch, (1, 1, 1), _placeholders(has_page_indices=has_page_indices))
            for (_, has_page_indices), launch in self._launches.items()
        )

    def _of(self, requests: int, width: int, has_page_indices: bool) -> tuple[Launch, Grid]:
        division = SMALL if requests < _LARGE_BATCH_REQUESTS else LARGE
        programs = max(1, -(-requests // division.config.REQUESTS))  # without requests, one writes the 0
        column_programs = 1
        if has_page_indices:
            column_programs = min(-(-width // division.config.COLUMNS), self._max_programs // programs)
        return self._launches[division, has_page_indices], (programs, max(1, column_programs), 1)
