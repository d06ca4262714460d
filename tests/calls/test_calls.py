"""Calls of an operation unknown to the core, by its record: routed, checked, refused."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from calling import CPU
from fake_candidates import LAPTOP
from tokendraw import InvalidInputError, PluginError, SamplerUnavailableError
from tokendraw.calls.dispatch import dispatch
from tokendraw.calls.negotiator import Negotiator
from tokendraw.calls.provider import Provider
from tokendraw.calls.selection import LoadedBackend, Selection
from tokendraw.plugin import Call, HostCapabilities, HostNeed, Operation, Requirement
from tokendraw.resolution import Choice, Resolution


@dataclass(frozen=True, kw_only=True)
class ScaleCapabilities(HostCapabilities):
    negative: bool = False


class Scale(Call):
    """Rows times a factor."""

    __slots__ = ("factor", "rows")

    def __init__(self, rows: torch.Tensor, factor: float = 2.0) -> None:
        self.rows, self.factor = rows, factor

    def check(self, device: torch.device, need: Any) -> None:
        if self.rows.dim() != 1:
            raise InvalidInputError(f"'rows' needs one dimension, found {self.rows.dim()}.")

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"rows": self.rows}

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> "Scale":
        return Scale(tensors["rows"], self.factor)

    def run(self, backend: Any) -> Any:
        return backend.scale(self.rows, self.factor)

    def output_check(self, need: Any) -> Any:
        return lambda output: (
            None if isinstance(output, torch.Tensor) else f"a tensor, found {type(output).__name__}"
        )


NEGATIVE = Requirement(
    kind="negative factors",
    is_supported=lambda capabilities, need: capabilities.negative,
    is_asked=lambda call, capabilities: call.factor < 0,
)
OPERATION = Operation(
    name="scale",
    module="",
    capabilities=ScaleCapabilities,
    methods=("scale",),
    requirements=(NEGATIVE,),
)


class ScaleProvider(Provider):
    _operations = (OPERATION,)

    def scale(self, rows: torch.Tensor, factor: float = 2.0) -> Any:
        return dispatch(self._negotiator, OPERATION, Scale(rows, factor))


@dataclass
class Scaler:
    plus: float = 0.0
    act: Any = None

    def scale(self, rows: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        if self.act is not None:
            self.act(rows)
        return rows * factor + self.plus


def provider(chosen: Any, companion: Any = None, *, debug: bool = False) -> Any:
    resolution = Resolution(
        operation="scale",
        host=LAPTOP,
        need=HostNeed(),
        choice=Choice(),
        chosen="acme",
        companion=None,
        decisions=(),
    )
    backends = (("acme", chosen, ScaleCapabilities()), ("other", companion, ScaleCapabilities(negative=True)))
    backend, other = (LoadedBackend.of(OPERATION, *each, HostNeed()) for each in backends)
    selection = Selection(resolution=resolution, backend=backend, companion=companion and other)
    return ScaleProvider(Negotiator(CPU, HostNeed(), debug=debug, selections=[selection]))


ROWS = torch.tensor([1.0, 2.0])


def spoil(rows: torch.Tensor) -> None:
    rows.zero_()


def test_what_is_beyond_the_chosen_one_goes_whole_to_the_companion() -> None:
    both = provider(Scaler(100.0), Scaler())
    assert both.scale(ROWS).tolist() == [102.0, 104.0]
    assert both.scale(ROWS, factor=-1.0).tolist() == [-1.0, -2.0]
    with pytest.raises(
        SamplerUnavailableError, match="'acme' cannot serve negative factors, which this batch may hold"
    ):
        provider(Scaler()).scale(ROWS, -1.0)


def test_arguments_are_checked_before_anybody_is_called() -> None:
    with pytest.raises(InvalidInputError, match="'rows' needs one dimension, found 2"):
        provider(Scaler(act=pytest.fail)).scale(ROWS[None])


def test_an_output_of_the_wrong_form_is_the_plugins_fault() -> None:
    class Wrong:
        def scale(self, rows: torch.Tensor, factor: float) -> int:
            return 3

    with pytest.raises(PluginError) as error:
        provider(Wrong()).scale(ROWS)
    assert str(error.value) == (
        "'acme' needs to return a tensor, found int. Mend the plugin, or set TOKENDRAW_DISABLE=acme."
    )


def test_with_the_switch_a_change_of_an_input_is_found() -> None:
    with pytest.raises(
        PluginError, match="'acme' needs to leave rows unmodified, found 2 of 2 elements changed"
    ):
        provider(Scaler(act=spoil), debug=True).scale(torch.ones(2))


def test_an_operation_without_a_warmup_has_nothing_to_warm() -> None:
    idle = provider(Scaler())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert idle.warmup() == 0.0
    assert idle.stats() == {}
