"""A call of a method of an operation: its arguments, and what the core asks about them before and after it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw.errors.exceptions import TokendrawError
    from tokendraw.parameters.batch_facts import BatchFacts, RowKinds

OutputCheck: TypeAlias = Callable[[object], str | None]
"""Checks the form of a call's output, without its values: returns None, or what is needed and what was found."""

WHOLE = "every row is one"
"""Says why the rows of a call are not divided."""


class Call(ABC):
    """The arguments of one call. To make one checks nothing and costs next to nothing; :meth:`check` checks.

    An operation has one such class for each of its methods, whose parameters are those of ``__init__``.
    """

    __slots__ = ()

    told_in: ClassVar[str] = "its arguments"
    """Names where a caller says what a call does not hold, for the message of a refusal."""
    is_collective: ClassVar[bool] = False
    """Whether several processes make it together, so that the chosen provider alone serves it, in all of them."""

    @abstractmethod
    def check(self, device: torch.device, need: Any) -> None:
        """Refuse arguments that do not fit each other, the device or what was settled. Reads nothing on a device.

        :raises InvalidInputError: says what is needed and what was found.
        """

    def join(self, provider: str, need: Any, wrong: TokendrawError | None) -> None:
        """Meet the other processes of a collective call, before it runs.

        :param provider: name of who serves it here.
        :param wrong: what speaks against the call in this process.
        :raises TokendrawError: something speaks against it in one of them.
        """
        return

    def check_values(self) -> None:
        """Refuse values that are out of range, and wait for the device: with ``TOKENDRAW_DEBUG=1``.

        :raises InvalidParameterError: says what is needed and what was found.
        """
        return

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Name the tensors that a provider has to leave as they are."""

    @abstractmethod
    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """Copy the call with other tensors in the place of :meth:`tensors`."""

    def copied(self) -> Self:
        """Copy the call and the tensors that a provider may overwrite, so that another one can take it over."""
        return self.with_tensors({name: tensor.clone() for name, tensor in self.tensors().items()})

    def kind(self) -> Hashable:
        """Return the properties, apart from its size, that decide which of a provider's kernels serve this call."""
        return tuple([(tensor.dtype, tensor.shape[1:]) for tensor in self.tensors().values()])

    def lacking(self, capabilities: Any, rows: BatchFacts | None = None) -> str | None:
        """Say what of this call a provider cannot serve; None if it serves all of it.

        :param rows: of rows of this kind alone.
        """
        return None

    def undeclared(self, capabilities: Any) -> str | None:
        """Name the class of an argument that a provider has to declare, and does not; None if there is none."""
        return None

    @abstractmethod
    def run(self, backend: Any) -> Any:
        """Make the call."""

    @abstractmethod
    def output_check(self, need: Any) -> OutputCheck:
        """Return the check of the output's form, which keeps no tensor alive."""

    def wrong_values(self, output: Any, need: Any) -> str | None:
        """Say what is wrong with the values of an output of the right form; waits for the device.

        :param need: of the caller.
        """
        return None

    @property
    def num_rows(self) -> int:
        """Return the number of rows that :meth:`tokendraw.Sampler.stats` counts for it."""
        return 0

    def recall(self, key: object) -> OutputCheck | None:
        """Return the output check that :meth:`remember` was given for a call that differs in nothing checked.

        None: it was given none, or this call has to be looked at.
        """
        return None

    def remember(self, key: object, check: OutputCheck) -> None:
        """Keep the output check of a call that was checked and that the chosen provider served, for calls like it."""
        return

    def kinds_of_rows(self, capabilities: Any) -> RowKinds | str:
        """Return the kind of each row, so that rows can go to the companion, or say why they stay together.

        :param capabilities: of the chosen provider.
        """
        return WHOLE

    def split(self, kinds: RowKinds, lacking: Sequence[str | None], offered: tuple[Any, Any]) -> Any:
        """Find the rows that leave the chosen provider: a :class:`tokendraw.calls.splitting.Split`.

        :param lacking: for each of the kinds what of it is beyond the chosen provider, or None.
        :param offered: capabilities of the chosen provider and its companion; None: it serves whatever comes.
        """
        raise NotImplementedError

    def shared(self, split: Any) -> tuple[Self, Self]:
        """Divide the call between the chosen provider and its companion, which gets a copy of its rows."""
        raise NotImplementedError

    def merged(self, split: Any, chosen: Any, companion: Any) -> Any:
        """Put the outputs of both into one, in the order of the rows."""
        raise NotImplementedError
