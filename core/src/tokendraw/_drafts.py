"""The drafts of a batch: what a verification gets beside the target's logits, with every shape known on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tokendraw import speculative
from tokendraw._capabilities import INPUT_DTYPES, DraftKind
from tokendraw._errors import InvalidInputError, InvalidParameterError
from tokendraw._parameters import integer
from tokendraw._untraced import made_untraced, untraced


@made_untraced
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Drafts:
    """Draft tokens of B requests, L - B in all, and what they were drawn from.

    The target's logits [L, V] hold the rows of request after request: one row for each of its drafts, in order, then
    its bonus row. ``cu_num_logits`` says where each request begins. In a verification,
    ``SamplingMetadata.row_index`` maps the L rows to request slots, and ``SamplingMetadata.positions`` gives each of
    them its position; :mod:`tokendraw.speculative` computes both.

    Build it with :meth:`from_lists` or :meth:`from_counts`, or from ready tensors together with ``max_drafts``, since
    nobody reads the counts back from the device. Ready tensors may be changed in place between calls, also between
    replays of a CUDA graph; rows from ``cu_num_logits[B]`` on belong to no request and are ignored.

    :raises InvalidInputError: shapes, dtypes or devices do not fit each other, or both ``draft_probs`` and
        ``draft_logits`` are given.
    :raises InvalidParameterError: a number on the host is out of range.
    """

    draft_token_ids: Tensor
    """[L - B] integer, ragged; or [B, K], each row padded with -1 behind its drafts.

    An id outside [0, V), such as the placeholder -1, stands for a draft that was not made. It is rejected, and what is
    emitted in its place comes from the target's own distribution. That is exact where the decision to make no draft
    did not look at a drawn id. A draft that was drawn and may not stand, because a grammar forbids it, keeps its id:
    the target's probability of it is 0, which rejects it and takes what it was drawn from into account.
    """
    cu_num_logits: Tensor
    """[B + 1] integer: 0, then the running sum of (drafts + 1). Request b has the rows from ``cu_num_logits[b]`` to
    ``cu_num_logits[b + 1] - 1``, at least one."""
    draft_probs: Tensor | None = None
    """[L - B, V] floating point: the probabilities that each draft was drawn by, taken as they are. NaN, negative and
    infinite ones count as 0. The row of a placeholder is not looked at."""
    draft_logits: Tensor | None = None
    """[L - B, V] float32, bfloat16 or float16: logits that each draft was drawn from with the request's own parameters.

    With neither, the drafts were not drawn but chosen (n-grams, a greedy draft): all their probability is on the id.
    """
    num_drafts: tuple[int, ...] | None = None
    """Drafts of each request, as the host knows them; None: it knows only ``max_drafts``."""
    max_drafts: int = -1
    """K, the most drafts that a request may have: the width of the result. -1: as ``num_drafts`` or the shape says."""

    any_placeholder: bool = True
    """Whether an id outside [0, V) may be among them; ids on a device are not read."""

    def __post_init__(self) -> None:
        _check_tensors(self)
        _check_counts(self)
        object.__setattr__(self, "max_drafts", _most_drafts(self))

    @classmethod
    @untraced
    def from_lists(
        cls,
        draft_token_ids: Sequence[Sequence[int]],
        *,
        device: torch.device | str | None = None,
        draft_probs: Tensor | None = None,
        draft_logits: Tensor | None = None,
    ) -> Self:
        """Lay out one list of draft ids a request, empty where it has none.

        :param device: device of the logits; None: the CPU.
        :raises InvalidParameterError: an id is no 64-bit integer; names the request.
        """
        ids = [
            integer("draft_token_ids", token, request, -(2**63), 2**63 - 1, "a 64-bit integer")
            for request, tokens in enumerate(draft_token_ids)
            for token in tokens
        ]
        largest = None if draft_probs is None else draft_probs.shape[-1]
        largest = largest if draft_logits is None else draft_logits.shape[-1]
        return cls.from_counts(
            torch.tensor(ids, dtype=torch.int64, device=torch.device(device or "cpu")),
            [len(tokens) for tokens in draft_token_ids],
            draft_probs=draft_probs,
            draft_logits=draft_logits,
            any_placeholder=largest is None or not all(0 <= token < largest for token in ids),
        )

    @classmethod
    @untraced
    def from_counts(
        cls,
        draft_token_ids: Tensor,
        num_drafts: Sequence[int],
        *,
        draft_probs: Tensor | None = None,
        draft_logits: Tensor | None = None,
        any_placeholder: bool = True,
    ) -> Self:
        """Take draft ids that are on the device, of which the host knows how many each request has.

        :param draft_token_ids: [L - B] or [B, K].
        :param num_drafts: one integer a request.
        """
        counts = tuple(integer("num_drafts", n, request, 0, 2**62) for request, n in enumerate(num_drafts))
        return cls(
            draft_token_ids=draft_token_ids,
            cu_num_logits=speculative.cu_num_logits(torch.tensor(counts, dtype=torch.int64)).to(
                draft_token_ids.device
            ),
            draft_probs=draft_probs,
            draft_logits=draft_logits,
            num_drafts=counts,
            any_placeholder=any_placeholder,
        )

    @property
    def num_requests(self) -> int:
        """B."""
        return self.cu_num_logits.shape[0] - 1

    @property
    def kind(self) -> DraftKind:
        """What the drafts were drawn from."""
        if self.draft_probs is not None:
            return "probs"
        return "chosen" if self.draft_logits is None else "logits"

    @property
    def is_uniform(self) -> bool:
        """Whether every request has ``max_drafts`` drafts, as the host knows."""
        return self.num_drafts is not None and set(self.num_drafts) <= {self.max_drafts}

    @property
    def num_rows(self) -> int | None:
        """L, how many rows of target logits these drafts need; None where padded ids leave that open."""
        if self.num_drafts is not None or not self.num_requests:
            return sum(self.num_drafts or ()) + self.num_requests
        for tensor in (self.draft_probs, self.draft_logits, self.draft_token_ids):
            if tensor is not None and (tensor is not self.draft_token_ids or tensor.dim() == 1):
                return tensor.shape[0] + self.num_requests
        return None

    @property
    def device(self) -> torch.device:
        """Device of its tensors."""
        return self.draft_token_ids.device

    def check(self, target_logits: Tensor) -> None:
        """Refuse logits [L, V] that these drafts do not fit. Reads no values.

        :raises InvalidInputError: names the tensor, what it needs to be and what it is.
        """
        if self.device != target_logits.device:
            raise InvalidInputError(
                f"'drafts' needs the device of 'target_logits', {target_logits.device}, found {self.device}. "
                "Pass device= to Drafts.from_lists."
            )
        rows, needed = target_logits.shape[0], self.num_rows
        if needed is not None and needed != rows:
            raise InvalidInputError(
                f"'target_logits' needs {needed} rows, one for each draft and one more for each of the "
                f"{self.num_requests} requests, found {rows}."
            )
        if rows < self.num_requests:
            raise InvalidInputError(
                f"'target_logits' needs a row for each of the {self.num_requests} requests, found {rows}."
            )
        for name in ("draft_probs", "draft_logits"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape[1] != target_logits.shape[1]:
                raise InvalidInputError(
                    f"'{name}' needs the vocabulary of 'target_logits', {target_logits.shape[1]}, "
                    f"found {tensor.shape[1]}."
                )


def _check_tensors(drafts: Drafts) -> None:
    ids, offsets = drafts.draft_token_ids, drafts.cu_num_logits
    for name, tensor, dims, needed in (
        ("draft_token_ids", ids, (1, 2), "[L - B] or [B, K]"),
        ("cu_num_logits", offsets, (1,), "[B + 1]"),
    ):
        if tensor.dim() not in dims or (tensor is offsets and not len(offsets)):
            raise InvalidInputError(f"'{name}' needs shape {needed}, found {list(tensor.shape)}.")
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            raise InvalidInputError(f"'{name}' needs an integer dtype, found {tensor.dtype}.")
    if ids.dim() == 2 and len(ids) != len(offsets) - 1:
        raise InvalidInputError(
            f"'draft_token_ids' of two dimensions needs a row for each of the {len(offsets) - 1} requests in "
            f"'cu_num_logits', found {len(ids)}."
        )
    if drafts.draft_probs is not None and drafts.draft_logits is not None:
        raise InvalidInputError("'drafts' needs draft_probs or draft_logits, found both. Pass one of them.")
    if drafts.draft_probs is not None and not drafts.draft_probs.is_floating_point():
        raise InvalidInputError(
            f"'draft_probs' needs a floating-point dtype, found {drafts.draft_probs.dtype}."
        )
    logits = drafts.draft_logits
    if logits is not None and logits.dtype not in {getattr(torch, name) for name in INPUT_DTYPES}:
        raise InvalidInputError(
            f"'draft_logits' needs dtype {', '.join(INPUT_DTYPES)}, found {logits.dtype}."
        )
    for name in ("draft_probs", "draft_logits"):
        tensor = getattr(drafts, name)
        if tensor is not None and (tensor.dim() != 2 or tensor.shape[1] == 0):
            raise InvalidInputError(
                f"'{name}' needs shape [L - B, V] with V >= 1, found {list(tensor.shape)}."
            )
        if tensor is not None and ids.dim() == 1 and len(tensor) != len(ids):
            raise InvalidInputError(
                f"'{name}' needs a row for each of the {len(ids)} draft_token_ids, found {len(tensor)}."
            )
    for name in ("cu_num_logits", "draft_probs", "draft_logits"):
        tensor = getattr(drafts, name)
        if tensor is not None and tensor.device != ids.device:
            raise InvalidInputError(
                f"'{name}' needs the device of 'draft_token_ids', {ids.device}, found {tensor.device}."
            )


def _check_counts(drafts: Drafts) -> None:
    ids, counts = drafts.draft_token_ids, drafts.num_drafts
    if counts is None:
        return
    if len(counts) != drafts.num_requests:
        raise InvalidParameterError(
            f"'num_drafts' needs a number for each of the {drafts.num_requests} requests in 'cu_num_logits', "
            f"found {len(counts)}."
        )
    if ids.dim() == 2 and max(counts, default=0) > ids.shape[1]:
        request = next(i for i, n in enumerate(counts) if n > ids.shape[1])
        raise InvalidParameterError(
            f"'num_drafts' of request {request} needs an integer in [0, {ids.shape[1]}], the width of "
            f"'draft_token_ids', found {counts[request]}."
        )
    for name in ("draft_token_ids", "draft_probs", "draft_logits"):
        tensor = getattr(drafts, name)
        if tensor is None or (tensor is ids and ids.dim() == 2):
            continue
        if len(tensor) != sum(counts):
            raise InvalidInputError(
                f"'{name}' needs {sum(counts)} rows, the sum of 'num_drafts', found {len(tensor)}."
            )


def _most_drafts(drafts: Drafts) -> int:
    if drafts.max_drafts != -1:
        least = max(drafts.num_drafts or (0,))
        if drafts.max_drafts < least:
            raise InvalidParameterError(
                f"'max_drafts' needs an integer >= {least}, found {drafts.max_drafts}."
            )
        return drafts.max_drafts
    if drafts.draft_token_ids.dim() == 2:
        return drafts.draft_token_ids.shape[1]
    if drafts.num_drafts is not None:
        return max(drafts.num_drafts, default=0)
    raise InvalidParameterError(
        "'max_drafts' needs to be known on the host, since it is the width of the result, found neither it nor "
        "'num_drafts'. Pass max_drafts=."
    )
