"""Imports torch at its first use, reads names of devices as torch writes them, and keeps calls out of its graphs."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import importlib_metadata

from tokendraw.errors import (
    NATIVE,
    InvalidParameterError,
    SamplerUnavailableError,
    format_error,
    format_value,
    nearest,
)


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
    command = "`pip install torch`" if has_native else NATIVE
    return f"{who} needs torch, found it not installed; run {command}."


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


_DEVICE_TYPES = (
    "cpu",
    "cuda",
    "hpu",
    "ipu",
    "maia",
    "mps",
    "mtia",
    "privateuseone",
    "ve",
    "vulkan",
    "xla",
    "xpu",
)
"""Torch's own types of devices that hold values and compute on them."""
_WITHOUT_INDEX = ("cpu", "mps")
_ALIASES = {**dict.fromkeys(("gpu", "nvidia", "rocm", "hip", "amd"), "cuda"), "metal": "mps", "tpu": "xla"}
_MIN_SIMILARITY = 0.7
"""Least similarity of a misspelled name: of three letters, one other letter is another device, as tpu and xpu are."""


def parse_device(device: str | None) -> tuple[str | None, int | None]:
    """Split a name such as ``cuda:1`` into type and index; None: there is no choice of one."""
    if device is None:
        return None, None
    match = re.fullmatch(r"([a-z][a-z0-9_]*?)(?::([0-9]{1,9}))?", device)
    found, advice = "", "one of those"
    if match is not None and _is_device_type(device_type := match[1]):
        index = None if match[2] is None else int(match[2])
        if not index or device_type not in _WITHOUT_INDEX:
            return device_type, None if device_type in _WITHOUT_INDEX else index
        found, advice = f", but there is one {device_type}", f"device={device_type!r}"
    elif (word := re.split("[^a-z]", device.strip().lower(), maxsplit=1)[0]) == "meta":
        found = ", which holds no values"
    elif near := _ALIASES.get(word) or nearest(word, _DEVICE_TYPES, likeness=_MIN_SIMILARITY):
        advice = f"device={near!r}" + (" for AMD GPUs too" if word in ("rocm", "hip", "amd") else "")
    raise InvalidParameterError(
        f"'device' needs a name such as cpu, cuda or cuda:1, found {format_value(device)}{found}. Pass {advice}."
    )


def _is_device_type(device_type: str) -> bool:
    """Return whether torch has devices of this type, or a distribution may bring it to torch, as Ascend's does npu."""
    if device_type in _DEVICE_TYPES or device_type == "meta" or device_type in _ALIASES:
        return device_type in _DEVICE_TYPES
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "_C"):
        return bool(torch._C._get_privateuse1_backend_name() == device_type)
    return bool(importlib_metadata.entry_points(group="torch.backends"))


# A compiled program breaks its graph at a public call, which looks at what only the host knows (who serves a batch,
# which kernel was compiled, whether a row asked for logprobs) and launches kernels: traced, all of that would be
# constants of the graph. Nothing here loads torch._dynamo, the front of torch.compile, which takes a second.

_P = ParamSpec("_P")
_T = TypeVar("_T")

REASON = (
    "tokendraw is not traced. Make this call outside of the function that fullgraph=True compiles, or leave out "
    "fullgraph=True: the graph then breaks at the call and continues behind it"
)


def untraced(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run ``function`` outside of every graph, like ``torch.compiler.disable``, but without loading torch._dynamo."""
    disabled: Callable[_P, _T] | None = None

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        try:  # dynamo compiles no part of a frame whose graph breaks inside of a try
            if disabled is None:
                disabled = _disabled(function)
            return disabled(*args, **kwargs)
        finally:
            pass

    # What dynamo looks for where a program that it traces makes a call: the graph breaks there, and the error of
    # fullgraph=True gives the reason. That of torch 2.6 names the function alone.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    call._torchdynamo_disable_msg = REASON  # type: ignore[attr-defined]
    return call


def made_untraced(cls: type[_T]) -> type[_T]:
    cls.__init__ = untraced(cls.__init__)  # type: ignore[method-assign]
    return cls


def _disabled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Switch dynamo off for this thread while ``function`` runs."""
    import torch

    try:
        from torch._C._dynamo.eval_frame import set_eval_frame
    except ImportError:  # it is private; torch.compiler.disable does the same in 4 us
        disabled: Callable[_P, _T] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return disabled

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        hook = None
        try:
            hook = set_eval_frame(None)
            return function(*args, **kwargs)
        finally:
            set_eval_frame(hook)

    return call
