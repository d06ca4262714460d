"""The frozen records of a negotiation: hosts, capabilities, needs, a plugin's description of itself, operations.

They have no behaviour beyond checking themselves, so that a decision about an H100 or a laptop can be computed, and
tested, anywhere. The declaration of a field is its only check: of a host and a need when they are made, of capabilities
when a plugin describes itself: ``Need(batch_invariant="no")`` is true for Python, a misspelt word never matches.
The types of sampling stand here since other operations on rows of logits build on them.
The rest of the core never asks for an operation's name. Importing a record imports neither torch nor a backend.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
import operator
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from tokendraw.errors import InvalidParameterError, format_value, is_printable, nearest, one_of

_YES_OR_NO = {
    **dict.fromkeys(("yes", "true", "on", "1"), True),
    **dict.fromkeys(("no", "false", "off", "0"), False),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """The permitted values of a field. Within ``Annotated`` the rule replaces the check of the type."""

    needed: tuple[str, ...]
    """The alternatives in words."""
    fits: Callable[[Any], bool]
    words: tuple[str, ...] = ()
    """Words that the value may be, of which a message names the nearest."""


def at_least(least: int) -> Rule:
    def fits(value: Any) -> bool:
        is_whole = type(value) is int or (isinstance(value, numbers.Integral) and not isinstance(value, bool))
        return is_whole and value >= least

    return Rule((f"an integer >= {least}",), fits)


def among(words: tuple[str, ...]) -> Rule:
    return Rule(tuple(map(repr, words)), lambda value: isinstance(value, str) and value in words, words)


def some_of(words: tuple[str, ...]) -> Rule:
    is_word = among(words).fits

    def fits(value: Any) -> bool:
        return isinstance(value, tuple) and len(value) > 0 and all(map(is_word, value))

    return Rule((f"a tuple of at least one of {one_of(map(repr, words))}",), fits, words)


def check_fields(record: Any) -> None:
    names, values_of, rules = _rules(type(record))  # type: ignore[arg-type]
    for name, value, rule in zip(names, values_of(record), rules, strict=True):
        if not rule.fits(value):
            raise _misfit(type(record), name, rule, value, f"Pass one, or leave out {name}=.")


def rules_of(record: type) -> dict[str, Rule]:
    names, _, rules = _rules(record)
    return dict(zip(names, rules, strict=True))


@functools.cache
def _rules(record: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[Rule, ...]]:
    """Return names, a function that reads all values at once (facts of every batch are checked), and rules."""
    hints = get_type_hints(record, include_extras=True)
    names = tuple(field.name for field in fields(record))
    return names, operator.attrgetter(*names), tuple(rule_of(hints[name]) for name in names)


def read_field(record: type, name: str, text: str) -> Any:
    """Read a field's value from text: ``8``, ``true``, ``none``, a word, or words separated by commas."""
    rule = rules_of(record).get(name)
    if rule is None:
        raise InvalidParameterError(
            f"'{name}' needs {one_of(rules_of(record))}, found no such field of {record.__name__}. Name one of these."
        )
    readings: list[Any] = [text]
    with contextlib.suppress(ValueError):
        readings.append(int(text))
    readings += [value for word, value in {**_YES_OR_NO, "none": None}.items() if word == text.lower()]
    for value in (*readings, tuple(text.split(","))):
        if rule.fits(value):
            return value
    raise _misfit(record, name, rule, text, "Give one.")


def _misfit(record: type, name: str, rule: Rule, value: object, mend: str) -> InvalidParameterError:
    needed, advice = one_of(rule.needed), _advice(rule, value) or mend
    found = format_value(value)
    return InvalidParameterError(f"'{name}' of {record.__name__} needs {needed}, found {found}. {advice}")


def rule_of(hint: Any) -> Rule:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next(rule for rule in arguments if isinstance(rule, Rule))
    if origin is Literal:
        return among(arguments)
    if origin in (Union, UnionType):
        return functools.reduce(_either, map(rule_of, arguments))
    if origin is tuple:
        return _tuple_of(arguments)
    # A plugin's own subclass may declare what it likes.
    return _PLAIN.get(hint, Rule(("anything",), lambda value: True))


def _either(one: Rule, other: Rule) -> Rule:
    needed, words = one.needed + other.needed, one.words + other.words
    return Rule(needed, lambda value: one.fits(value) or other.fits(value), words)


