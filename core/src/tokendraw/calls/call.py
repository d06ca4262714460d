"""The calls of an operation's methods: arguments, and the steps that the core takes before and after a backend runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw.backends.description.requirement import Requirement
    from tokendraw.calls.splitting import RowSplit
    from tokendraw.parameters.batch_facts import BatchFacts, RowKinds

OutputCheck: TypeAlias = Callable[[object], str | None]
"""Checks the form of a call's output, but not the values: returns None, or what is needed and what was found."""

NOT_BY_ROW = "every row is one"
"""Reason for which the rows of a call are not divided."""


class Call(ABC):
    """The arguments of one call. Making one checks nothing and costs next to nothing; :meth:`check` checks.

    An operation has one such class for each of its methods, whose parameters are those of ``__init__``.
    """

    __slots__ = ()

    hint_field: ClassVar[str] = "its arguments"
    """Names the argument by which a caller rules out properties of a call, for the message of a refusal."""
    may_fall_back: ClassVar[bool] = True
    """Whether another backend may serve the call after a failure; the first call of each signature is then copied."""

    @abstractmethod
    def check(self, device: torch.device, need: Any) -> None:
        """Refuse arguments that fit neither each other, nor the device, nor the need. Reads nothing on a device.

        :raises InvalidInputError: says what is needed and what was found.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Name the tensors that a backend has to leave unmodified."""

    @abstractmethod
    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """Copy the call with ``tensors`` in place of :meth:`tensors`."""

    @abstractmethod
    def run(self, backend: Any) -> Any:
        """Call a backend."""

    @abstractmethod
    def output_check(self, need: Any) -> OutputCheck:
        """Return the check of the output's form, which keeps no tensor alive."""

    def check_values(self) -> None:
        """Refuse values that are out of range, and wait for the device: with ``TOKENDRAW_DEBUG=1``.

        :raises InvalidParameterError: says what is needed and what was found.
        """
        return

    def wrong_values(self, output: Any, need: Any) -> str | None:
        """Say what is wrong with the values of an output of the right form; waits for the device.

        :param need: of the caller.
        """
        return None

    def copied(self) -> Self:
        """Copy the call and the tensors that a backend may overwrite, so that another backend can serve the call."""
        return self.with_tensors({name: tensor.clone() for name, tensor in self.tensors().items()})

    def signature(self) -> Hashable:
        """Return the properties that decide which kernels of a backend serve the call, apart from its size."""
        return tuple([(tensor.dtype, tensor.shape[1:]) for tensor in self.tensors().values()])

    def undeclared_class(self, capabilities: Any) -> str | None:
        """Name the class of an argument that a backend has to declare and does not; None if there is none."""
        return None

    @property
    def num_rows(self) -> int:
        """Return the number of rows that :meth:`tokendraw.Sampler.stats` counts for the call."""
        return 0


class RowCall(Call):
    """A call whose rows have parameters: checked once for the same metadata, and perhaps divided between backends."""

    __slots__ = ()

    is_sharded: ClassVar[bool] = False
    """Whether each rank of a group holds some columns of the logits."""

    @property
    @abstractmethod
    def facts(self) -> BatchFacts:
        """Return the properties that the rows may have."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Return the number V of token ids."""

    @abstractmethod
    def cached_check(self, key: object) -> OutputCheck | None:
        """Look up the output check of a call with the same metadata and form.

        :param key: identifies the selection of backends that served the earlier call.
        :returns: None if there was no such call, or if this call has to be checked again.
        """

    @abstractmethod
    def cache_check(self, key: object, check: OutputCheck) -> None:
        """Cache the output check of a call that was checked and that the selected backend served alone."""

    def row_kinds(self) -> RowKinds | str:
        """Return the kind of each row, by which rows go to the companion, or say why the rows stay together."""
        return NOT_BY_ROW

    def split(
        self,
        kinds: RowKinds,
        reasons: Sequence[str | None],
        unsupported: Sequence[tuple[Requirement, ...]],
    ) -> RowSplit:
        """Divide the rows between the selected backend and its companion.

        :param reasons: for each of the kinds the property that the selected backend does not support, or None.
        :param unsupported: the requirements that the selected backend does not meet, and those of its companion.
        """
        raise NotImplementedError

    def divided(self, split: RowSplit) -> tuple[Self, Self]:
        """Make the calls of the selected backend and of its companion, which gets a copy of its rows."""
        raise NotImplementedError

    def merged(self, split: RowSplit, output: Any, companion_output: Any) -> Any:
        """Merge the outputs of the selected backend and of its companion, in the order of the rows."""
        raise NotImplementedError
