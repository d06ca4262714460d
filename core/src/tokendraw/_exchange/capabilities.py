"""What a sampler can do and what a request needs: two of the three sides of every negotiation.

Both are frozen dataclasses without behaviour beyond checking and comparing themselves, so that a decision about an
H100, an MI300X or a laptop can be computed, and tested, anywhere. :mod:`tokendraw._resolution.checks` holds the
comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from tokendraw._exchange.declared import among, at_least, check_fields

Operation: TypeAlias = Literal["sample", "verify"]
"""What a sampler is asked to do. ``verify`` is speculative decoding."""

LogprobsMode: TypeAlias = Literal[
    "raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs"
]
FilterOrder: TypeAlias = Literal["top_k_first", "joint"]
Filter: TypeAlias = Literal["top_k", "top_p", "min_p"]
Granularity: TypeAlias = Literal["per_row", "scalar"]
GumbelDtype: TypeAlias = Literal["fp32", "fp64"]
VerifyMode: TypeAlias = Literal["rejection", "coupled"]
DraftKind: TypeAlias = Literal["probs", "logits", "chosen"]
"""What a draft was drawn from, as the caller gives it: probabilities, logits, or nothing since it was not drawn."""
Seeding: TypeAlias = Literal["none", "launch", "counter"]
TieRule: TypeAlias = Literal["value", "exact_k"]
TieNeed: TypeAlias = TieRule | Literal["either"]
_Count: TypeAlias = Annotated[int, at_least(0)]

OPERATIONS: tuple[Operation, ...] = ("sample", "verify")
LOGPROBS_MODES: tuple[LogprobsMode, ...] = (
    "raw_logprobs",
    "raw_logits",
    "processed_logprobs",
    "processed_logits",
    "temperature_logprobs",
)
FILTER_ORDERS: tuple[FilterOrder, ...] = ("top_k_first", "joint")
GUMBEL_DTYPES: tuple[GumbelDtype, ...] = ("fp32", "fp64")
VERIFY_MODES: tuple[VerifyMode, ...] = ("rejection", "coupled")
DRAFT_KINDS: tuple[DraftKind, ...] = ("probs", "logits", "chosen")
INPUT_DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a sampler can do in one operation. The defaults promise nothing: advertise what you have tested.

    A capability that is advertised is tested by the conformance kit; one that is not is never asked for.
    """

    device_types: tuple[str, ...] | None = ("cpu",)
    """``cpu``, ``cuda`` (NVIDIA), ``rocm`` (AMD), ``mps``, ``xpu`` ...; None for any that torch has."""
    compute_capability: tuple[tuple[int, int], tuple[int, int] | None] | None = None
    """Least and largest CUDA compute capability: ``((8, 0), None)`` is 8.0 and later. None: any."""
    rocm_archs: tuple[str, ...] | None = None
    """ROCm architectures such as ``gfx942``. None: any."""
    min_sm_count: int = 0
    """Least number of streaming multiprocessors (NVIDIA)."""
    dtypes: tuple[str, ...] = ("float32",)
    """Dtypes of the logits, by their torch names."""
    logprobs_modes: tuple[LogprobsMode, ...] = ()
    filters: tuple[tuple[Filter, Granularity], ...] = ()
    """Filters that are applied, each with ``per_row`` or ``scalar`` (one value for the whole batch)."""
    filter_orders: tuple[FilterOrder, ...] = ("top_k_first",)
    tie_rule: TieRule = "value"
    """``value`` keeps every token tied with the last kept one; ``exact_k`` keeps exactly k."""
    seeding: Seeding = "none"
    """``counter``: seeds per row, as :mod:`tokendraw.philox` says; ``launch``: one seed a call; ``none``."""
    greedy: bool = False
    """Whether rows of temperature 0 may stand in a batch."""
    gumbel_dtypes: tuple[GumbelDtype, ...] = ("fp32",)
    valid_flag: bool = False
    """Whether ``SamplerOutput.valid`` tells rows with NaN, or without any finite logit, from the others."""
    graph_safe: bool = False
    """Whether a call may be captured in a CUDA graph and replayed."""
    sync_free: bool = False
    """Whether a call returns without waiting for the device."""
    batch_invariant: bool = False
    """Whether a seeded row's token is the same in any batch."""
    max_top_k: int | None = None
    max_vocab_size: int | None = None
    verify_modes: tuple[VerifyMode, ...] = ()
    """Of the operation ``verify``, as are all that follow."""
    draft_kinds: tuple[DraftKind, ...] = ()
    ragged_drafts: bool = False
    """Whether requests may have different numbers of drafts."""
    placeholder_drafts: bool = False
    """Whether an id outside [0, V) may stand for a draft that was not made."""


OF_VERIFY = ("verify_modes", "draft_kinds", "ragged_drafts", "placeholder_drafts")
"""Fields of ``Capabilities`` that speak of no other operation."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a sampler must do for the caller, whatever the rows of a batch ask for later.

    Seeds, greedy rows and filters are properties of rows: those are looked at batch by batch, and rows that
    the chosen sampler cannot serve go to its companion. A need is what no companion can mend.

    :raises InvalidParameterError: a ValueError: a field is not of the type that it declares, or no word of its list.
    """

    logprobs_mode: LogprobsMode = "raw_logprobs"
    """What rows get that ask for logprobs. For processed ones the default choice goes only to a sampler that
    returns them itself; beside an explicit choice without them, and for the other modes, a companion will do.
    """
    logprob_ranks: bool = True
    """Whether logprobs come with the drawn tokens' ranks. To count how many tokens reach the drawn one takes about one
    more read of the logits; False allows a sampler to leave ``LogprobsTensors.ranks`` None. That refuses no sampler.
    """
    filter_orders: tuple[FilterOrder, ...] = ("top_k_first",)
    gumbel_dtype: GumbelDtype = "fp32"
    dtype: Annotated[str, among(INPUT_DTYPES)] | None = None
    """Dtype of the logits by its torch name; None when not known yet."""
    vocab_size: Annotated[int, at_least(1)] | None = None
    valid_flag: bool = False
    graph_safe: bool = False
    sync_free: bool = False
    batch_invariant: bool = False
    seeding: Seeding = "none"
    """``counter`` asks for a sampler that serves seeded rows itself, without a companion."""
    tie_rule: TieNeed | None = None
    """None: whichever rule the sampler advertises. ``either`` lets it leave that rule for this caller, batch by batch,
    where kernels with the other one are faster.
    """
    max_logprobs: _Count | None = None
    """The most that ``SamplingParams.logprobs`` may be; None: any, up to all of the vocabulary. A batch that asks for
    more, or for all (-1) of a larger vocabulary, is refused before anything is launched or allocated.
    """

    def __post_init__(self) -> None:
        check_fields(self)