def _tuple_of(arguments: tuple[Any, ...]) -> Rule:
    if arguments[-1] is Ellipsis:
        rule = rule_of(arguments[0])
        return Rule(
            (f"a tuple of {one_of(rule.needed)}",),
            lambda value: isinstance(value, tuple) and all(map(rule.fits, value)),
            rule.words,
        )
    rules = [rule_of(argument) for argument in arguments]
    return Rule(
        (f"a tuple ({', '.join(one_of(rule.needed) for rule in rules)})",),
        lambda value: (
            isinstance(value, tuple)
            and len(value) == len(rules)
            and all(rule.fits(part) for rule, part in zip(rules, value, strict=True))
        ),
    )


_PLAIN: dict[type, Rule] = {
    bool: Rule(("True or False",), lambda value: isinstance(value, bool)),
    str: Rule(("a string",), lambda value: isinstance(value, str)),
    NoneType: Rule(("None",), lambda value: value is None),
}


def _advice(rule: Rule, value: object) -> str:
    if rule is _PLAIN[bool] and (near := _YES_OR_NO.get(str(value).lower())) is not None:
        return f"Pass {near}."
    if rule.needed[0].startswith("a tuple of") and isinstance(value, (str, list)):
        words = (value,) if isinstance(value, str) else tuple(value)
        if rule.fits(words):
            return f"Pass {words!r}."
    found = value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value
    if near_word := nearest(str(found).removeprefix("torch."), rule.words):
        return f"Pass {near_word!r}, the nearest."
    return "Pass one of these." if rule.words else ""


# The records.

