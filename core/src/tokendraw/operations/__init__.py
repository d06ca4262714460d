"""The operations served by plugins: the core's own, a record and a line each, and those that distributions bring.

``sample`` draws a token for each row. ``verify`` accepts or rejects the drafts of speculative decoding, and draws a
token more. ``score`` computes the log-probabilities of given tokens. ``process_logits`` is in :mod:`tokendraw.edits`.

Nothing else in the core knows an operation by its name. Entry points of the group ``tokendraw.operations`` are looked
for when a name is asked for that is none of the core's own, and when all operations are listed. Imports no torch.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from tokendraw.backends.description import (
    DRAFT_KINDS,
    VERIFY_MODES,
    Capabilities,
    DraftKind,
    HostCapabilities,
    Need,
    Operation,
    Requirement,
    VerifyMode,
)
from tokendraw.backends.discovery.discover import find_extensions, sources
from tokendraw.backends.discovery.entry_points import OPERATION_GROUP
from tokendraw.backends.resolution import checks
from tokendraw.backends.resolution.candidate import FIRST_PARTY_OPERATIONS, Extension, State
from tokendraw.calls.call import LOGPROBS, ROW_REQUIREMENTS, SEEDED
from tokendraw.errors import (
    InvalidParameterError,
    PluginError,
    format_value,
    how_to_install,
    one_of,
    type_name,
)

if TYPE_CHECKING:
    from torch import Tensor

    from tokendraw.output import SamplerOutput, ScoreOutput, VerifyOutput
    from tokendraw.parameters.drafts import Drafts
    from tokendraw.parameters.metadata import SamplingMetadata


RECORDS: dict[str, str] = {
    "sample": "tokendraw.operations:SAMPLE",
    "verify": "tokendraw.operations:VERIFY",
    "score": "tokendraw.operations:SCORE",
    "process_logits": "tokendraw.edits:OPERATION",
}


def operation_names() -> tuple[str, ...]:
    """List the operations that plugins can serve: the core's own in the order of the registry, then all others."""
    return (*RECORDS, *_installed(*sources()))


def installed_operations() -> tuple[Extension, ...]:
    """List every operation that another distribution brings, sorted by name, with its state and reason."""
    return tuple(record for record, _ in _look())


def find_operation(name: str) -> Operation:
    """Look up an operation.

    :raises InvalidParameterError: there is none of that name, or it cannot be used; says which there are, or why not.
    """
    if isinstance(name, str) and name in RECORDS:
        own: Operation = pkgutil.resolve_name(RECORDS[name])
        return own
    if isinstance(name, str) and (found := _find(name)) is not None:
        return found
    for record in installed_operations():
        if record.name == name and record.state is not State.AVAILABLE:
            raise InvalidParameterError(
                f"The operation {record.name!r} of {record.distribution} is {record.state}: {record.reason}."
            )
    advice = ". Pass one of these."
    if isinstance(name, str) and (owner := FIRST_PARTY_OPERATIONS.get(name)):
        advice = f", which the distribution {owner} brings; run {how_to_install(owner)}."
    raise InvalidParameterError(f"'operation' needs {one_of(operation_names())}, found {name!r}{advice}")


def capabilities_type(name: str) -> type[HostCapabilities]:
    """Look up the type of capabilities in an operation; of an unknown operation only those of the host are read."""
    if name not in RECORDS and _find(name) is None:
        return HostCapabilities
    return find_operation(name).capabilities


def is_own(operation: Operation) -> bool:
    """Whether it is an operation of the core, which ``TOKENDRAW_SAMPLER`` and the configuration's ``sampler`` bind."""
    return operation.name in RECORDS


def _find(name: str) -> Operation | None:
    if name not in _installed(*sources()):
        _installed.cache_clear()  # it may have been installed meanwhile
    return _installed(*sources()).get(name)


@functools.lru_cache(maxsize=4)
def _installed(variables: object, path: object) -> dict[str, Operation]:
    return {record.name: operation for record, operation in _look() if operation is not None}


def _look() -> list[tuple[Extension, Operation | None]]:
    owners = {**dict.fromkeys(RECORDS, "tokendraw"), **FIRST_PARTY_OPERATIONS}
    return find_extensions(OPERATION_GROUP, _checked, owners)


def _checked(record: Any, name: str, value: str) -> Operation:
    if not isinstance(record, Operation):
        raise PluginError(f"{value!r} needs to be a tokendraw.plugin.Operation, found {type_name(record)}")
    if record.name != name:
        found = format_value(record.name)
        raise PluginError(f"{value!r} needs the name of its entry point, {name!r}, found {found}")
    return record


# The records of the operations on rows of logits.


