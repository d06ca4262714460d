"""Finds and reads the logits of ``tokendraw sample``, on disk or on standard input, or refuses the file in a sentence.

No code in a file is ever run: arrays are read without pickles, .pt is loaded with weights only.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from tokendraw.backends.description.capabilities import INPUT_DTYPES
from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import nearest, one_of

if TYPE_CHECKING:  # a path without a file is refused before torch is imported
    import torch
    from torch import Tensor

ENDINGS = (".npy", ".npz", ".safetensors", ".pt")


class LogitsFileError(TokendrawError):
    """A file does not hold logits; the message names the file, the need and the content in one line."""


@dataclass(frozen=True)
class Source:
    """A file to read logits from.

    :ivar name: Name of the file in messages.
    :ivar ending: File ending of its format, such as ``.npy``.
    """

    name: str
    path: Path
    ending: str

    def refuse(self, reason: str, cause: Exception | None = None) -> NoReturn:
        """Raise the error of this file."""
        raise LogitsFileError(f"'{self.name}' {reason}") from cause


def on_disk(path: Path) -> Source:
    """Check that a file exists and has the format of its ending."""
    source = Source(str(path), path, path.suffix.lower())
    if not path.is_file():
        content = (
            "a directory" if path.is_dir() else "nothing there" if not path.exists() else "something else"
        )
        source.refuse(f"needs to be a file, found {content}. Check the path.")
    if source.ending not in ENDINGS:
        content = f"the ending '{path.suffix}'" if source.ending else "no ending"
        source.refuse(f"needs the ending {one_of(ENDINGS)}, found {content}. Convert it.")
    try:
        content, endings = _recognise(path)
    except OSError as error:
        source.refuse(f"cannot be read: {error.strerror}. Check its permissions.", error)
    if source.ending not in endings:
        source.refuse(
            f"needs to be a {source.ending} file inside, found {content}. "
            "Give the file the ending of what it holds, or save the logits again."
        )
    return source


def received(path: Path) -> Source:
    """Write standard input to ``path``, since arrays are mapped, and recognise the format by the content."""
    source = Source("standard input", path, "")
    if sys.stdin is None or sys.stdin.isatty():
        source.refuse("needs logits, found no file behind it. Redirect or pipe one into it.")
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    content, endings = _recognise(path)
    if not endings:
        source.refuse(
            f"needs to be a {one_of(ENDINGS)} file inside, found {content}. Save the logits as one of these."
        )
    return replace(source, ending=endings[0])


def _recognise(path: Path) -> tuple[str, tuple[str, ...]]:
    """Recognise a file by its content: the content in words, and the endings of the formats that it may be."""
    with path.open("rb") as stream:
        head = stream.read(9)
    if not head:
        return "nothing", ()
    if head.startswith(b"\x93NUMPY"):
        return "a .npy array", (".npy",)
    if head.startswith(b"PK"):
        return "a zip archive, such as .npz or .pt", (".npz", ".pt") if _holds_arrays(path) else (
            ".pt",
            ".npz",
        )
    if head[8:] == b"{":
        return "what looks like a .safetensors file", (".safetensors",)
    if head.startswith(b"\x80"):
        return "a pickle, which is not loaded", (".pt",)
    return "other bytes", ()


def _holds_arrays(path: Path) -> bool:
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return any(member.endswith(".npy") for member in archive.namelist())
    return False


_NAMES_SHOWN = 8


Reader: TypeAlias = "Callable[[Source, str | None], tuple[str | None, Tensor]]"
"""Takes a file and the name of a tensor or None; returns the tensor's name or None, and the tensor."""


