"""Reads logits from a file, a row [V] or many rows [B, V], or refuses the file in a sentence."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import INPUT_DTYPES
from tokendraw.cli.files.formats import READERS, LogitsFileError, Source, recognise
from tokendraw.errors.formatting import one_of


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


def read_logits(path: Path, tensor: str | None = None) -> LogitsFile:
    """Read the logits in ``path``, a .npy, .npz, .safetensors or .pt file, or ``-`` for standard input.

    :param tensor: which tensor, where the file holds several by name.
    :raises LogitsFileError: one line; nothing in the file has been run.
    """
    if path != Path("-"):
        return _read(_on_disk(path), tensor)
    with tempfile.TemporaryDirectory() as folder:
        return _read(_received(Path(folder, "logits")), tensor)


def _read(source: Source, tensor: str | None) -> LogitsFile:
    name, values = READERS[source.ending](source, tensor)
    _check_values(source, values)
    dtype = dtype_name(values.dtype)
    rows = values.detach().reshape(-1, values.shape[-1])
    return LogitsFile(_rounded(source, rows) if dtype == "float64" else rows, name, dtype)


def _on_disk(path: Path) -> Source:
    ending = path.suffix.lower()
    if not path.is_file():
        content = (
            "a directory" if path.is_dir() else "nothing there" if not path.exists() else "something else"
        )
        raise LogitsFileError(f"'{path}' needs to be a file, found {content}. Check the path.")
    if ending not in READERS:
        content = f"the ending '{path.suffix}'" if ending else "no ending"
        raise LogitsFileError(f"'{path}' needs the ending {one_of(READERS)}, found {content}. Convert it.")
    try:
        content, endings = recognise(path)
    except OSError as error:
        raise LogitsFileError(f"'{path}' cannot be read: {error.strerror}. Check its permissions.") from error
    if ending not in endings:
        raise LogitsFileError(
            f"'{path}' needs to be a {ending} file inside, found {content}. "
            "Give the file the ending of what it holds, or save the logits again."
        )
    return Source(str(path), path, ending)


def _received(path: Path) -> Source:
    """Write standard input to ``path``, since arrays are mapped, and recognise the format by the content."""
    name = "standard input"
    if sys.stdin is None or sys.stdin.isatty():
        raise LogitsFileError(
            f"'{name}' needs logits, found no file behind it. Redirect or pipe one into it."
        )
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    content, endings = recognise(path)
    if not endings:
        raise LogitsFileError(
            f"'{name}' needs to be a {one_of(READERS)} file inside, found {content}. Save the logits as one of these."
        )
    return Source(name, path, endings[0])


def _check_values(source: Source, values: Tensor) -> None:
    shape, dtype = list(values.shape), dtype_name(values.dtype)
    if values.is_meta or values.is_nested or values.is_quantized or values.layout != torch.strided:
        content = "one without values" if values.is_meta else "a sparse, nested or quantized one"
        message = f"a dense tensor, found {content}. Save the logits as a dense tensor."
    elif dtype not in (*INPUT_DTYPES, "float64"):
        message = f"{one_of(INPUT_DTYPES)} values, found {dtype}. Save the logits as one of these."
    elif len(shape) not in (1, 2):
        message = f"shape [V] or [B, V], found rank {len(shape)}, shape {shape}. Save the rows to draw from."
    elif 0 in shape:
        message = f"at least one row and one token, found shape {shape}. Write it again."
    else:
        return
    raise LogitsFileError(f"'{source}' needs {message}")


def _rounded(source: Source, rows: Tensor) -> Tensor:
    """Convert float64 to float32; refuse finite values outside float32, since +inf wins every draw."""
    single = rows.float()
    lost = rows[single.isinf() & rows.isfinite()]
    if lost.numel():
        raise LogitsFileError(
            f"'{source}' needs values within float32, found {lost[0].item():.3g} in float64. Scale the logits."
        )
    return single


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")
