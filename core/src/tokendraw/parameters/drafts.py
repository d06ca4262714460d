"""The drafts of a batch, passed beside the target's logits. The host knows every shape."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw._torch.tensors import check_device_of, check_plain, device_of, is_plain, uploaded
from tokendraw._torch.untraced import made_untraced, untraced
from tokendraw.backends.description.capabilities import DraftKind
from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.parameters.draft_checks import (
    check_counts,
    check_distributions,
    check_ids,
    check_offsets,
    first_rows,
    most_drafts,
)
from tokendraw.parameters.ranges import are_integers, check_flag, each, integers

_ID_RANGE = (-(2**63), 2**63 - 1)


@made_untraced
@dataclass(frozen=True, kw_only=True, eq=False)
class Drafts:
    """Draft tokens of B requests, L - B in all, and their draft distributions.

    The target's logits [L, V] hold the rows of request after request: one row for each of its drafts, in order, then
    its bonus row. ``cu_num_logits`` says where each request begins. In a verification,
    ``SamplingMetadata.row_index`` maps the L rows to request slots, and ``SamplingMetadata.positions`` gives each of
    them its position; :mod:`tokendraw.speculative` computes both.

    Build it with :meth:`from_lists` or :meth:`from_counts`, or from ready tensors together with ``max_drafts``, since
    nobody reads the counts back from the device. Ready tensors may be changed in place between calls, also between
    replays of a CUDA graph; rows from ``cu_num_logits[B]`` on belong to no request and are ignored. The values of
    ``cu_num_logits`` are looked at where they lie on the CPU, elsewhere with ``TOKENDRAW_DEBUG=1`` alone.

    :ivar draft_token_ids: [L - B] integer, ragged; or [B, K], each row padded with -1 behind its drafts. An id outside
        [0, V), such as the placeholder -1, stands for a draft that was not made. It is rejected, and what is emitted in
        its place comes from the target's own distribution. That is exact where the decision to make no draft did not
        look at a drawn id. A draft that was drawn and may not stand, because a grammar forbids it, keeps its id: the
        target's probability of it is 0, which rejects it and takes what it was drawn from into account.
    :ivar cu_num_logits: [B + 1] integer: 0, then the running sum of (drafts + 1). Request b has the rows from
        ``cu_num_logits[b]`` to ``cu_num_logits[b + 1] - 1``, at least one.
    :ivar draft_probs: [L - B, V] floating point: the probabilities that each draft was drawn by, used without
        normalising. NaN, negative and infinite values count as 0. The row of a placeholder is not read.
    :ivar draft_logits: [L - B, V] float32, bfloat16 or float16: logits that each draft was drawn from with the
        request's parameters. With neither ``draft_probs`` nor ``draft_logits`` the drafts were not drawn but chosen
        (n-grams, a greedy draft): the id has all the probability.
    :ivar num_drafts: Number of drafts of each request, if the host knows these; None: the host knows only
        ``max_drafts``.
    :ivar max_drafts: K, the most drafts that a request may have: the width of the result. -1: as ``num_drafts`` or the
        shape says.
    :ivar any_placeholder: Whether a draft may be a placeholder, an id outside [0, V); ids on a device are not read.
    :raises InvalidInputError: a field is no dense tensor; shapes, dtypes or devices do not fit each other; or both
        ``draft_probs`` and ``draft_logits`` are given.
    :raises InvalidParameterError: a number on the host is out of range.
    """

    draft_token_ids: Tensor
    cu_num_logits: Tensor
    draft_probs: Tensor | None = None
    draft_logits: Tensor | None = None
    num_drafts: tuple[int, ...] | None = None
    max_drafts: int = -1
    any_placeholder: bool = True

    def __post_init__(self) -> None:
        tensors = self.draft_token_ids, self.draft_probs, self.draft_logits
        check_ids(self.draft_token_ids, self.cu_num_logits)
        check_distributions(*tensors)
        if self.num_drafts is not None:
            object.__setattr__(self, "num_drafts", _counts(self.num_drafts))
            check_counts(self.num_drafts, self.num_requests, *tensors)
        check_flag("any_placeholder", self.any_placeholder)
        most = most_drafts(self.max_drafts, self.num_drafts, self.draft_token_ids)
        object.__setattr__(self, "max_drafts", most)
        if self.cu_num_logits.is_cpu:
            self.check_values()

    @classmethod
    @untraced
    def from_lists(
        cls,
        draft_token_ids: Iterable[Iterable[int]],
        *,
        device: torch.device | str | None = None,
        draft_probs: Tensor | None = None,
        draft_logits: Tensor | None = None,
    ) -> Self:
        """Lay out a list of draft ids for each request, maybe empty, without waiting for the device.

        :param device: device of the logits; None: the CPU.
        :raises InvalidParameterError: an id is no 64-bit integer; names the request.
        :raises InvalidInputError: as the class does; or a CUDA graph is being captured.
        """
        device = device_of(device)
        name = "draft_token_ids"
        lists = [
            list(each(name, tokens, "integers", request))
            for request, tokens in enumerate(each(name, draft_token_ids, "lists of ids, one a request"))
        ]
        ids = list(chain.from_iterable(lists))
        if not are_integers(ids, *_ID_RANGE):
            needed = "a 64-bit integer"
            checked = [integers(name, tokens, *_ID_RANGE, needed, row=i) for i, tokens in enumerate(lists)]
            ids = list(chain.from_iterable(checked))
        vocab_size = None
        for tensor in (draft_probs, draft_logits):
            if is_plain(tensor) and tensor.dim():
                vocab_size = tensor.shape[-1]
        return cls._laid_out(
            {"draft_token_ids": ids},
            tuple(map(len, lists)),
            device,
            draft_probs=draft_probs,
            draft_logits=draft_logits,
            any_placeholder=vocab_size is None or not are_integers(ids, 0, vocab_size - 1),
        )

    @classmethod
    @untraced
    def from_counts(
        cls,
        draft_token_ids: Tensor,
        num_drafts: Iterable[int],
        *,
        draft_probs: Tensor | None = None,
        draft_logits: Tensor | None = None,
        any_placeholder: bool = True,
    ) -> Self:
        """Make drafts of ids on the device and counts known to the host.

        Waits for the device as little as :meth:`from_lists`, and raises the same.

        :param draft_token_ids: [L - B] or [B, K].
        :param num_drafts: one integer a request.
        """
        check_plain("draft_token_ids", draft_token_ids, "Pass a tensor of ids, or use Drafts.from_lists.")
        return cls._laid_out(
            {},
            _counts(num_drafts),
            draft_token_ids.device,
            draft_token_ids=draft_token_ids,
            draft_probs=draft_probs,
            draft_logits=draft_logits,
            any_placeholder=any_placeholder,
        )

    @cached_property
    def memo(self) -> dict[Hashable, Any]:
        """Results computed by a verification from these drafts, each with the state for which it is valid."""
        return {}

    @cached_property
    def num_requests(self) -> int:
        """Number of requests, B."""
        return self.cu_num_logits.shape[0] - 1

    @cached_property
    def kind(self) -> DraftKind:
        """Kind of the drafts, by the given draft distribution."""
        if self.draft_probs is not None:
            return "probs"
        return "chosen" if self.draft_logits is None else "logits"

    @cached_property
    def is_uniform(self) -> bool:
        """Whether every request has ``max_drafts`` drafts, as the host knows."""
        return self.num_drafts is not None and set(self.num_drafts) <= {self.max_drafts}

    @cached_property
    def num_rows(self) -> int | None:
        """Number of rows of target logits, L; None if padded ids leave the number open."""
        if self.num_drafts is not None or not self.num_requests:
            return sum(self.num_drafts or ()) + self.num_requests
        for tensor in (self.draft_probs, self.draft_logits, self.draft_token_ids):
            if tensor is not None and (tensor is not self.draft_token_ids or tensor.dim() == 1):
                return tensor.shape[0] + self.num_requests
        return None

    @cached_property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.draft_token_ids.device

    def check(self, target_logits: Tensor, name: str = "target_logits") -> None:
        """Refuse logits [L, V] unfit for these drafts. Reads no values on other devices than the CPU.

        :param name: of the argument.
        :raises InvalidInputError: names the tensor, what it needs to be and what it is.
        """
        mend = "Pass device= to Drafts.from_lists."
        check_device_of("drafts", self.device, f"'{name}'", target_logits.device, mend)
        rows, needed = target_logits.shape[0], self.num_rows
        if needed is not None and needed != rows:
            raise InvalidInputError(
                f"'{name}' needs {needed} rows, one for each draft and one more for each of the "
                f"{self.num_requests} requests, found {rows}."
            )
        if rows < self.num_requests:
            raise InvalidInputError(
                f"'{name}' needs a row for each of the {self.num_requests} requests, found {rows}."
            )
        if needed is None and self.cu_num_logits.is_cpu and (last := int(self.cu_num_logits[-1])) > rows:
            raise InvalidInputError(
                f"'{name}' needs {last} rows, as 'cu_num_logits' says last, found {rows}."
            )
        for field in ("draft_probs", "draft_logits"):
            tensor = getattr(self, field)
            if tensor is not None and tensor.shape[1] != target_logits.shape[1]:
                raise InvalidInputError(
                    f"'{field}' needs the vocabulary of '{name}', {target_logits.shape[1]}, "
                    f"found {tensor.shape[1]}."
                )

    def check_values(self) -> None:
        """Check the values of ``cu_num_logits`` on any device, and wait for the device.

        :raises InvalidParameterError: it does not begin with 0 and rise, or says something else than ``num_drafts``.
        """
        check_offsets(self.cu_num_logits, self.num_drafts, self.num_rows)

    @classmethod
    def _laid_out(
        cls,
        columns: dict[str, list[int]],
        num_drafts: tuple[int, ...],
        device: torch.device,
        *,
        any_placeholder: bool,
        **tensors: Tensor | None,
    ) -> Self:
        columns = {**columns, "cu_num_logits": first_rows(num_drafts)}
        uploads = uploaded({name: (values, torch.int64) for name, values in columns.items()}, device)
        return cls(**uploads, **tensors, num_drafts=num_drafts, any_placeholder=any_placeholder)  # type: ignore[arg-type]


def _counts(num_drafts: Iterable[int]) -> tuple[int, ...]:
    return tuple(integers("num_drafts", num_drafts, 0, 2**62))
