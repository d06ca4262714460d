"""The base class of filters from moments, and the moments that a sampler computes of each row. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tokendraw.backends.description import Moment
from tokendraw.errors import InvalidParameterError, format_value

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowMoments:
    """Moments of ``y = (x - max x) / T`` over the finite logits of each row, with ``p = exp(y) / sum exp(y)``.

    Each is a tensor [rows] float32 on the device of the logits; None where no filter of the batch reads the moment. In
    rows with +inf, or with nothing above -inf, the values are unspecified and floors have no effect.

    :ivar count: Number n of finite logits.
    :ivar mean: Mean of y.
    :ivar std: Standard deviation of y over the population: the squares are divided by n.
    :ivar log_mass: log sum exp(y), so that ``log p = y - log_mass``.
    :ivar entropy: -sum p log p, in nats.
    :ivar collision: sum p^2, the probability that two draws agree.
    """

    count: Tensor = None  # type: ignore[assignment]  # a filter reads only the moments that it names
    mean: Tensor = None  # type: ignore[assignment]
    std: Tensor = None  # type: ignore[assignment]
    log_mass: Tensor = None  # type: ignore[assignment]
    entropy: Tensor = None  # type: ignore[assignment]
    collision: Tensor = None  # type: ignore[assignment]


class Filter:
    """A truncation rule that keeps the tokens with ``y >= floor``; subclass it, and register the class.

    The entry point of the class in the group ``tokendraw.filters`` has the filter's name. The class is called without
    arguments, once a process.

    :ivar name: Key in ``SamplingParams.filters``.
    :ivar moments: Names of the moments that :meth:`floor` reads, of ``tokendraw.plugin.MOMENTS``.
    :ivar summary: Line for ``tokendraw list``; "": the first line of the docstring, which ``python -OO`` drops.
    :ivar off: Value that keeps every token: a row with it, or with NaN, does not ask for the filter.
    """

    name: ClassVar[str]
    moments: ClassVar[tuple[Moment, ...]] = ()
    summary: ClassVar[str] = ""
    off: ClassVar[float] = 0.0

    def check(self, value: Any) -> None:
        """Refuse a bad value of a request; by default anything but a finite number.

        :raises InvalidParameterError: a ValueError that names the filter, what the value needs to be, and what it is.
        """
        self.check_range(value, -math.inf, math.inf, "a finite number")

    def check_range(self, value: Any, least: float, largest: float, needed: str) -> None:
        """Refuse anything but a finite number in [``least``, ``largest``].

        :param needed: the range in words, for the message.
        :raises InvalidParameterError: a ValueError that names the filter, the range and the value.
        """
        try:
            number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several elements
            number = math.nan
        if not (least <= number <= largest and math.isfinite(number)):
            raise InvalidParameterError(f"'{self.name}' needs {needed}, found {format_value(value)}.")

    def floor(self, moments: RowMoments, value: Tensor) -> Tensor:
        """Compute the least kept y of each row, by torch operations on [rows] that wait for nothing.

        NaN and -inf keep every token. Above 0 counts as 0, so that the largest token always stays. A sampler may pass
        some of the rows at a time, from several threads: the floor depends on the arguments alone, and changes none.

        :param value: [rows] float32: the filter's value in each row; ``off`` in rows that do not ask for it.
        :returns: [rows] float32.
        """
        raise NotImplementedError