_Count: TypeAlias = Annotated[int, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class Host:
    """A device and the software around it, as found by :func:`tokendraw.resolution.detect_host`.

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
VerifyMode: TypeAlias = Literal["rejection", "coupled", "block"]

LOGPROBS_MODES: tuple[LogprobsMode, ...] = get_args(LogprobsMode)
FILTER_ORDERS: tuple[FilterOrder, ...] = get_args(FilterOrder)
FILTERS: tuple[Filter, ...] = get_args(Filter)
MOMENTS: tuple[Moment, ...] = get_args(Moment)
GUMBEL_DTYPES: tuple[GumbelDtype, ...] = get_args(GumbelDtype)
DRAFT_KINDS: tuple[DraftKind, ...] = get_args(DraftKind)
VERIFY_MODES: tuple[VerifyMode, ...] = get_args(VerifyMode)
INPUT_DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16")

MAX_WORD_CHARS = 100
"""Characters of a name, an architecture, a version or a range of versions."""


def are_words(value: Any) -> bool:
    # One bare string is the usual slip: ("cuda") is no tuple.
    return isinstance(value, tuple) and all(is_printable(word, MAX_WORD_CHARS) for word in value)


_Number: TypeAlias = Annotated[
    int, Rule(("an integer from 0 to 2**63 - 1",), lambda value: type(value) is int and 0 <= value < 2**63)
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

    :ivar device_types: Device types that are served: ``cpu``, ``cuda`` (NVIDIA), ``rocm`` (AMD), ``mps``...; None: any.
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
    :ivar row_moments: Moments of a row for :mod:`tokendraw.filters`, of ``MOMENTS``; (): no filters from moments.
    :ivar filter_orders: Orders of the filters that are served, of ``FILTER_ORDERS``.
    :ivar tie_rule: ``value`` keeps every token tied with the last kept one; ``exact_k`` keeps exactly k.
    :ivar seeding: ``counter``: a seed per row, as in :mod:`tokendraw.philox`; ``launch``: one per call; ``none``: none.
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
        only a sampler that returns these itself; an explicit choice, and every other mode, may use a companion.
    :ivar logprob_ranks: Whether logprobs come with the drawn tokens' ranks. A rank costs about one more read of the
        logits. False allows a sampler to leave ``LogprobsTensors.ranks`` None and refuses no sampler.
    :ivar filter_orders: Orders of the filters that requests will use, of ``FILTER_ORDERS``; each has to be served.
    :ivar gumbel_dtype: Precision of the noise: ``fp32``, or ``fp64``, which computes in float64 throughout.
    :ivar dtype: Dtype of the logits by its torch name; None when not known yet.
    :ivar vocab_size: Vocabulary size V; None when not known yet.
    :ivar valid_flag: Whether ``SamplerOutput.valid`` has to be False in rows with NaN, or without any finite logit.
    :ivar threshold: Whether every output carries the least kept value of each row, ``SamplerOutput.threshold``.
    :ivar batch_invariant: Whether a seeded row's token has to be the same in any batch.
    :ivar seeding: ``counter`` needs a sampler that serves seeded rows itself; ``none``: a companion may serve them.
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


# A plugin.

API_VERSION = 1
"""The newest plugin API that this core speaks. A plugin that names a later one is ``incompatible``."""
OLDEST_API_VERSION = 1
"""The oldest one, that of plugins made for the last two minor versions. Earlier plugins are ``incompatible`` too."""

NAME_RULE = "at most 64 lowercase letters and digits, a letter first, with single hyphens between them"
"""Rule of a plugin's name, which stands in comma-separated lists, in shells and in tables."""
MAX_PRIORITY = 1_000_000
"""Bound of a priority on both sides of 0, and of an API version."""

_NAME = re.compile(r"(?=.{1,64}\Z)[a-z][a-z0-9]*(-[a-z0-9]+)*")


def is_name(text: str) -> bool:
    """Whether users can select a plugin by this name, as :data:`NAME_RULE` says."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class Release:
    """A range of upstream releases with a note for users: from ``since`` up to the next row.

    Rows about one operation, or about all, ascend and begin with the release ``0``, so that every version has one.

    :ivar since: First release that the row is about, such as ``0.6.16.post3``, with its pre-releases and builds.
    :ivar says: Behaviour of these releases, to follow a version number: ``packs layout v1``; the reason of a refusal.
    :ivar operation: Operation that the row is about; None: all operations.
    :ivar refused: Whether these releases are not used.
    :ivar change: Instruction to a user who moves to these releases: ``packed weights have to be packed again``.
    """

    since: str
    says: str
    operation: str | None = None
    refused: bool = False
    change: str = ""


@dataclass(frozen=True)
class Upstream:
    """The library driven by a plugin, looked up in the metadata of its distribution, never imported.

    :ivar distribution: Name of the distribution, such as ``flashinfer-python``.
    :ivar versions: PEP 440 specifier of the versions that work, such as ``>=0.6.7,<0.8``.
    :ivar tested: Versions that the plugin was tested with by its authors, or PEP 440 ranges of them.
    :ivar releases: Known releases, a row each. Without any row, all versions in the range are used.
    :ivar found: Findings in the files of the installed version by operation, worded like ``Release.says``, which win.
    """

    distribution: str
    versions: str
    tested: tuple[str, ...] = ()
    releases: tuple[Release, ...] = ()
    found: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """A plugin's description of itself, as data.

    It is the same on every machine that has the same files installed: a plugin may look at those of its upstream, and
    at nothing else. Texts are one printable line: a name, a version or an architecture of 100 characters, others 500.

    :ivar name: Name that users select, that of the entry point: lowercase letters, digits and single hyphens.
    :ivar api_version: Version of the plugin API that the plugin is written for, ``tokendraw.plugin.API_VERSION``.
    :ivar priority: From -1000000 to 1000000; a higher one is preferred. native has 0, specialised kernels 10 to 90.
    :ivar operations: Capabilities by the name of an operation, each of the type that the operation names.
    :ivar upstream: Library that the plugin draws with, and its versions; None: none.
    :ivar summary: Describes the plugin in one line, for ``tokendraw list``.
    :ivar verified: Hardware on which the plugin's authors have run it, for ``tokendraw show``.
    :ivar kernels: Origin of the kernels on this machine, for ``tokendraw show``: prebuilt, or the name of the compiler.
    :ivar expected_failures: Reason by the name of a property of the conformance kit (``tokendraw check --list``) that
        the plugin is known to fail, such as ``acme issue 12: keeps k of the tokens tied with the k-th``.
    """

    name: str
    api_version: int
    priority: int
    operations: Mapping[str, HostCapabilities]
    upstream: Upstream | None = None
    summary: str = ""
    verified: str = ""
    kernels: str = ""
    expected_failures: Mapping[str, str] = field(default_factory=dict)


# An operation. Resolution compares all of its requirements, a call only those that the backend does not meet.

Check: TypeAlias = Callable[[Any, Host, Any], str | None]
"""Compares (capabilities, host, need), purely: None, or in words what is needed and what was found."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Requirement:
    """A property of rows or calls, supported by some backends.

    :ivar kind: Words for the rows or calls that have the property; may name fields, as ``{need.logprobs_mode}``.
    :ivar is_supported: Compares (capabilities, need): whether a backend supports the property.
    :ivar is_asked: Compares (call, capabilities): whether a call may have the property, for a backend that does not
        support it. A part of a batch is passed as :class:`tokendraw.calls.call.RowGroup`.
    :ivar reason: Words for a call that is refused, such as ``top_k above {capabilities.max_top_k}``; "": ``kind``.
    :ivar concerns_call: Whether the property belongs to the call, so that all of its rows go to a single backend.
    :ivar is_named_first: Whether a refusal names the property before other unsupported properties of the call.
    :ivar is_settled: Whether a need rules out calls with the property, so that no companion is sought for them.
    """

    kind: str
    is_supported: Callable[[Any, Any], bool]
    is_asked: Callable[[Any, Any], bool]
    reason: str = ""
    concerns_call: bool = False
    is_named_first: bool = False
    is_settled: Callable[[Any], bool] = lambda need: False


def first_reason(unsupported: tuple[Requirement, ...], call: Any, capabilities: Any) -> str | None:
    """Name the first unsupported property of a call; None: all are supported."""
    for requirement in unsupported:
        if requirement.is_asked(call, capabilities):
            return (requirement.reason or requirement.kind).format(capabilities=capabilities)
    return None


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A task for plugins.

    :ivar name: Name by which plugins offer the operation and callers load it.
    :ivar module: Name of the module, or ``module:object``, with ``prove``, ``CALLS`` and ``PROVIDER`` for methods here.
    :ivar capabilities: Dataclass of the capabilities of a backend; descriptions are checked against its fields.
    :ivar need: Dataclass of the needs of a caller; can be made without arguments.
    :ivar methods: Methods that the object from ``tokendraw_build`` has to have.
    :ivar checks: Checks beyond those of the host, in the order in which their reasons are given.
    :ivar default_checks: Checks for the default choice; an explicit choice with a companion may fail them.
    :ivar requirements: Properties of rows and calls that a backend may not support; a companion serves these.
    """

    name: str
    module: str
    capabilities: type[HostCapabilities] = HostCapabilities
    need: type[HostNeed] = HostNeed
    methods: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    default_checks: tuple[Check, ...] = ()
    requirements: tuple[Requirement, ...] = ()

    def prove(self, backend: Any, capabilities: Any, device: Any, need: Any) -> None:
        """Make a call with a known outcome.

        :raises PluginError: the backend's answer is wrong.
        """
        self._implementation().prove(backend, capabilities, device, need)

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """Return the :class:`tokendraw.calls.call.Call` of each method of a provider, by the method's name."""
        calls: Mapping[str, Callable[..., Any]] = self._implementation().CALLS
        return calls

    def provider(self) -> type[Any]:
        """Return the class of the objects from :func:`tokendraw.load`."""
        provider: type[Any] = self._implementation().PROVIDER
        return provider

    def functions(self) -> Mapping[str, Any]:
        """Return the ``TensorFunction`` of tokendraw-engine-ops of each method; {} where they are none."""
        return getattr(self._implementation(), "FUNCTIONS", {})

    def _implementation(self) -> Any:
        return pkgutil.resolve_name(self.module)

    @property
    def proof(self) -> str:
        """Names the proof in reasons."""
        return "the proof draw" if issubclass(self.capabilities, Capabilities) else "the proof call"

    @property
    def served(self) -> str:
        """Names the unit for a companion: ``rows`` of logits for a sampler, else whole ``calls``."""
        return "rows" if issubclass(self.capabilities, Capabilities) else "calls"

    def unsupported(self, capabilities: Any, need: Any) -> tuple[Requirement, ...]:
        """List the unmet requirements of a backend, in the order for refusals."""
        missing = [each for each in self.requirements if not each.is_supported(capabilities, need)]
        return tuple(sorted(missing, key=lambda requirement: not requirement.is_named_first))

    def unsupported_kinds(self, capabilities: Any, need: Any) -> tuple[str, ...]:
        """Name the kinds of rows or calls for a companion, in the order of the requirements."""
        return tuple(each.kind.format(need=need) for each in self._open(capabilities, need))

    def covers(self, companion: Any, capabilities: Any, need: Any) -> bool:
        """Whether a companion serves every row or call beyond a backend.

        :param companion: capabilities of the companion.
        :param capabilities: capabilities of the backend.
        """
        missing, open_requirements = self._open(companion, need), self._open(capabilities, need)
        if any(each.concerns_call for each in open_requirements):
            return not missing
        return not set(missing) & set(open_requirements)

    def _open(self, capabilities: Any, need: Any) -> list[Requirement]:
        """List the unmet requirements of a backend, as far as the need allows such calls."""
        possible = (each for each in self.requirements if not each.is_settled(need))
        return [each for each in possible if not each.is_supported(capabilities, need)]
