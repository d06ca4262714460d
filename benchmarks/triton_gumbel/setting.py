"""Samplers and device of a command, head of a table, and findings."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

import tokendraw
from tokendraw import Need, Sampler
from tokendraw.plugin import FILTER_ORDERS, GumbelDtype
from tokendraw.resolution import detect_host, installed_version
from tokendraw_bench import markdown_table


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The report of a command, and whether the promise holds."""

    text: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The sampler and the reference of a command, and the device."""

    sampler: str
    reference: str
    device: torch.device
    small: bool

    def load(self, name: str, gumbel: GumbelDtype = "fp32") -> Sampler:
        """Load a sampler by name, without a companion: tokens of a companion would prove nothing."""
        need = Need(filter_orders=FILTER_ORDERS, gumbel_dtype=gumbel)
        return tokendraw.load_sampler(name, device=self.device, need=need, companion=False)

    @functools.cached_property
    def subject(self) -> Sampler:
        """Load the sampler of the command."""
        return self.load(self.sampler)

    @functools.cached_property
    def other(self) -> Sampler:
        """Load the reference."""
        return self.load(self.reference)

    @property
    def head(self) -> str:
        """Describe the machine and the versions of the distributions in a sentence."""
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


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Write a table with ``words`` columns flush left, then numbers."""
    return markdown_table(titles, rows, in_words=titles[:words])
