"""Parts that the commands share: samplers and device, logits, the head of a table, the findings."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import tokendraw
from tokendraw import Need, Sampler
from tokendraw.plugin import FILTER_ORDERS, GumbelDtype, LogprobsMode
from tokendraw.resolution import detect_host, installed_version
from tokendraw_bench import Cell, Timer, make_inputs, markdown_table


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The text that a command prints, and whether the promise holds."""

    text: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The sampler that a command is about, the one that it is compared with, and the device."""

    sampler: str
    reference: str
    device: torch.device
    small: bool

    def load(
        self,
        name: str,
        *,
        mode: LogprobsMode = "raw_logprobs",
        gumbel: GumbelDtype = "fp32",
        ranks: bool = True,
    ) -> Sampler:
        """Load a sampler by its name, without a companion, whose tokens would prove nothing."""
        need = Need(filter_orders=FILTER_ORDERS, gumbel_dtype=gumbel, logprobs_mode=mode, logprob_ranks=ranks)
        return tokendraw.load_sampler(
            name, device=self.device, logprobs_mode=mode, need=need, companion=False
        )

    @functools.cached_property
    def subject(self) -> Sampler:
        """The sampler that the command is about."""
        return self.load(self.sampler)

    @functools.cached_property
    def other(self) -> Sampler:
        """The sampler that it is compared with."""
        return self.load(self.reference)

    @property
    def head(self) -> str:
        """The machine, and the versions of what took part, in a sentence."""
        distributions = [
            "tokendraw",
            "torch",
            *(f"tokendraw-{name}" for name in (self.sampler, self.reference)),
            "triton",
        ]
        found = {name: installed_version(name) for name in dict.fromkeys(distributions)}
        found["torch"] = torch.__version__
        versions = ", ".join(f"{name} {version}" for name, version in found.items() if version)
        return f"{detect_host(str(self.device))}: {versions}; {self.sampler} against {self.reference}."

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


def buffers_of(
    cell: Cell,
    device: torch.device,
    timer: Timer,
    make: Callable[[int, int, torch.Generator], Tensor] | None = None,
) -> list[Tensor]:
    """Make the buffers of a cell: of the family that the bench knows it by, or of rows that ``make`` makes."""
    dtype = getattr(torch, cell.dtype)
    count = timer.buffers(cell.nbytes)
    if make is None:
        return make_inputs(cell, device, count)
    generator = torch.Generator(device).manual_seed(1)
    return [make(cell.batch, cell.vocab_size, generator).to(dtype) for _ in range(count)]


def configurations(name: str) -> tuple[dict[str, Any], Any, str]:
    """Find the tile configurations of a sampler, what forces one upon its calls, and why there are none, or ""."""
    module_name = f"tokendraw_{name.replace('-', '_')}.host.tuning"
    try:
        module: Any = importlib.import_module(module_name)
        table, override = module.TABLE, module.override
    except (ImportError, AttributeError) as error:
        return {}, None, f"{module_name} needs TABLE and override, found {type(error).__name__}: {error}"
    if isinstance(table, dict) or hasattr(table, "items"):
        return {str(key): value for key, value in table.items()}, override, ""
    return {str(value): value for value in table}, override, ""


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Write a table whose first ``words`` columns are flush left; the others are numbers."""
    return markdown_table(titles, rows, in_words=titles[:words])
