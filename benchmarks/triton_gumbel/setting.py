"""What every command shares: who is looked at and where, the head of its table, what it found."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tokendraw
from tokendraw import Drafts, Need, Sampler, SamplingMetadata
from tokendraw._exchange.row_limits import unserved
from tokendraw.operations.verify.limits import undrafted
from tokendraw.plugin import FILTER_ORDERS, GumbelDtype, LogprobsMode, VerifyMode
from tokendraw.resolution import detect_host, installed_version


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a command prints, and whether what was promised holds."""

    text: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Who is looked at, whom it is compared with, and on which device."""

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
        """Build a sampler by its name."""
        need = Need(filter_orders=FILTER_ORDERS, gumbel_dtype=gumbel, logprobs_mode=mode, logprob_ranks=ranks)
        return tokendraw.load_sampler(name, device=self.device, logprobs_mode=mode, need=need)

    @functools.cached_property
    def subject(self) -> Sampler:
        """The sampler that is looked at."""
        return self.load(self.sampler)

    @functools.cached_property
    def other(self) -> Sampler:
        """The one that it is compared with."""
        return self.load(self.reference)

    @property
    def head(self) -> str:
        """The machine, and the versions of what took part."""
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


def serves(sampler: Sampler, metadata: SamplingMetadata, vocab_size: int) -> str | None:
    """Why a sampler would leave these rows to its companion, or None: a companion's tokens prove nothing."""
    offered = sampler._calls.serving.capabilities
    lacking = None if offered is None else unserved(offered, metadata.facts, vocab_size)
    return None if lacking is None else f"{sampler.name} does not serve {lacking}"


def verifies(
    sampler: Sampler, drafts: Drafts, metadata: SamplingMetadata, vocab_size: int, mode: VerifyMode
) -> str | None:
    """Why a sampler would leave these drafts to another one, or None: as :func:`serves`."""
    serving = sampler._verifying.serving
    if serving.chosen.name != sampler.name:
        return f"{sampler.name} does not verify, {serving.chosen.name} does"
    offered = serving.capabilities
    lacking = None
    if offered is not None:
        lacking = unserved(offered, metadata.facts, vocab_size) or undrafted(offered, drafts, mode)
    return None if lacking is None else f"{sampler.name} does not verify {lacking}"


def configurations(name: str) -> tuple[dict[str, Any], Any, str]:
    """The tile configurations of a sampler by name, what forces one upon its calls, and why there are none, or ""."""
    module_name = f"tokendraw_{name.replace('-', '_')}.configurations"
    try:
        module: Any = importlib.import_module(module_name)
        table, forced = module.TABLE, module.forced
    except (ImportError, AttributeError) as error:
        return {}, None, f"{module_name} needs TABLE and forced, found {type(error).__name__}: {error}"
    if isinstance(table, dict) or hasattr(table, "items"):
        return {str(key): value for key, value in table.items()}, forced, ""
    return {str(value): value for value in table}, forced, ""


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table whose first ``words`` columns are flush left; the others are numbers."""
    rule = ["---" if place < words else "--:" for place in range(len(titles))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *rows))
