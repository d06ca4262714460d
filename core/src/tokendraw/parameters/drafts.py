"""The drafts of a batch, passed beside the target's logits. The host knows every shape."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw._torch.importing import made_untraced, untraced
from tokendraw._torch.tensors import (
    check_device_of,
    check_integers,
    check_plain,
    device_of,
    is_plain,
    uploaded,
)
from tokendraw.backends.description import INPUT_DTYPES, DraftKind
from tokendraw.errors import InvalidInputError, InvalidParameterError
from tokendraw.parameters.fields import are_integers, check_flag, each, integer, integers

_DTYPES = frozenset(getattr(torch, name) for name in INPUT_DTYPES)
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
    the counts are not read back from the device. Ready tensors may be changed in place between calls, also between
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
    :ivar num_drafts: Number of drafts of each request; None: the host knows only ``max_drafts``.
    :ivar max_drafts: K, the most drafts of a request: the width of the result. -1: as ``num_drafts`` or the shape says.
    :ivar any_placeholder: Whether a draft may be a placeholder, an id outside [0, V); ids on a device are not read.
    :raises InvalidInputError: a field is no dense tensor, the tensors do not fit, or there are two distributions.
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
        self._check_ids()
        self._check_distributions()
        if self.num_drafts is not None:
            object.__setattr__(self, "num_drafts", tuple(integers("num_drafts", self.num_drafts, 0, 2**62)))
            self._check_counts(self.num_drafts)
        check_flag("any_placeholder", self.any_placeholder)
        object.__setattr__(self, "max_drafts", self._most_drafts())
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
        num_drafts = tuple(map(len, lists))
        columns = {name: (ids, torch.int64), "cu_num_logits": (_first_rows(num_drafts), torch.int64)}
        tensors: dict[str, Any] = uploaded(columns, device)
        return cls(
            **tensors,
            num_drafts=num_drafts,
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
        counts = tuple(integers("num_drafts", num_drafts, 0, 2**62))
        columns = {"cu_num_logits": (_first_rows(counts), torch.int64)}
        return cls(
            draft_token_ids=draft_token_ids,
            cu_num_logits=uploaded(columns, draft_token_ids.device)["cu_num_logits"],
            num_drafts=counts,
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
        return next((len(tensor) + self.num_requests for tensor in self._ragged.values()), None)

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
            needed = self.num_requests
            raise InvalidInputError(f"'{name}' needs a row for each of the {needed} requests, found {rows}.")
        if needed is None and self.cu_num_logits.is_cpu and (last := int(self.cu_num_logits[-1])) > rows:
            raise InvalidInputError(
                f"'{name}' needs {last} rows, as 'cu_num_logits' says last, found {rows}."
            )
        for field, tensor in self._distributions.items():
            if tensor.shape[1] != target_logits.shape[1]:
                raise InvalidInputError(
                    f"'{field}' needs the vocabulary of '{name}', {target_logits.shape[1]}, "
                    f"found {tensor.shape[1]}."
                )

    def check_values(self) -> None:
        """Check the values of ``cu_num_logits`` on any device, and wait for the device.

        :raises InvalidParameterError: it does not begin with 0 and rise, or says something else than ``num_drafts``.
        """
        offsets, num_drafts, rows = self.cu_num_logits.tolist(), self.num_drafts, self.num_rows
        if num_drafts is not None and offsets == _first_rows(num_drafts):
            return
        if offsets[0] != 0:
            raise InvalidParameterError(f"'cu_num_logits' needs 0 first, found {offsets[0]}.")
        for request, (first, end) in enumerate(pairwise(offsets)):
            least = first + 1 + (0 if num_drafts is None else num_drafts[request])
            if end < least or (end > least and num_drafts is not None):
                needed = f"{least} or more" if num_drafts is None else f"{least}, as 'num_drafts' says,"
                raise InvalidParameterError(
                    f"'cu_num_logits' needs {needed} where request {request} ends, which begins at {first}, "
                    f"found {end}."
                )
        if rows is not None and offsets[-1] > rows:
            raise InvalidParameterError(
                f"'cu_num_logits' needs at most {rows} last, one for each draft and one more for each of the "
                f"{self.num_requests} requests, found {offsets[-1]}."
            )

    @property
    def _distributions(self) -> dict[str, Tensor]:
        named = {"draft_probs": self.draft_probs, "draft_logits": self.draft_logits}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def _ragged(self) -> dict[str, Tensor]:
        ids = {"draft_token_ids": self.draft_token_ids} if self.draft_token_ids.dim() == 1 else {}
        return ids | self._distributions

    def _check_ids(self) -> None:
        ids, offsets = self.draft_token_ids, self.cu_num_logits
        check_plain("draft_token_ids", ids, "Pass a tensor of ids, or use Drafts.from_lists.")
        check_plain("cu_num_logits", offsets, "Pass a tensor, or use Drafts.from_lists.")
        if ids.dim() not in (1, 2):
            found = list(ids.shape)
            raise InvalidInputError(f"'draft_token_ids' needs shape [L - B] or [B, K], found {found}.")
        check_integers("draft_token_ids", ids)
        if offsets.dim() != 1 or not offsets.shape[0]:
            raise InvalidInputError(f"'cu_num_logits' needs shape [B + 1], found {list(offsets.shape)}.")
        check_integers("cu_num_logits", offsets)
        if ids.dim() == 2 and ids.shape[0] != self.num_requests:
            raise InvalidInputError(
                f"'draft_token_ids' of two dimensions needs a row for each of the {self.num_requests} requests in "
                f"'cu_num_logits', found {ids.shape[0]}."
            )
        check_device_of("cu_num_logits", offsets.device, "'draft_token_ids'", ids.device)

    def _check_distributions(self) -> None:
        ids, probs, logits = self.draft_token_ids, self.draft_probs, self.draft_logits
        for name, tensor in self._distributions.items():
            check_plain(name, tensor, f"Pass torch.as_tensor({name}).")
        if len(self._distributions) > 1:
            raise InvalidInputError(
                "'drafts' needs draft_probs or draft_logits, found both. Pass one of them."
            )
        if probs is not None and not probs.is_floating_point():
            raise InvalidInputError(f"'draft_probs' needs a floating-point dtype, found {probs.dtype}.")
        if logits is not None and logits.dtype not in _DTYPES:
            needed = ", ".join(INPUT_DTYPES)
            raise InvalidInputError(f"'draft_logits' needs dtype {needed}, found {logits.dtype}.")
        for name, tensor in self._distributions.items():
            if tensor.dim() != 2 or tensor.shape[1] == 0:
                found = list(tensor.shape)
                raise InvalidInputError(f"'{name}' needs shape [L - B, V] with V >= 1, found {found}.")
            if ids.dim() == 1 and tensor.shape[0] != ids.shape[0]:
                raise InvalidInputError(
                    f"'{name}' needs a row for each of the {ids.shape[0]} draft_token_ids, "
                    f"found {tensor.shape[0]}."
                )
            check_device_of(name, tensor.device, "'draft_token_ids'", ids.device)

    def _check_counts(self, num_drafts: tuple[int, ...]) -> None:
        ids, total = self.draft_token_ids, sum(num_drafts)
        if len(num_drafts) != self.num_requests:
            raise InvalidParameterError(
                f"'num_drafts' needs a number for each of the {self.num_requests} requests in 'cu_num_logits', "
                f"found {len(num_drafts)}."
            )
        if ids.dim() == 2 and max(num_drafts, default=0) > ids.shape[1]:
            request = next(i for i, n in enumerate(num_drafts) if n > ids.shape[1])
            raise InvalidParameterError(
                f"'num_drafts' of request {request} needs an integer in [0, {ids.shape[1]}], the width of "
                f"'draft_token_ids', found {num_drafts[request]}."
            )
        for name, tensor in self._ragged.items():
            if tensor.shape[0] != total:
                raise InvalidInputError(
                    f"'{name}' needs {total} rows, the sum of 'num_drafts', found {tensor.shape[0]}."
                )

    def _most_drafts(self) -> int:
        """Return ``max_drafts``, or for -1 the host's upper bound."""
        ids, num_drafts = self.draft_token_ids, self.num_drafts
        if self.max_drafts != -1:
            return integer("max_drafts", self.max_drafts, None, max(num_drafts or (0,)), 2**62)
        if ids.dim() == 2:
            return ids.shape[1]
        if num_drafts is not None:
            return max(num_drafts, default=0)
        raise InvalidParameterError(
            "'max_drafts' needs to be known on the host, since it is the width of the result, found neither it nor "
            "'num_drafts'. Pass max_drafts=."
        )


def _first_rows(num_drafts: Iterable[int]) -> list[int]:
    return [0, *accumulate(count + 1 for count in num_drafts)]
