"""Drafts of the V2 runner's speculative decoding, laid out for a verification by tokendraw."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokendraw import Drafts
from tokendraw.speculative import target_rows
from tokendraw_vllm._v2_batches import MAX_CACHED

PART = "V2 verification"
"""The replaced part of vLLM, for the log."""


class VerifiedRows(NamedTuple):
    """The arguments of a verification in vLLM, rows of a request one behind the other, with its bonus row last."""

    logits: Tensor
    """[L, V], of the target."""
    draft_logits: Tensor | None
    """[slots, K, V]: logits by slot and step that vLLM drew drafts from; None: the drafts were chosen."""
    fed: Tensor
    """[L] integer: the token fed at each row: a draft, but for the first row of a request; -1 for none."""
    positions: Tensor
    """[L] integer."""
    cu_num_logits: Tensor
    """[B + 1] integer: first row of each request."""
    requests: np.ndarray
    """[B]: slots of vLLM, on the host."""
    slot_of_row: Tensor
    """[L] integer."""
    step_of_row: Tensor
    """[L] integer: index of the row in its request."""
    judged: Tensor
    """[L] integer: ``fed``, but -1 for drafts that a grammar refuses."""
    may_compact: bool = False
    """Whether the device may have dropped drafts, so that rows from ``cu_num_logits[B]`` on belong to no request."""

    @property
    def refuses_none(self) -> bool:
        """Whether ``judged`` is ``fed``, as the host knows."""
        return self.judged.data_ptr() == self.fed.data_ptr()


def probabilities(rows: VerifiedRows, draft_logits: Tensor, judging: Tensor, temperature: Tensor) -> Tensor:
    """Return the probabilities that drafts were drawn with: [D, V] float32.

    A greedy row accepts its argmax, whatever probability below 1 the draft has.

    :param draft_logits: those of ``rows``.
    :param judging: [D] int64: the rows that judge a draft.
    :param temperature: [slots] float32.
    """
    if draft_logits.device.type == "cpu":
        return probabilities_by_torch(rows, draft_logits, judging, temperature)
    from tokendraw_vllm._v2_draft_kernels import JudgedRows, draft_probabilities

    judged = JudgedRows(judging, rows.slot_of_row, rows.step_of_row, temperature, draft_logits)
    probs: Tensor = draft_probabilities(judged)
    return probs


def probabilities_by_torch(
    rows: VerifiedRows, draft_logits: Tensor, judging: Tensor, temperature: Tensor
) -> Tensor:
    """Compute :func:`probabilities` by operations of torch, as on a CPU."""
    slots = rows.slot_of_row.index_select(0, judging)
    divisors = temperature.index_select(0, slots)
    divisors = torch.where(divisors == 0.0, 1.0, divisors).unsqueeze(1)
    logits = draft_logits[slots, rows.step_of_row.index_select(0, judging).to(torch.int64)]
    return torch.softmax(logits.to(torch.float32).div_(divisors), 1)


class DraftLayouts:
    """Lays out the drafts of batches for a verification, without a value read on the host.

    Where every request has as many drafts, the host knows all offsets, so their tensors are kept between steps.
    """

    def __init__(self) -> None:
        self._uniform: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        """Offsets [B + 1] and judging rows [L - B], by requests and rows of each."""

    def lay_out(
        self, rows: VerifiedRows, most: int, temperature: Callable[[], Tensor], *, verifies: bool
    ) -> Drafts:
        """Lay out the drafts of a batch.

        :param most: K.
        :param temperature: returns [slots] float32.
        :param verifies: whether they are to be verified; if not, they count as output before their rows.
        """
        fed = rows.judged if verifies else rows.fed
        count, requests = rows.logits.shape[0], rows.cu_num_logits.shape[0] - 1
        steps = count // requests
        is_uniform = count == steps * requests and (requests == 1 or steps == most + 1)
        if is_uniform and not rows.may_compact:
            offsets, judging = self._of_uniform(requests, steps, fed.device)
            ids = fed.reshape(requests, steps)[:, 1:].to(torch.int64).flatten()
        else:
            offsets = rows.cu_num_logits.to(torch.int64)
            judging = target_rows(offsets, count - requests)
            ids = fed.index_select(0, judging + 1).to(torch.int64)
        probs = None
        if verifies and rows.draft_logits is not None:
            probs = probabilities(rows, rows.draft_logits, judging, temperature())
        return Drafts(draft_token_ids=ids, cu_num_logits=offsets, draft_probs=probs, max_drafts=most)

    def _of_uniform(self, requests: int, steps: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return offsets and judging rows of requests with equally many rows each."""
        key = requests, steps
        if key not in self._uniform:
            while len(self._uniform) >= MAX_CACHED:
                del self._uniform[next(iter(self._uniform))]
            rows = torch.arange(requests * steps + 1, device=device)
            self._uniform[key] = rows[::steps].contiguous(), rows[:-1].view(requests, steps)[:, :-1].flatten()
        return self._uniform[key]
