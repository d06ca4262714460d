"""Computes the log-probabilities of tokens drawn from all ranks, equal to a single device's.

Each rank sends its N largest values: together they hold the N best tokens. The row's masses and threshold decide the
tokens shown by a mode as more than -inf; then follow, as on a single device, the lowest of all other ids.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw.backends.description.capabilities import LogprobsMode
from tokendraw.logprobs import RowMasses, best_places, least_shown, mode_values, pad_logprobs
from tokendraw.output import LogprobsTensors
from tokendraw.vocab_parallel.merging import Merged
from tokendraw.vocab_parallel.parameters import Parameters

_INF = float("inf")


def logprobs(
    drawn: Merged,
    row: RowMasses,
    best: tuple[Tensor, Tensor],
    width: int,
    num_best: Tensor | None,
    params: Parameters,
    mode: LogprobsMode,
    ranks: Tensor | None,
) -> LogprobsTensors:
    """Tell the values of the drawn and of the best tokens.

    :param best: [R, B, m] each: the largest values of every rank, float32, and their ids, int32; -inf and V behind its
        last.
    :param width: N, how many best tokens every row gets.
    :param num_best: [B] integer, number of best tokens of each row (-1: all), or None for all N.
    :param ranks: [B] int64 or None.
    """
    assert drawn.x is not None
    x, ids = _shown(*_best(*best, width), drawn, row, params, mode)
    ids, x = torch.cat((drawn.token, ids), -1), torch.cat((drawn.x, x), -1)
    values = mode_values(x, row, params.inverse_temperature, mode)
    if params.greedy is not None and not mode.startswith("raw"):
        values = torch.where(params.greedy, torch.where(ids == drawn.token, 0.0, -_INF), values)
    values = torch.where(row.max > -_INF, values, -_INF).to(torch.float32)
    return LogprobsTensors(*pad_logprobs(ids, values, num_best), ranks)


def log_kept_mass(row: RowMasses, params: Parameters) -> Tensor:
    """Return the log of the kept share of the temperature-scaled mass, [B] float32, at most 0; 0 in greedy rows."""
    share = (row.kept.log() - row.mass.log()).clamp_(max=0.0)
    if params.greedy is not None:
        share = torch.where(params.greedy, 0.0, share)
    return share.squeeze(-1).to(torch.float32)


def _best(x: Tensor, ids: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the N largest values of all ranks and their ids, [B, N] float32 and int64."""
    x, ids = (column.transpose(0, 1).flatten(1) for column in (x, ids))
    indices = best_places(x, ids.to(torch.int64), width)
    return x.gather(-1, indices), ids.gather(-1, indices).to(torch.int64)


def _shown(
    x: Tensor, ids: Tensor, drawn: Merged, row: RowMasses, params: Parameters, mode: LogprobsMode
) -> tuple[Tensor, Tensor]:
    """Replace values shown as -inf by the lowest ids among the tokens shown as -inf."""
    is_shown = x >= least_shown(row, params.temperature, mode)
    if params.greedy is not None and not mode.startswith("raw"):
        is_shown &= ~params.greedy | (ids == drawn.token)
    width = ids.shape[-1]
    is_taken = torch.zeros_like(pad(is_shown, (0, 1)))  # [B, N + 1]: of the ids below N, and any above
    is_taken.scatter_(-1, torch.where(is_shown, ids, width).clamp(max=width), value=True)
    free = is_taken[:, :width].to(torch.int32).argsort(dim=-1, stable=True)
    index = torch.arange(width, device=ids.device) - is_shown.sum(-1, keepdim=True)
    filled = free.gather(-1, index.clamp(min=0))
    return torch.where(is_shown, x, -_INF), torch.where(is_shown, ids, filled)
