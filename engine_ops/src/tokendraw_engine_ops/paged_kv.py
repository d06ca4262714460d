"""Page metadata of a batch: the requirements of a step, and arithmetic between steps without waiting.

:func:`requirements` decides on the host, :func:`advance` and :func:`segment_query_indptr` compute on the device of
their arguments and can be captured in a CUDA graph. The plan itself is the operation ``plan_paged_kv``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from tokendraw import InvalidInputError
from tokendraw.plugin import check_device_of, check_dtype, check_flag, check_integers, check_vector, integer

HostSeqLens = Literal["none", "upper_bound", "sync"]
"""How the host has to know the lengths of the sequences; see :class:`Requirements`."""
LARGEST = 2**31 - 1


@dataclass(frozen=True, eq=False)
class PagedKVPlan:
    """The pages of a batch of B requests with W columns in the block table: int32 tensors on the same device.

    :ivar page_indptr: [B + 1]: 0, then the running sum of the pages of each request. Paged APIs name this
        ``cum_seq_lens_kv`` or ``paged_kv_indptr``. Pages are counted, where ragged APIs count tokens.
    :ivar last_page_len: [B]: tokens in the last page of each request, from 1 to the page size; 0 where the request has
        no tokens.
    :ivar page_indices: [B * W]: the pages of each request in succession, ``page_indptr[B]`` of them, then padding; None
        if not requested.
    """

    page_indptr: Tensor
    last_page_len: Tensor
    page_indices: Tensor | None = None

    @classmethod
    def empty(
        cls, num_requests: int, num_columns: int, *, device: Any = None, page_indices: bool = True
    ) -> Self:
        """Allocate unfilled buffers for ``plan(..., out=)`` of B requests and W columns, on the CPU by default."""
        # Three views of one allocation cost the host of a GPU less than three allocations. The pages come first, since
        # who reads them may want them aligned.
        sizes = (num_requests * num_columns if page_indices else 0, num_requests + 1, num_requests)
        memory = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        pages, page_indptr, last_page_len = memory.split_with_sizes(sizes)
        return cls(
            page_indptr=page_indptr, last_page_len=last_page_len, page_indices=pages if page_indices else None
        )


@dataclass(frozen=True)
class Requirements:
    """The needs of a step's attention metadata.

    :ivar host_seq_lens: Sequence lengths that the host has to know: ``none``; ``upper_bound``, the lengths that the
        host counts; ``sync``, the lengths on the device, for which the host waits.
    :ivar page_indices: Whether a kernel reads the flat list of pages in place of the block table.
    """

    host_seq_lens: HostSeqLens
    page_indices: bool


def requirements(
    *,
    num_prefills: int,
    num_decodes: int,
    prefill_on_device: bool,
    decode_on_device: bool,
    dcp: bool = False,
    causal: bool = True,
    num_speculative: int = 0,
    upper_bound_known: bool = False,
) -> Requirements:
    """Decide a step's requirements from the host's knowledge of the batch. Needs no device and no tensor.

    :param prefill_on_device: whether the attention kernel of prefills takes block table and lengths as device tensors.
    :param decode_on_device: the same for decodes.
    :param dcp: whether decode context parallelism divides the pages between ranks.
    :param num_speculative: drafts a request; with any, the host knows no length before the drafts are judged.
    :param upper_bound_known: whether the host keeps a bound of every length, which is the length where nothing is
        rejected.
    :raises InvalidParameterError: a count is negative or no integer, or a flag is no bool.
    """
    for name, value in list(locals().items()):
        if name.startswith("num_"):
            integer(name, value, None, 0, LARGEST)
        else:
            check_flag(name, value)
    page_indices = (num_prefills > 0 and not prefill_on_device) or (num_decodes > 0 and not decode_on_device)
    host_seq_lens: HostSeqLens = "sync"
    if causal and not dcp and not page_indices:
        host_seq_lens = "none"
    elif num_speculative == 0 and upper_bound_known:
        host_seq_lens = "upper_bound"
    return Requirements(host_seq_lens=host_seq_lens, page_indices=page_indices)


def advance(
    num_computed: Tensor, query_lens: Tensor, num_logits: Tensor, num_sampled: Tensor, next_query_lens: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the attended lengths of the next step, from the number of tokens kept by this step. Waits for nothing.

    All are [B] int32 on one device; so are the results, which are new tensors.

    :param num_computed: tokens in each request's cache before this step.
    :param query_lens: tokens that this step computed of it, its drafts among them.
    :param num_logits: rows of logits that it had in this step: its drafts and one more; 0 while it is in its prefill,
        where nothing is rejected and ``num_sampled`` does not count.
    :param num_sampled: tokens that this step gave it: ``num_accepted + 1`` of a verification; 1 without drafts.
    :param next_query_lens: tokens that the next step computes of it.
    :returns: tokens in the cache after this step, without those of rejected drafts; and ``seq_lens`` of the next step,
        which are these and its query.
    :raises InvalidInputError: a tensor has another shape, dtype or device.
    """
    for name, tensor in list(locals().items()):
        check_vector(name, tensor)
        check_dtype(name, tensor, torch.int32, f"Pass {name}.to(torch.int32).")
        if tensor.shape != num_computed.shape:
            raise InvalidInputError(
                f"'{name}' needs the shape of 'num_computed', {list(num_computed.shape)}, found {list(tensor.shape)}."
            )
        check_device_of(name, tensor.device, "'num_computed'", num_computed.device)
    rejected = (num_logits - num_sampled).masked_fill_(num_logits == 0, 0)
    kept = (num_computed + query_lens).sub_(rejected)
    return kept, kept + next_query_lens


def segment_query_indptr(query_indptr: Tensor, first: int) -> Tensor:
    """Compute the offsets of the queries of the requests from ``first`` on, counted from the first of them.

    :param query_indptr: [B + 1] integer: 0, then the running sum of the query lengths of the batch.
    :param first: from 0 to B.
    :returns: [B + 1 - first] of the same dtype: ``query_indptr[first + i] - query_indptr[first]``, a tensor of its own.
    :raises InvalidInputError: ``query_indptr`` is no vector of integers, or is empty.
    :raises InvalidParameterError: ``first`` is no integer from 0 to B.
    """
    check_vector("query_indptr", query_indptr)
    check_integers("query_indptr", query_indptr)
    if len(query_indptr) == 0:
        raise InvalidInputError("'query_indptr' needs shape [B + 1] with B >= 0, found [0].")
    first = integer("first", first, None, 0, len(query_indptr) - 1)
    return query_indptr[first:] - query_indptr[first : first + 1]