def _read_numpy(source: Source, tensor: str | None) -> tuple[str | None, Tensor]:
    import torch

    numpy, name = _optional("numpy", source), None
    with _parsing(source):
        try:
            if source.ending == ".npy":  # mapped, a header that lies about the shape costs no memory
                array = numpy.load(source.path, mmap_mode="r", allow_pickle=False)
            else:
                with source.path.open("rb") as file, numpy.load(file, allow_pickle=False) as archive:
                    name = _pick(source, archive.files, tensor)
                    array = archive[name]
        except ValueError as error:
            if "Python objects" not in str(error) and "Object arrays" not in str(error):
                raise
            source.refuse(
                "needs numbers, found an array of Python objects, which is not loaded. "
                "Save the logits as float32.",
                error,
            )
        if name is None:
            _refuse_name(source, tensor)
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            source.refuse(
                f"needs float32, float16 or float64 values, found {array.dtype}. "
                "Save the logits as one of these (bfloat16 fits into .safetensors and .pt)."
            )
        return name, torch.from_numpy(numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _read_safetensors(source: Source, tensor: str | None) -> tuple[str, Tensor]:
    safetensors = _optional("safetensors", source)
    with _parsing(source), safetensors.safe_open(source.path, framework="pt", device="cpu") as file:
        name = _pick(source, list(file.keys()), tensor)
        return name, file.get_tensor(name)


def _read_pt(source: Source, tensor: str | None) -> tuple[str | None, Tensor]:
    import torch

    with _parsing(source), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old formats; what comes out is checked
        try:
            content = torch.load(source.path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            # The text of an UnpicklingError tells how to run the code that was just refused.
            if isinstance(error, RuntimeError) and "TorchScript" not in str(error):
                raise
            source.refuse(
                "needs tensors alone, found a TorchScript program, other Python objects or damaged data, "
                "which are not loaded. Save the tensor itself with torch.save.",
                error,
            )
    if isinstance(content, torch.Tensor):
        _refuse_name(source, tensor)
        return None, content
    if not isinstance(content, dict):
        source.refuse(
            f"needs a tensor or a dict of tensors, found an object of type {type(content).__name__}. "
            "Save the tensor itself with torch.save."
        )
    names = [
        key for key, value in content.items() if isinstance(key, str) and isinstance(value, torch.Tensor)
    ]
    name = _pick(source, names, tensor)
    return name, content[name]


_READERS: dict[str, Reader] = {
    ".npy": _read_numpy,
    ".npz": _read_numpy,
    ".safetensors": _read_safetensors,
    ".pt": _read_pt,
}


@contextlib.contextmanager
def _parsing(source: Source) -> Iterator[None]:
    """Turn any exception of a parser on damaged bytes into one sentence."""
    try:
        yield
    except LogitsFileError:
        raise
    except Exception as error:
        size = source.path.stat().st_size
        source.refuse(
            f"needs a complete {source.ending} file, found {size} bytes that are damaged or cut short. "
            "Write it again.",
            error,
        )


def _optional(library: str, source: Source) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        source.refuse(
            f"needs the library '{library}' to be read, found it not installed. Run `pip install {library}`.",
            error,
        )


def _refuse_name(source: Source, tensor: str | None) -> None:
    if tensor is not None:
        source.refuse(f"holds one tensor without a name, but '{tensor}' was asked for. Leave --tensor out.")


def _pick(source: Source, names: Sequence[str], tensor: str | None) -> str:
    listing = ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN])
    if len(names) > _NAMES_SHOWN:
        listing += f" and {len(names) - _NAMES_SHOWN} more"
    if not names:
        source.refuse("needs a tensor, found none in it. Write it again.")
    if tensor is None and len(names) > 1:
        source.refuse(f"needs a choice between its tensors {listing}. Pick one with --tensor.")
    if tensor is not None and tensor not in names:
        near = nearest(tensor, names)
        mend = "Pick one of them" if near is None else f"Try --tensor {near}"
        source.refuse(f"needs a tensor '{tensor}', found {listing}. {mend}.")
    return names[0] if tensor is None else tensor


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
    """Read the logits in ``path``, a .npy, .npz, .safetensors or .pt file, or ``-`` for standard input."""
    if path != Path("-"):
        return _read(on_disk(path), tensor)
    with tempfile.TemporaryDirectory() as folder:
        return _read(received(Path(folder, "logits")), tensor)


def _read(source: Source, tensor: str | None) -> LogitsFile:
    name, values = _READERS[source.ending](source, tensor)
    _check_values(source, values)
    dtype = dtype_name(values.dtype)
    rows = values.detach().reshape(-1, values.shape[-1])
    return LogitsFile(_rounded(source, rows) if dtype == "float64" else rows, name, dtype)


def _check_values(source: Source, values: Tensor) -> None:
    import torch

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
    source.refuse(f"needs {message}")


def _rounded(source: Source, rows: Tensor) -> Tensor:
    """Convert float64 to float32; refuse finite values outside float32, since +inf wins every draw."""
    single = rows.float()
    lost = rows[single.isinf() & rows.isfinite()]
    if lost.numel():
        source.refuse(
            f"needs values within float32, found {lost[0].item():.3g} in float64. Scale the logits."
        )
    return single


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")
