"""Loads the sampler that replaces a sampler of vLLM, and keeps vLLM running if it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

import tokendraw
from tokendraw import Need, Sampler
from tokendraw.plugin import PluginInfo
from tokendraw.resolution import read_settings
from tokendraw_vllm import _engine, _parts
from tokendraw_vllm._parts import REFERENCE, Names, NamesOfFirst

_REFERENCE_PRIORITY = 0
"""Priority of plain PyTorch; those of compiled samplers and of kernels are higher."""

Result = TypeVar("Result")


@dataclass(eq=False)
class Replacement:
    """A sampler in place of a sampler of vLLM, and the parts of vLLM that it serves."""

    part: str
    """The replaced sampler of vLLM, without which no other part is served."""
    sampler: Sampler
    serves: set[str]
    seeds_every_row: bool
    """Whether rows without a user's seed may get one, at no cost."""
    is_specialised: bool = True
    """Whether the plugin's priority is above that of the reference in plain PyTorch."""
    by: str = ""
    """The plugin and vLLM, for the log."""
    processor: Any = None
    """Where editing is served: a provider of ``process_logits``."""

    def attempt(self, part: str, call: Callable[[], Result]) -> Result | None:
        """Return a call's result; None if it raises: then the part is vLLM's. Beside other ranks the process ends."""
        try:
            return call()
        except Exception as error:
            if part in self.serves:
                _parts.give_up(part, self.sampler.name, error)
            self.leave(part)
            return None

    def leave(self, part: str) -> None:
        """Leave a part to vLLM, or with the sampler all of them."""
        self.serves -= self.serves if part == self.part else {part}


def load(
    part: str,
    device: torch.device,
    need: Need,
    *,
    reference_is_faster: bool = False,
    prepare: Callable[[Replacement], object] = lambda loaded: None,
    names: NamesOfFirst = None,
) -> Replacement | None:
    """Load the sampler for a part of vLLM; None, with a line in the log, if vLLM's stays.

    Raises nothing, but ends the process where other ranks draw the same tokens.

    :param reference_is_faster: whether tokendraw's reference in plain PyTorch is quicker than the part.
    :param prepare: called with the replacement before it counts as loaded.
    """
    with _parts.vllm_stays_if_it_raises(part):
        if names is None and not reference_is_faster:
            _check_not_reference(device)
        sampler = tokendraw.load_sampler(_parts.chosen_names(names), device=device, need=need)
        version, info = _plugin_of(sampler.name)
        seeds_every_row = getattr(info.operations["sample"], "seeding", "none") == "counter"
        is_specialised = info.priority > _REFERENCE_PRIORITY
        by = f"{sampler.name} {version}, vLLM {_engine.version()}"
        loaded = Replacement(part, sampler, {part}, seeds_every_row, is_specialised, by)
        prepare(loaded)
        if _engine.is_tested():  # else the proof comes first
            _parts.log_replaced(part, by)
        return loaded
    return None


def choose(
    device: torch.device, need: Need, *, reference_is_faster: bool = False, verifies: bool = False
) -> Names:
    """Choose for several ranks: the names of the best loadable sampler, and of what verifies, where a plugin can."""
    if not reference_is_faster:
        _check_not_reference(device)
    sampler = tokendraw.load_sampler(device=device, need=need)
    if verifies:
        with contextlib.suppress(tokendraw.TokendrawError):
            sampler.prepare("verify")
    return sampler.choices


def _check_not_reference(device: torch.device) -> None:
    if read_settings().sampler is None and tokendraw.resolve(device=str(device)).chosen == REFERENCE:
        raise _parts.LeftAlone(
            f"'{REFERENCE}' is the best sampler for {device} here, and no quicker than vLLM's own. Install "
            f"{'tokendraw-cpu' if device.type == 'cpu' else 'tokendraw-triton-gumbel'}, or set "
            f"TOKENDRAW_SAMPLER={REFERENCE} to use it nevertheless"
        )


def _plugin_of(name: str) -> tuple[str, PluginInfo]:
    return next(
        (candidate.version, candidate.info)
        for candidate in tokendraw.discover()
        if candidate.name == name and candidate.info is not None
    )
