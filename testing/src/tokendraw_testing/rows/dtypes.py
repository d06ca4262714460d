"""Rows in every advertised dtype: the checks that look at many calls take turns, so that none takes longer for it."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from tokendraw_testing.rows.sampling import RowSubject


def dtypes_of(subject: RowSubject) -> list[torch.dtype]:
    """List the dtypes that are advertised."""
    return [getattr(torch, name) for name in subject.capabilities.dtypes]


def in_turn(subject: RowSubject, turn: int, rows: NDArray[Any]) -> tuple[torch.Tensor, NDArray[Any]]:
    """Round rows to the dtype whose turn it is.

    :param turn: number of the call: successive ones have other dtypes.
    :param rows: [B, V] or [V] float32.
    :returns: the rows in that dtype, and the float32 values that they have there.
    """
    every = dtypes_of(subject)
    return rounded(rows, every[turn % len(every)])


def rounded(rows: NDArray[Any], dtype: torch.dtype) -> tuple[torch.Tensor, NDArray[Any]]:
    """Round rows to a dtype, finite values to finite ones; return them, and the float32 values that they have there."""
    exact, limit = torch.from_numpy(rows), torch.finfo(dtype).max
    given = torch.where(exact.isinf(), exact, exact.clamp(-limit, limit)).to(dtype)
    return given, given.float().numpy()
