"""Reads the logits of ``tokendraw sample``, on disk or on standard input, or refuses the file in a sentence.

The libraries of the two formats do it, numpy and safetensors. No code in a file is ever run: arrays are read without
pickles. Torch is imported when logits are read.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tokendraw.backends.description.capabilities import INPUT_DTYPES
from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import nearest, one_of

if TYPE_CHECKING:
    from torch import Tensor

ENDINGS = (".npy", ".safetensors")
_REMOVED = {
    ".npz": "numpy.save each array as .npy",
    ".pt": "save the tensor with safetensors.torch.save_file",
    ".pth": "save the tensor with safetensors.torch.save_file",
}
"""What to do in place of formats of the last release, whose readers unpickle or unzip."""
_NAMES_SHOWN = 8


class LogitsFileError(TokendrawError):
    """A file does not hold logits; the message names the file, the need and the content in one line."""


@dataclass(frozen=True)
class LogitsFile:
    """Logits with their name and dtype in the file.

    :ivar logits: [B, V] float32, bfloat16 or float16 on the CPU.
    :ivar tensor: Name of the tensor inside the file; None if it has no name.
    :ivar dtype: Dtype in the file by its torch name. ``logits`` has the same, but float32 in place of float64.
    """

    logits: Tensor
    tensor: str | None
    dtype: str


def on_disk(path: Path) -> None:
    """Check that a file exists and has an ending that can be read."""
    ending = path.suffix.lower()
    if not path.is_file():
        content = (
            "a directory" if path.is_dir() else "nothing there" if not path.exists() else "something else"
        )
        _refuse(str(path), f"needs to be a file, found {content}. Check the path.")
    if ending not in ENDINGS:
        content = f"the ending '{path.suffix}'" if ending else "no ending"
        instead = f": {_REMOVED[ending]}" if ending in _REMOVED else ""
        _refuse(str(path), f"needs the ending {one_of(ENDINGS)}, found {content}. Convert it{instead}.")


def read_logits(path: Path, tensor: str | None = None) -> LogitsFile:
    """Read the logits in ``path``, a .npy or .safetensors file, or ``-`` for one on standard input.

    :raises LogitsFileError: it holds none.
    """
    if path != Path("-"):
        on_disk(path)
        return _read(str(path), path, path.suffix.lower(), tensor)
    if sys.stdin is None or sys.stdin.isatty():
        _refuse("standard input", "needs logits, found no file behind it. Redirect or pipe one into it.")
    with tempfile.TemporaryDirectory() as folder:
        received = Path(folder, "logits")
        with received.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        with received.open("rb") as file:
            ending = ".npy" if file.read(6) == b"\x93NUMPY" else ".safetensors"
        return _read("standard input", received, ending, tensor)


def _read(name: str, path: Path, ending: str, tensor: str | None) -> LogitsFile:
    import torch

    library = _optional("numpy" if ending == ".npy" else "safetensors", name)
    try:
        if ending == ".npy":
            if tensor is not None:
                _refuse(
                    name, f"holds one array without a name, but '{tensor}' was asked for. Leave --tensor out."
                )
            # Mapped: a header that lies about the shape costs no memory.
            array = library.load(path, mmap_mode="r", allow_pickle=False)
            if array.dtype.kind != "f" or array.dtype.itemsize > 8:
                _refuse(
                    name,
                    f"needs float32, float16 or float64 values, found {array.dtype}. Save the logits as one of these "
                    "(bfloat16 fits into .safetensors).",
                )
            values = torch.from_numpy(library.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
        else:
            with library.safe_open(path, framework="pt", device="cpu") as file:
                tensor = _pick(name, list(file.keys()), tensor)
                values = file.get_tensor(tensor)
    except LogitsFileError:
        raise
    except PermissionError as error:
        _refuse(name, f"cannot be read: {error.strerror}. Check its permissions.", error)
    except Exception as error:  # which one of a damaged file depends on its library
        size = path.stat().st_size
        _refuse(
            name,
            f"needs to be a complete {ending} file of numbers, found {size} bytes that are not. Write it again.",
            error,
        )
    return _rows(name, values, tensor)


def _rows(name: str, values: Tensor, tensor: str | None) -> LogitsFile:
    """Check shape and dtype, and lay out the rows; +inf wins every draw, so float64 has to fit float32."""
    shape, dtype = list(values.shape), dtype_name(values.dtype)
    message = None
    if dtype not in (*INPUT_DTYPES, "float64"):
        message = f"{one_of(INPUT_DTYPES)} values, found {dtype}. Save the logits as one of these."
    elif len(shape) not in (1, 2):
        message = f"shape [V] or [B, V], found rank {len(shape)}, shape {shape}. Save the rows to draw from."
    elif 0 in shape:
        message = f"at least one row and one token, found shape {shape}. Write it again."
    if message is not None:
        _refuse(name, f"needs {message}")
    rows = values.detach().reshape(-1, shape[-1])
    if dtype == "float64":
        lost = rows[rows.float().isinf() & rows.isfinite()]
        if lost.numel():
            found = f"{lost[0].item():.3g} in float64"
            _refuse(name, f"needs values within float32, found {found}. Scale the logits.")
        rows = rows.float()
    return LogitsFile(rows, tensor, dtype)


def _pick(name: str, names: Sequence[str], tensor: str | None) -> str:
    listing = ", ".join(f"'{each}'" for each in names[:_NAMES_SHOWN])
    if len(names) > _NAMES_SHOWN:
        listing += f" and {len(names) - _NAMES_SHOWN} more"
    if not names:
        _refuse(name, "needs a tensor, found none in it. Write it again.")
    if tensor is None and len(names) > 1:
        _refuse(name, f"needs a choice between its tensors {listing}. Pick one with --tensor.")
    if tensor is not None and tensor not in names:
        near = nearest(tensor, names)
        advice = "Pick one of them" if near is None else f"Try --tensor {near}"
        _refuse(name, f"needs a tensor '{tensor}', found {listing}. {advice}.")
    return names[0] if tensor is None else tensor


def _optional(library: str, name: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        _refuse(
            name,
            f"needs the library '{library}' to be read, found it not installed. Run `pip install {library}`.",
            error,
        )


def _refuse(name: str, reason: str, cause: Exception | None = None) -> NoReturn:
    raise LogitsFileError(f"'{name}' {reason}") from cause


def dtype_name(dtype: Any) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")
