"""Calls of an operation whose record does not describe them: any arguments, whose tensors are left as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw.calls.call import Call, OutputCheck


class PlainCall(Call):
    """A call of a method by its name. Its arguments and output are not looked at; it goes whole."""

    __slots__ = ("_arguments", "_method", "_named")

    def __init__(self, method: str, *arguments: Any, **named: Any) -> None:
        self._method = method
        self._arguments = arguments
        self._named = named

    def check(self, device: torch.device, need: Any) -> None:
        return

    def tensors(self) -> dict[str, Tensor]:
        given = {f"argument {i}": value for i, value in enumerate(self._arguments)} | self._named
        return {name: value for name, value in given.items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        arguments = [tensors.get(f"argument {i}", value) for i, value in enumerate(self._arguments)]
        named = {name: tensors.get(name, value) for name, value in self._named.items()}
        return type(self)(self._method, *arguments, **named)

    def run(self, backend: Any) -> Any:
        return getattr(backend, self._method)(*self._arguments, **self._named)

    def output_check(self, need: Any) -> OutputCheck:
        return _anything


def _anything(output: object) -> None:
    return None
