"""Calls of an operation that the core does not have, by what its record says of them: routed, watched, refused."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fake_candidates import LAPTOP
from routing import CPU
from tokendraw import InvalidInputError, PluginError, SamplerUnavailableError
from tokendraw.calls.calls import Calls
from tokendraw.calls.routing import BuiltProvider, Serving
from tokendraw.calls.session import Session
from tokendraw.plugin import Call, HostCapabilities, HostNeed, Operation
from tokendraw.providers.provider import Provider
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

    def lacking(self, capabilities: ScaleCapabilities, rows: Any = None) -> str | None:
        return None if self.factor >= 0 or capabilities.negative else "negative factors"

    def run(self, backend: Any) -> Any:
        return backend.scale(self.rows, self.factor)

    def output_check(self, need: Any) -> Any:
        return lambda output: (
            None if isinstance(output, torch.Tensor) else f"a tensor, found {type(output).__name__}"
        )


def operation(calls: Any) -> Operation:
    return Operation(
        name="scale",
        summary="",
        capabilities=ScaleCapabilities,
        need=HostNeed,
        methods=("scale",),
        prove=lambda *given: None,
        calls=calls,
    )


@dataclass
class Scaler:
    plus: float = 0.0
    act: Any = None

    def scale(self, rows: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        if self.act is not None:
            self.act(rows)
        return rows * factor + self.plus


def provider(
    chosen: Any, companion: Any = None, *, debug: bool = False, calls: Any = lambda: {"scale": Scale}
) -> Any:
    about = operation(calls)
    resolution = Resolution(
        operation="scale",
        host=LAPTOP,
        need=HostNeed(),
        choice=Choice(),
        chosen="acme",
        companion=None,
        decisions=(),
    )
    serving = Serving(
        resolution=resolution,
        chosen=BuiltProvider("acme", chosen),
        companion=companion and BuiltProvider("other", companion),
        capabilities=ScaleCapabilities(),
        companion_capabilities=ScaleCapabilities(negative=True),
    )
    session = Session(CPU, HostNeed(), debug=debug)
    return Provider(session, about, Calls(session, about, serving))


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


@pytest.mark.parametrize("calls", [lambda: {"scale": Scale}, None], ids=["told", "not told"])
def test_with_the_switch_a_change_of_an_input_is_found(calls: Any) -> None:
    name = "argument 0" if calls is None else "rows"
    with pytest.raises(
        PluginError, match=f"'acme' needs to leave {name} unmodified, found 2 of 2 elements changed"
    ):
        provider(Scaler(act=spoil), debug=True, calls=calls).scale(torch.ones(2))


def test_of_calls_that_the_record_does_not_tell_any_arguments_pass() -> None:
    plain = provider(Scaler(), calls=None)
    assert plain.scale(ROWS, factor=3.0).tolist() == [3.0, 6.0]
    assert plain.scale(rows=ROWS, factor=3.0).tolist() == [3.0, 6.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plain.warmup() == 0.0
    assert plain.stats() == {}
