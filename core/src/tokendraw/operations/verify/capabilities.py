"""The protocol of verifiers, their capabilities, and the drafts left to a companion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

from tokendraw.backends.description.capabilities import Capabilities, DraftKind, Need
from tokendraw.calls import row_limits

if TYPE_CHECKING:
    import torch

    from tokendraw.operations.verify.output import VerifyOutput
    from tokendraw.output import SamplerOutput
    from tokendraw.parameters.drafts import Drafts
    from tokendraw.parameters.metadata import SamplingMetadata

VerifyMode: TypeAlias = Literal["rejection", "coupled"]

VERIFY_MODES: tuple[VerifyMode, ...] = ("rejection", "coupled")
DRAFT_KINDS: tuple[DraftKind, ...] = ("probs", "logits", "chosen")


@dataclass(frozen=True, kw_only=True)
class VerifyCapabilities(Capabilities):
    """The capabilities of a verifier: of sampling, and of drafts. The defaults promise nothing.

    Inherits the fields of :class:`Capabilities`.

    :ivar verify_modes: Ways in which drafts are verified, of ``VERIFY_MODES``.
    :ivar draft_kinds: Kinds of drafts, by what the drafts come with: probabilities, logits or nothing, of
        ``DRAFT_KINDS``.
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
class VerifierBackend(Protocol):
    """The verifier returned by ``tokendraw_build`` for ``verify``; the same object may serve ``sample`` too."""

    def verify(
        self,
        target_logits: torch.Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of a batch, as :class:`tokendraw.Sampler` describes.

        :param target_logits: [L, V] float32, bfloat16 or float16 on the device it was built for, any row stride. Not
            to be modified. The core has checked that drafts and metadata fit them.
        :param metadata: the parameters of the L rows.
        """
        ...

    def sample(
        self, logits: torch.Tensor, metadata: SamplingMetadata, *, draft: bool = False
    ) -> SamplerOutput:
        """Draw a token for each row, as :class:`tokendraw.plugin.SamplerBackend` does.

        :param draft: draw with noise that no verification at the same seeds and positions uses: the streams
            ``DRAFT_TOKEN`` and ``DRAFT_TILE`` of :mod:`tokendraw.philox` where rows have seeds.
        """
        ...


_DRAFTS_OF_KIND: dict[DraftKind, str] = {
    "probs": "drafts with probabilities",
    "logits": "drafts with logits",
    "chosen": "drafts that were not drawn",
}


def unsupported_kinds(capabilities: VerifyCapabilities, need: Need) -> tuple[str, ...]:
    """Name the kinds of rows and drafts not served by a verifier."""
    drafts = _unsupported(capabilities, VERIFY_MODES, DRAFT_KINDS, is_ragged=True, any_placeholder=True)
    return (*row_limits.beyond(capabilities, need), *drafts)


def unsupported_drafts(capabilities: VerifyCapabilities, drafts: Drafts, mode: VerifyMode) -> str | None:
    """Name the drafts of a batch perhaps not served by a verifier; None if all are served."""
    is_ragged, any_placeholder = not drafts.is_uniform, drafts.any_placeholder
    names = _unsupported(
        capabilities, (mode,), (drafts.kind,), is_ragged=is_ragged, any_placeholder=any_placeholder
    )
    return next(names, None)


def _unsupported(
    capabilities: VerifyCapabilities,
    modes: Iterable[VerifyMode],
    kinds: Iterable[DraftKind],
    *,
    is_ragged: bool,
    any_placeholder: bool,
) -> Iterator[str]:
    yield from (f"the mode {mode}" for mode in modes if mode not in capabilities.verify_modes)
    yield from (_DRAFTS_OF_KIND[kind] for kind in kinds if kind not in capabilities.draft_kinds)
    if is_ragged and not capabilities.ragged_drafts:
        yield "requests with different numbers of drafts"
    if any_placeholder and not capabilities.placeholder_drafts:
        yield "placeholders among drafts"
