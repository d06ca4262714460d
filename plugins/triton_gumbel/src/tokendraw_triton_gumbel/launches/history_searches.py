"""The launches over the histories of requests before logits are edited: tables of ids, and forced ids."""

from __future__ import annotations

from typing import Any

from tokendraw_triton_gumbel.host.compilation import (
    ANY_INT,
    ANY_STRIDE,
    INT32,
    Argument,
    Pointer,
)
from tokendraw_triton_gumbel.host.launch import Launch
from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import (
    Dry,
    History,
    HistoryEnds,
    IdTables,
    Penalties,
    SlotRows,
    StopIds,
    Thinking,
)
from tokendraw_triton_gumbel.kernels.logits_processing.count_window import count_window
from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import LAST_N
from tokendraw_triton_gumbel.kernels.logits_processing.fill_tables import fill_tables
from tokendraw_triton_gumbel.kernels.logits_processing.find_forced_ids import find_forced_ids
from tokendraw_triton_gumbel.kernels.logits_processing.open_tables import ENTRIES, open_tables
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Logits
from tokendraw_triton_gumbel.kernels.shared.configs import ProcessConfig
from tokendraw_triton_gumbel.launches.edit_arguments import (
    DRY_SETTINGS,
    ID_TABLES,
    PENALTIES,
    ProcessVariant,
    step_drafts,
)

_THINKING = Thinking(INT32, INT32, INT32, INT32, INT32, ANY_INT)
_ENDS = HistoryEnds(INT32, INT32)
_OPEN_WARPS = _FORCED_WARPS = 4
_FILL_WARPS = 1
"""A program of one warp waits for none of the others when it asks whether a lane goes on."""


class HistorySearches:
    """The launches over histories on a device."""

    def __init__(self, config: ProcessConfig, max_programs: int) -> None:
        """Set the limit of programs that the rows of a call are divided among."""
        self._config, self._max_programs = config, max_programs
        self._launches: dict[tuple[Any, ProcessVariant], Launch] = {}

    def find_forced_ids(
        self,
        variant: ProcessVariant,
        rows: int,
        searched: tuple[Any, ...],
        last: tuple[Any, ...],
        stream: Any,
    ) -> None:
        """Write the forced id of each row.

        :param searched: the arguments of ``load_row``: rows, logits, history, drafts, stop ids.
        :param last: the other arguments: the thinking budgets, and the forced ids.
        """
        launch = self._launch(find_forced_ids, variant, (), (_THINKING, INT32), _FORCED_WARPS)
        launch((rows, 1, 1), (*searched, *last), stream)

    def fill_tables(
        self,
        variant: ProcessVariant,
        flags: int,
        rows: int,
        searched: tuple[Any, ...],
        settings: tuple[Penalties, Dry, IdTables, HistoryEnds],
        stream: Any,
    ) -> None:
        """Fill the tables of rows with a window of penalties or DRY: two launches, and one more for windows.

        :param searched: as for :meth:`find_forced_ids`.
        """
        penalties, _, tables, _ = settings
        placeholders = PENALTIES, DRY_SETTINGS, ID_TABLES, _ENDS
        opened, filled = (
            self._launch(kernel, variant, (ANY_INT, ANY_INT), placeholders, warps)
            for kernel, warps in ((open_tables, _OPEN_WARPS), (fill_tables, _FILL_WARPS))
        )
        parts = self._num_parts(rows, tables.room, ENTRIES.value)
        opened((rows * parts, 1, 1), (flags, parts, *searched, *settings), stream)
        parts = self._num_parts(rows, tables.room // 2, self._config.TOKENS)
        grid = rows * parts, 1, 1
        filled(grid, (flags, parts, *searched, *settings), stream)
        if flags & LAST_N.value:
            counted = self._launch(count_window, variant, (ANY_INT,), (PENALTIES, ID_TABLES), _FILL_WARPS)
            counted(grid, (parts, *searched, penalties, tables), stream)

    def _num_parts(self, rows: int, elements: int, at_once: int) -> int:
        """Return the number of programs of a row."""
        return max(1, min(-(-elements // at_once), self._max_programs // rows))

    def _launch(
        self,
        kernel: Any,
        variant: ProcessVariant,
        first: tuple[Argument, ...],
        last: tuple[Argument, ...],
        warps: int,
    ) -> Launch:
        """Return a launch for a variant, compiled for the current device.

        :param first: placeholders of the arguments in front of those of ``load_row``.
        :param last: placeholders of the arguments behind these.
        """
        launch = self._launches.get((kernel, variant))
        if launch is None:
            placeholders = (
                *first,
                SlotRows(Pointer(variant.row_index, aligned=False), ANY_INT, None),
                Logits(Pointer(variant.logits, aligned=False), ANY_STRIDE, ANY_INT),
                History(INT32, INT32, INT32, ANY_INT),
                step_drafts(variant),
                StopIds(INT32, INT32, INT32, ANY_INT),
                *last,
            )
            launch = Launch.compiled(kernel, {"config": self._config}, {"num_warps": warps}, placeholders)
            self._launches[kernel, variant] = launch
        return launch
