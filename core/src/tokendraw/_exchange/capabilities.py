"""Capabilities of providers and needs of callers, two of the three sides of every negotiation.

All are frozen dataclasses without behaviour beyond checking themselves, so that a decision about an H100, an MI300X or
a laptop can be computed, and tested, anywhere. What a field may be stands in its declaration alone: a need is held
against it when it is made, capabilities when a plugin describes itself.

Every operation has a type of each, derived from :class:`HostCapabilities` and :class:`HostNeed`. Those of sampling,
:class:`Capabilities` and :class:`Need`, stand here since other operations on rows of logits build on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from tokendraw._exchange.declared import Rule, among, at_least, check_fields, some_of
from tokendraw._messages.words import is_printable

LogprobsMode: TypeAlias = Literal[
    "raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs"
]
FilterOrder: TypeAlias = Literal["top_k_first", "joint"]
Filter: TypeAlias = Literal["top_k", "top_p", "min_p"]
Granularity: TypeAlias = Literal["per_row", "scalar"]
GumbelDtype: TypeAlias = Literal["fp32", "fp64"]
Seeding: TypeAlias = Literal["none", "launch", "counter"]
TieRule: TypeAlias = Literal["value", "exact_k"]
TieNeed: TypeAlias = TieRule | Literal["either"]
DraftKind: TypeAlias = Literal["probs", "logits", "chosen"]
"""Kind of a draft, by what the caller gives of its distribution: probabilities, logits, or nothing (not drawn)."""

LOGPROBS_MODES: tuple[LogprobsMode, ...] = (
    "raw_logprobs",
    "raw_logits",
    "processed_logprobs",
    "processed_logits",
    "temperature_logprobs",
)
FILTER_ORDERS: tuple[FilterOrder, ...] = ("top_k_first", "joint")
GUMBEL_DTYPES: tuple[GumbelDtype, ...] = ("fp32", "fp64")
INPUT_DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16")

LONGEST_WORD = 100
"""Characters of a name, an architecture, a version or a range of versions."""
_LARGEST_NUMBER = 2**63 - 1


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_NUMBER


def are_words(value: Any) -> bool:
    """Whether a value is a tuple of short printable strings."""
    # One bare string is the usual slip: ("cuda") is no tuple.
    return isinstance(value, tuple) and all(is_printable(word, LONGEST_WORD) for word in value)


def _are_some_words(value: Any) -> bool:
    return are_words(value) and len(value) > 0


def _is_version(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value))


def _is_range(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return _is_version(value[0]) and (value[1] is None or _is_version(value[1]))


def _are_filters(value: Any) -> bool:
    known = [(name, how) for name in ("top_k", "top_p", "min_p") for how in ("per_row", "scalar")]
    return isinstance(value, tuple) and all(pair in known for pair in value)


_Count: TypeAlias = Annotated[int, at_least(0)]
_Number: TypeAlias = Annotated[int, Rule(("an integer from 0 to 2**63 - 1",), _is_number)]
_Words: TypeAlias = Annotated[
    tuple[str, ...], Rule(("a tuple of at least one short string",), _are_some_words)
]
_Dtype: TypeAlias = Annotated[str, among(INPUT_DTYPES)]
_Dtypes: TypeAlias = Annotated[tuple[str, ...], some_of(INPUT_DTYPES)]
_Range: TypeAlias = Annotated[
    tuple[tuple[int, int], tuple[int, int] | None],
    Rule(("((major, minor), (major, minor) or None)",), _is_range),
]
_Filters: TypeAlias = Annotated[
    tuple[tuple[Filter, Granularity], ...],
    Rule(("a tuple of ('top_k', 'top_p' or 'min_p', 'per_row' or 'scalar')",), _are_filters),
]


@dataclass(frozen=True, kw_only=True)
class HostCapabilities:
    """Requirements of a provider of any operation on the host, and promises of its calls there.

    The defaults promise nothing: advertise what you have tested.
    """

    device_types: _Words | None = ("cpu",)
    """``cpu``, ``cuda`` (NVIDIA), ``rocm`` (AMD), ``mps``, ``xpu`` ...; None for any that torch has."""
    compute_capability: _Range | None = None
    """Least and largest CUDA compute capability: ``((8, 0), None)`` is 8.0 and later. None: any."""
    rocm_archs: _Words | None = None
    """ROCm architectures such as ``gfx942``. None: any."""
    min_sm_count: _Number = 0
    """Least number of streaming multiprocessors (NVIDIA)."""
    graph_safe: bool = False
    """Whether a call may be captured in a CUDA graph and replayed."""
    sync_free: bool = False
    """Whether a call returns without waiting for the device."""


@dataclass(frozen=True, kw_only=True)
class Capabilities(HostCapabilities):
    """The capabilities of a sampler. The defaults promise nothing: advertise what you have tested.

    A capability that is advertised is tested by the conformance kit; one that is not is never asked for.
    """

    dtypes: _Dtypes = ("float32",)
    """Dtypes of the logits, by their torch names."""
    logprobs_modes: tuple[LogprobsMode, ...] = ()
    filters: _Filters = ()
    """Filters that are applied, each with ``per_row`` or ``scalar`` (one value for the whole batch)."""
    filter_orders: Annotated[tuple[FilterOrder, ...], some_of(FILTER_ORDERS)] = ("top_k_first",)
    tie_rule: TieRule = "value"
    """``value`` keeps every token tied with the last kept one; ``exact_k`` keeps exactly k."""
    seeding: Seeding = "none"
    """``counter``: seeds per row, as :mod:`tokendraw.philox` says; ``launch``: one seed a call; ``none``."""
    greedy: bool = False
    """Whether rows of temperature 0 may stand in a batch."""
    gumbel_dtypes: Annotated[tuple[GumbelDtype, ...], some_of(GUMBEL_DTYPES)] = ("fp32",)
    valid_flag: bool = False
    """Whether ``SamplerOutput.valid`` tells rows with NaN, or without any finite logit, from the others."""
    batch_invariant: bool = False
    """Whether a seeded row's token is the same in any batch."""
    max_top_k: _Number | None = None
    max_vocab_size: _Number | None = None
    vocab_parallel: bool = False
    """Whether ``sample`` takes a ``shard``: logits of which each rank of a group holds some columns."""
    metadata_classes: Annotated[tuple[str, ...], Rule(("a tuple of short strings",), are_words)] = ()
    """Dotted names of subclasses of ``SamplingMetadata`` whose own parameters are served, such as
    ``acme_tokendraw.metadata.AcmeMetadata``. Metadata of a class that a sampler does not name is never given to it.
    """
    compiles_on_demand: bool = False
    """Whether kernels are compiled when a batch first needs them. The proof draw then compiles as little as it can, or
    what the first batch will need, where the need says the dtype.
    """


