"""Imports torch at its first use, and words the error for a missing or a damaged torch."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import importlib_metadata

from tokendraw.errors.exceptions import SamplerUnavailableError
from tokendraw.errors.formatting import format_error, format_value
from tokendraw.errors.install_commands import NATIVE


def require_torch(who: str = "A sampler") -> ModuleType:
    """Import torch, or raise an error that names ``who`` as its user.

    :raises SamplerUnavailableError: it is not installed, or failed to import; says how, and where that torch lies.
    """
    try:
        import torch
    except Exception as error:  # a missing library is an OSError, a half-upgraded package anything
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            refusal = absence(who)
        else:
            refusal = damage(who, f"failing to import: {format_error(error)}")
        raise SamplerUnavailableError(refusal) from error
    if not hasattr(torch, "Tensor"):  # a folder, or a file of the user's own
        raise SamplerUnavailableError(
            f"{who} needs torch, found something else of that name{_location()}. Rename it, or run Python elsewhere."
        )
    return torch


def absence(who: str) -> str:
    """Word the error for a torch that is not installed."""
    has_native = any(importlib_metadata.Distribution.discover(name="tokendraw-native"))
    return (
        f"{who} needs torch, found it not installed; run {'`pip install torch`' if has_native else NATIVE}."
    )


def damage(who: str, what: str) -> str:
    """Word the error for an installed but unusable torch: ``failing to import: OSError: ...``."""
    return f"{who} needs torch, found it{_location()} {what}. Mend that, or reinstall torch."


def _location() -> str:
    """Write `` in '/.../torch'``; nothing for an unknown location."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # what is left of it in sys.modules has no specification
        spec = None
    if spec is None:
        return ""
    location = next(iter(spec.submodule_search_locations or ()), spec.origin)
    return f" in {format_value(location)}" if location else ""