@dataclass(frozen=True, kw_only=True)
class VerifyCapabilities(Capabilities):
    """The capabilities of a verifier: of sampling, and of drafts. The defaults promise nothing.

    Inherits the fields of :class:`Capabilities`.

    :ivar verify_modes: Ways in which drafts are verified, of ``VERIFY_MODES``.
    :ivar draft_kinds: Kinds of drafts, by what they come with, of ``DRAFT_KINDS``: probabilities, logits or nothing.
    :ivar ragged_drafts: Whether requests may have different numbers of drafts.
    :ivar placeholder_drafts: Whether an id outside [0, V) may stand for a draft that was not made.
    """

    verify_modes: tuple[VerifyMode, ...] = ()
    draft_kinds: tuple[DraftKind, ...] = ()
    ragged_drafts: bool = False
    placeholder_drafts: bool = False

    @classmethod
    def of(cls, sampling: Capabilities, **fields: Any) -> Self:
        """Copy the capabilities of sampling to verification, except for ``fields``."""
        return cls(**{**vars(sampling), **fields})


@runtime_checkable
class SamplerBackend(Protocol):
    """The sampler returned by ``tokendraw_build`` for ``sample``.

    It and the backends of the other operations on rows get logits [rows, V] float32, bfloat16 or float16 on the device
    that they were built for, with any row stride, and parameters on the same device. The core has checked all of this.
    Inputs are not to be modified. One object may serve several operations.
    """

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw a token for each row, as :meth:`tokendraw.Sampler.sample` describes."""


@runtime_checkable
class VerifierBackend(Protocol):
    """The verifier returned by ``tokendraw_build`` for ``verify``, see :class:`SamplerBackend`."""

    def verify(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of a batch, as :meth:`tokendraw.Sampler.verify` describes.

        :param metadata: the parameters of the L rows.
        """

    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, draft: bool = False) -> SamplerOutput:
        """Draw a token for each row.

        :param draft: draw with noise that no verification at the same seeds and positions uses: the streams
            ``DRAFT_TOKEN`` and ``DRAFT_TILE`` of :mod:`tokendraw.philox` where rows have seeds.
        """


@runtime_checkable
class ScorerBackend(Protocol):
    """The scorer returned by ``tokendraw_build`` for ``score``, see :class:`SamplerBackend`."""

    def score(self, logits: Tensor, token_ids: Tensor, metadata: SamplingMetadata) -> ScoreOutput:
        """Compute the log-probability of a token for each row, as :meth:`tokendraw.Sampler.score` describes.

        :param token_ids: [rows] integer, on the same device; an id outside [0, V) is padding.
        :param metadata: the parameters of the rows. ``facts.max_logprobs`` None counts as 0.
        """


_KIND_WORDS: dict[DraftKind, str] = {
    "probs": "drafts with probabilities",
    "logits": "drafts with logits",
    "chosen": "drafts that were not drawn",
}


def _of_drafts(
    kind: str, is_supported: Callable[[VerifyCapabilities], bool], is_asked: Callable[[Any], bool]
) -> Requirement:
    """Make a requirement of verifications; a call that draws a token or a draft for each row does not have it."""
    return Requirement(
        kind=kind,
        is_supported=lambda capabilities, need: is_supported(capabilities),
        is_asked=lambda call, capabilities: hasattr(call, "drafts") and is_asked(call),
    )


def _of_mode(mode: VerifyMode) -> Requirement:
    return _of_drafts(f"the mode {mode}", lambda c: mode in c.verify_modes, lambda call: call.mode == mode)


def _of_kind(kind: DraftKind) -> Requirement:
    words = _KIND_WORDS[kind]
    return _of_drafts(words, lambda c: kind in c.draft_kinds, lambda call: call.drafts.kind == kind)


DRAFT_REQUIREMENTS: tuple[Requirement, ...] = (
    *map(_of_mode, VERIFY_MODES),
    *map(_of_kind, DRAFT_KINDS),
    _of_drafts(
        "requests with different numbers of drafts",
        lambda c: c.ragged_drafts,
        lambda call: not call.drafts.is_uniform,
    ),
    _of_drafts(
        "placeholders among drafts", lambda c: c.placeholder_drafts, lambda call: call.drafts.any_placeholder
    ),
)
"""The requirements of drafts, which a verification has beside those of rows."""


SAMPLE = Operation(
    name="sample",
    module="tokendraw.operations.row_methods:SAMPLING",
    capabilities=Capabilities,
    need=Need,
    methods=("sample",),
    checks=checks.ROW_CHECKS,
    default_checks=(checks.processed_logprobs,),
    requirements=ROW_REQUIREMENTS,
)
VERIFY = Operation(
    name="verify",
    module="tokendraw.operations.row_methods:VERIFICATION",
    capabilities=VerifyCapabilities,
    need=Need,
    methods=("verify", "sample"),
    checks=checks.ROW_CHECKS,
    default_checks=(checks.processed_logprobs,),
    requirements=(*ROW_REQUIREMENTS, *DRAFT_REQUIREMENTS),
)
SCORE = Operation(
    name="score",
    module="tokendraw.operations.row_methods:SCORING",
    capabilities=Capabilities,
    need=Need,
    methods=("score",),
    checks=(checks.dtype, checks.vocab_size, checks.filter_orders, checks.tie_rule, checks.logprobs_mode),
    requirements=tuple(each for each in ROW_REQUIREMENTS if each not in (SEEDED, LOGPROBS)),
)