@dataclass(frozen=True, kw_only=True)
class HostNeed:
    """The needs of a caller of any operation.

    :raises InvalidParameterError: a ValueError: a field is not of the type that it declares, or no word of its list.
    """

    graph_safe: bool = False
    sync_free: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Need(HostNeed):
    """Conditions that a sampler must meet for the caller, whatever the rows of a batch ask for later.

    Seeds, greedy rows and filters are properties of rows: those are looked at batch by batch, and rows that
    the chosen sampler cannot serve go to its companion. A need is what no companion can mend.

    :raises InvalidParameterError: a ValueError: a field is not of the type that it declares, or no word of its list.
    """

    logprobs_mode: LogprobsMode = "raw_logprobs"
    """Mode of the logprobs that rows get. For processed ones the default choice goes only to a sampler that
    returns them itself; beside an explicit choice without them, and for the other modes, a companion will do.
    """
    logprob_ranks: bool = True
    """Whether logprobs come with the drawn tokens' ranks. To count how many tokens reach the drawn one takes about one
    more read of the logits; False allows a sampler to leave ``LogprobsTensors.ranks`` None. That refuses no sampler.
    """
    filter_orders: tuple[FilterOrder, ...] = ("top_k_first",)
    gumbel_dtype: GumbelDtype = "fp32"
    dtype: _Dtype | None = None
    """Dtype of the logits by its torch name; None when not known yet."""
    vocab_size: Annotated[int, at_least(1)] | None = None
    valid_flag: bool = False
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
    vocab_parallel: bool = False
    """Whether calls come with a :class:`tokendraw.VocabShard`. Their rows go to no companion."""
