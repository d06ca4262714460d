"""Rounds rows to the advertised dtypes: checks of many calls take the dtypes in turn."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from tokendraw_testing.rows.subjects import RowSubject


def round_in_turn(subject: RowSubject, turn: int, rows: NDArray[Any]) -> tuple[torch.Tensor, NDArray[Any]]:
    """Round rows to the dtype in turn.

    :param turn: number of the call: successive ones have other dtypes.
    :param rows: [B, V] or [V] float32.
    :returns: the rows in that dtype, and the float32 values that they have there.
    """
    return round_rows(rows, subject.dtypes[turn % len(subject.dtypes)])


def round_rows(rows: NDArray[Any], dtype: torch.dtype) -> tuple[torch.Tensor, NDArray[Any]]:
    """Round rows to a dtype, finite values to finite values; return the rows and their float32 values."""
    values, limit = torch.from_numpy(rows), torch.finfo(dtype).max
    result = torch.where(values.isinf(), values, values.clamp(-limit, limit)).to(dtype)
    return result, result.float().numpy()
