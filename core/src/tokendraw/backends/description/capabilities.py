"""Hosts, capabilities of backends and needs of callers: the three sides of every negotiation.

All are frozen dataclasses without behaviour beyond checking themselves, so that a decision about an H100, an MI300X or
a laptop can be computed, and tested, anywhere. The declaration of a field is its only check: of a host and a need when
they are made, of capabilities when a plugin describes itself.

Every operation has a type of capabilities and of needs, derived from :class:`HostCapabilities` and :class:`HostNeed`.
Those of sampling, :class:`Capabilities` and :class:`Need`, stand here since other operations on rows of logits build
on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args

from tokendraw.backends.description.declared import Rule, among, at_least, check_fields, rule_of, some_of
from tokendraw.errors.formatting import is_printable, one_of

_Count: TypeAlias = Annotated[int, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class Host:
    """The facts about a device and the software around it, gathered by :func:`tokendraw.resolution.detect_host`.

    :ivar device_type: ``cpu``, ``cuda`` (NVIDIA), ``rocm`` (AMD), ``mps``, ``xpu`` ...
    :ivar name: Name of the device, as its driver gives it; "" if unknown.
    :ivar compute_capability: CUDA compute capability (major, minor) of an NVIDIA GPU; None on other devices.
    :ivar rocm_arch: Architecture of an AMD GPU, such as ``gfx942``; None on other devices.
    :ivar sm_count: Number of streaming multiprocessors or compute units; None if unknown.
    :ivar cuda_version: CUDA version of the installed driver.
    :raises InvalidParameterError: a ValueError: a field is not of the type that it declares.
    """

    device_type: str = "cpu"
    name: str = ""
    compute_capability: tuple[_Count, _Count] | None = None
    rocm_arch: str | None = None
    sm_count: _Count | None = None
    cuda_version: tuple[_Count, _Count] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        parts = []
        if self.compute_capability:
            parts.append("compute capability {}.{}".format(*self.compute_capability))
        if self.rocm_arch:
            parts.append(self.rocm_arch)
        if self.sm_count:
            parts.append(f"{self.sm_count} SMs")
        label = f"{self.device_type} ({self.name})" if self.name else self.device_type
        return ", ".join([label, *parts])


LogprobsMode: TypeAlias = Literal[
    "raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs"
]
FilterOrder: TypeAlias = Literal["top_k_first", "joint", "temperature_last"]
Filter: TypeAlias = Literal["top_k", "top_p", "min_p", "typical_p", "xtc"]
Moment: TypeAlias = Literal["count", "mean", "std", "log_mass", "entropy", "collision"]
Granularity: TypeAlias = Literal["per_row", "scalar"]
GumbelDtype: TypeAlias = Literal["fp32", "fp64"]
Seeding: TypeAlias = Literal["none", "launch", "counter"]
TieRule: TypeAlias = Literal["value", "exact_k"]
TieNeed: TypeAlias = TieRule | Literal["either"]
DraftKind: TypeAlias = Literal["probs", "logits", "chosen"]
"""Kind of a draft, by what the caller gives of its distribution: probabilities, logits, or nothing (not drawn)."""

LOGPROBS_MODES: tuple[LogprobsMode, ...] = get_args(LogprobsMode)
FILTER_ORDERS: tuple[FilterOrder, ...] = get_args(FilterOrder)
FILTERS: tuple[Filter, ...] = get_args(Filter)
MOMENTS: tuple[Moment, ...] = get_args(Moment)
GUMBEL_DTYPES: tuple[GumbelDtype, ...] = get_args(GumbelDtype)
INPUT_DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16")

MAX_WORD_CHARS = 100
"""Characters of a name, an architecture, a version or a range of versions."""


def are_words(value: Any) -> bool:
    """Whether a value is a tuple of short printable strings."""
    # One bare string is the usual slip: ("cuda") is no tuple.
    return isinstance(value, tuple) and all(is_printable(word, MAX_WORD_CHARS) for word in value)


_Number: TypeAlias = Annotated[
    int,
    Rule(("an integer from 0 to 2**63 - 1",), lambda value: type(value) is int and 0 <= value < 2**63),
]
_Words: TypeAlias = Annotated[
    tuple[str, ...],
    Rule(("a tuple of at least one short string",), lambda value: are_words(value) and len(value) > 0),
]
_Version: TypeAlias = tuple[_Number, _Number]
_Range: TypeAlias = Annotated[
    tuple[_Version, _Version | None],
    Rule(("((major, minor), (major, minor) or None)",), rule_of(tuple[_Version, _Version | None]).fits),
]
_FILTER_WORDS = f"{one_of(map(repr, FILTERS))}, {one_of(map(repr, get_args(Granularity)))}"
_Filters: TypeAlias = Annotated[
    tuple[tuple[Filter, Granularity], ...],
    Rule((f"a tuple of ({_FILTER_WORDS})",), rule_of(tuple[tuple[Filter, Granularity], ...]).fits),
]


@dataclass(frozen=True, kw_only=True)
class HostCapabilities:
    """A backend's requirements of the host, and its promises about waiting and CUDA graphs, for any operation.

    The defaults promise nothing: advertise what you have tested.

    :ivar device_types: Device types that are served: ``cpu``, ``cuda`` (NVIDIA), ``rocm`` (AMD), ``mps``, ``xpu`` ...;
        None: any device type of torch.
    :ivar compute_capability: Least and largest CUDA compute capability: ``((8, 0), None)`` is 8.0 and later. None: any.
    :ivar rocm_archs: ROCm architectures such as ``gfx942``. None: any.
    :ivar min_sm_count: Least number of streaming multiprocessors (NVIDIA).
    :ivar graph_safe: Whether a call may be captured in a CUDA graph and replayed.
    :ivar sync_free: Whether a call returns without waiting for the device.
    """

    device_types: _Words | None = ("cpu",)
    compute_capability: _Range | None = None
    rocm_archs: _Words | None = None
    min_sm_count: _Number = 0
    graph_safe: bool = False
    sync_free: bool = False


@dataclass(frozen=True, kw_only=True)
class Capabilities(HostCapabilities):
    """The capabilities of a sampler, beside those of :class:`HostCapabilities`.

    A capability that is advertised is tested by the conformance kit; one that is not is never asked for.

    :ivar dtypes: Dtypes of the logits, by their torch names.
    :ivar logprobs_modes: Modes of log-probabilities that are returned, of ``LOGPROBS_MODES``; (): none.
    :ivar logprob_token_ids: Whether ``LogprobsTensors.given_logprobs`` is filled, in each of these modes.
    :ivar filters: Filters that are applied, each with ``per_row`` or ``scalar`` (one value for the whole batch).
    :ivar row_moments: Moments of a row that are computed for :mod:`tokendraw.filters`, of ``MOMENTS``; (): rows with
        filters from moments are not served.
    :ivar filter_orders: Orders of the filters that are served, of ``FILTER_ORDERS``.
    :ivar tie_rule: ``value`` keeps every token tied with the last kept one; ``exact_k`` keeps exactly k.
    :ivar seeding: ``counter``: a seed per row, as :mod:`tokendraw.philox` says; ``launch``: a seed per call; ``none``:
        no seeds.
    :ivar greedy: Whether rows of temperature 0 may stand in a batch.
    :ivar gumbel_dtypes: Precisions of the noise that are offered: ``fp32``, ``fp64``.
    :ivar valid_flag: Whether ``SamplerOutput.valid`` tells rows with NaN, or without any finite logit, from the others.
    :ivar threshold: Whether ``SamplerOutput.threshold`` is filled where the need asks for it.
    :ivar batch_invariant: Whether a seeded row's token is the same in any batch.
    :ivar max_top_k: Largest top_k of a row that is served; None: any.
    :ivar max_vocab_size: Largest vocabulary V that is served; None: any.
    :ivar compiles_on_demand: Whether kernels are compiled when a batch first needs them. The proof draw then compiles
        as little as it can, or what the first batch will need, where the need says the dtype.
    """

    dtypes: Annotated[tuple[str, ...], some_of(INPUT_DTYPES)] = ("float32",)
    logprobs_modes: tuple[LogprobsMode, ...] = ()
    logprob_token_ids: bool = False
    filters: _Filters = ()
    row_moments: tuple[Moment, ...] = ()
    filter_orders: Annotated[tuple[FilterOrder, ...], some_of(FILTER_ORDERS)] = ("top_k_first",)
    tie_rule: TieRule = "value"
    seeding: Seeding = "none"
    greedy: bool = False
    gumbel_dtypes: Annotated[tuple[GumbelDtype, ...], some_of(GUMBEL_DTYPES)] = ("fp32",)
    valid_flag: bool = False
    threshold: bool = False
    batch_invariant: bool = False
    max_top_k: _Number | None = None
    max_vocab_size: _Number | None = None
    compiles_on_demand: bool = False


@dataclass(frozen=True, kw_only=True)
class HostNeed:
    """The needs of a caller of any operation.

    :ivar graph_safe: Whether calls have to be safe to capture in a CUDA graph and to replay.
    :ivar sync_free: Whether calls have to return without waiting for the device.
    :raises InvalidParameterError: a ValueError: a field is not of the type that it declares, or no word of its list.
    """

    graph_safe: bool = False
    sync_free: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Need(HostNeed):
    """A caller's conditions on a sampler, independent of the rows of later batches; with those of :class:`HostNeed`.

    Seeds, greedy rows and filters are properties of rows: those are looked at batch by batch, and rows that
    the chosen sampler cannot serve go to its companion. A need is what no companion can mend.

    :ivar logprobs_mode: Mode of the logprobs of rows that ask for some. For processed ones the default choice takes
        only a sampler that returns such logprobs without a companion; an explicit choice, and every other mode, may use
        a companion.
    :ivar logprob_ranks: Whether logprobs come with the drawn tokens' ranks. A rank costs about one more read of the
        logits. False allows a sampler to leave ``LogprobsTensors.ranks`` None and refuses no sampler.
    :ivar filter_orders: Orders of the filters that requests will use, of ``FILTER_ORDERS``; each has to be served.
    :ivar gumbel_dtype: Precision of the noise: ``fp32``, or ``fp64``, which computes in float64 throughout.
    :ivar dtype: Dtype of the logits by its torch name; None when not known yet.
    :ivar vocab_size: Vocabulary size V; None when not known yet.
    :ivar valid_flag: Whether ``SamplerOutput.valid`` has to tell rows with NaN, or without any finite logit, from the
        others.
    :ivar threshold: Whether every output carries the least kept value of each row, ``SamplerOutput.threshold``.
    :ivar batch_invariant: Whether a seeded row's token has to be the same in any batch.
    :ivar seeding: ``counter`` needs a sampler that serves seeded rows without a companion; ``none``: a companion may
        serve them.
    :ivar tie_rule: Tie rule that the sampler has to follow; None: the advertised one. ``either`` lets a sampler change
        the rule from batch to batch, where kernels with the other rule are faster.
    :ivar max_logprobs: Largest ``SamplingParams.logprobs``; None: any, up to the whole vocabulary. A batch that needs
        more, or all (-1) of a larger vocabulary, is refused before anything is launched or allocated.
    :raises InvalidParameterError: a ValueError: a field is not of the type that it declares, or no word of its list.
    """

    logprobs_mode: LogprobsMode = "raw_logprobs"
    logprob_ranks: bool = True
    filter_orders: tuple[FilterOrder, ...] = ("top_k_first",)
    gumbel_dtype: GumbelDtype = "fp32"
    dtype: Annotated[str, among(INPUT_DTYPES)] | None = None
    vocab_size: Annotated[int, at_least(1)] | None = None
    valid_flag: bool = False
    threshold: bool = False
    batch_invariant: bool = False
    seeding: Seeding = "none"
    tie_rule: TieNeed | None = None
    max_logprobs: _Count | None = None
