"""The layout of 4-bit weights that the installed FlashInfer packs, and scales of activations."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import importlib_metadata

from tokendraw import InvalidInputError
from tokendraw.plugin import printable
from tokendraw_engine_ops.operations import Format as Format
from tokendraw_engine_ops.operations import Layout as Layout

if TYPE_CHECKING:
    from torch import Tensor

MODULE = "flashinfer.fused_moe"
SCALES, WEIGHTS = (f"interleave_moe_{what}_for_sm90_mixed_gemm" for what in ("scales", "weights"))
_LAYOUTS: dict[int, Layout] = {3: "v1", 5: "v2"}  # by the number of dimensions of their scales


@dataclass(frozen=True)
class FlashInferLayout:
    """The layout packed by the installed FlashInfer, or the reason for an unknown layout.

    :ivar layout: Name of the layout, ``v1`` or ``v2``; None if unknown.
    :ivar reason: Reason why the layout is unknown: needed against found; "" if known.
    """

    layout: Layout | None
    reason: str = ""


def layout_of_flashinfer() -> Layout | None:
    """Return the layout packed by the installed FlashInfer, by packing scales of an expert on the CPU.

    Two layouts have been released under one name and signature, which version numbers do not tell apart. The first
    call imports FlashInfer: seconds.

    :returns: None if FlashInfer is not installed, cannot be imported, has no such function, or packs into something
        else; :func:`probe_flashinfer` says which.
    """
    return probe_flashinfer().layout


def probe_flashinfer() -> FlashInferLayout:
    """Return the result of :func:`layout_of_flashinfer`, with a reason for None. Raises nothing."""
    try:
        import torch

        pack = getattr(importlib.import_module(MODULE), SCALES)
        dimensions = pack(torch.zeros(1, 64, 4, dtype=torch.uint8, device="cpu")).dim()
        if dimensions in _LAYOUTS:
            return FlashInferLayout(_LAYOUTS[dimensions])
        found = f"that it returns {dimensions} dimensions, not 3 (v1) or 5 (v2)"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an import that calls sys.exit must not end the program
        # A folder called flashinfer, such as one of a checkout, is a package without modules to Python.
        if isinstance(error, ModuleNotFoundError) and error.name in ("flashinfer", MODULE):
            found = f"no module {error.name}"
        elif isinstance(error, AttributeError) and error.name == SCALES:
            found = "no such function"
        else:
            words = f"{type(error).__name__}: {printable(str(error))}"
            found = f"that its import or a call of it raised {words}"
    return FlashInferLayout(None, f"needs {MODULE}.{SCALES}, found {found}")


def read_layout() -> tuple[Layout | None, bool]:
    """Read the layout from the source of the installed FlashInfer, without an import, and whether it tells."""
    try:
        distribution = importlib_metadata.distribution("flashinfer-python")
    except importlib_metadata.PackageNotFoundError:
        return None, False
    folder = Path(str(distribution.locate_file("flashinfer"))) / "fused_moe"
    names = ("__init__.py", "prepare.py", "core.py")
    exported, *sources = (
        path.read_text(encoding="utf-8") if (path := folder / name).is_file() else "" for name in names
    )
    if exported and not (SCALES in exported and WEIGHTS in exported):
        return None, True
    function = re.split(r"\n(?=[^\s)])", "".join(sources).partition(f"\ndef {SCALES}(")[2])[0]
    layouts: set[Layout | None] = set()
    for result in re.findall(r"^\s+return (.*)$", function, re.MULTILINE):
        sizes = re.fullmatch(r".*\.reshape\(((?!\*)[^()]*)\)", result)
        layouts.add(_LAYOUTS.get(sizes[1].count(",") + 1) if sizes else None)
    return (layout := layouts.pop() if len(layouts) == 1 else None), layout is not None


def shared_activation_scale(scale: Tensor, num_tokens: int) -> Tensor:
    """Return the common value of all entries of ``scale``, as [1], a copy of the same dtype on the same device.

    Tokens are quantized before they are routed, with one scale for all; a GEMM that knows scales of tokens too takes E
    scales of experts for these in a batch of E tokens. Entries are compared, so the call waits for the device: make it
    when weights are loaded, not in a step.

    :param scale: scales of experts or tokens, of any shape with at least one entry.
    :param num_tokens: tokens that are quantized together, from 0.
    :raises InvalidInputError: a ValueError: no tensor, no entries, or entries that differ; names the first that does.
    :raises InvalidParameterError: a ValueError: ``num_tokens`` is no number of tokens.
    """
    # Not above: the description of ops-flashinfer loads no torch.
    from tokendraw.plugin import check_plain, integer

    integer("num_tokens", num_tokens, None, 0, 2**62)
    check_plain("scale", scale)
    entries = scale.detach().reshape(-1)
    if not len(entries):
        raise InvalidInputError(f"'scale' needs at least one entry, found shape {list(scale.shape)}.")
    if len(entries) > 1:
        for (index,) in (entries != entries[0]).nonzero()[:1].tolist():
            raise InvalidInputError(
                f"'scale' needs {len(entries)} equal entries to scale {num_tokens} tokens together, found "
                f"{entries[index].item():.9g} as entry {index} and {entries[0].item():.9g} before it. "
                "Quantize the activations of all experts with one scale."
            )
    return entries[:1].clone()
