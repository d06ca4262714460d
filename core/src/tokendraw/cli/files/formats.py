"""Readers of the file formats of logits. No code in a file is ever run.

Arrays are read without pickles, .pt is loaded with weights only. Each reader returns the tensor as it lies in the file;
:mod:`tokendraw.cli.files.logits` judges it.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import nearest
from tokendraw.errors.install_commands import how_to_install

_NAMES_SHOWN = 8


@dataclass(frozen=True)
class Source:
    """A file to read logits from.

    :ivar name: Name of the file in messages.
    :ivar ending: File ending of its format, such as ``.npy``.
    """

    name: str
    path: Path
    ending: str

    def __str__(self) -> str:
        return self.name


Reader: TypeAlias = Callable[[Source, str | None], tuple[str | None, Tensor]]
"""Takes a file and the name of a tensor or None; returns the tensor's name or None, and the tensor."""


class LogitsFileError(TokendrawError):
    """A file does not hold logits; the message names the file, the need and the content in one line."""


def recognise(path: Path) -> tuple[str, tuple[str, ...]]:
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


def _read_numpy(source: Source, tensor: str | None) -> tuple[str | None, Tensor]:
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
            raise LogitsFileError(
                f"'{source}' needs numbers, found an array of Python objects, which is not loaded. "
                "Save the logits as float32."
            ) from error
        if name is None:
            _refuse_name(source, tensor)
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise LogitsFileError(
                f"'{source}' needs float32, float16 or float64 values, found {array.dtype}. "
                "Save the logits as one of these (bfloat16 fits into .safetensors and .pt)."
            )
        return name, torch.from_numpy(numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _read_safetensors(source: Source, tensor: str | None) -> tuple[str, Tensor]:
    safetensors = _optional("safetensors", source)
    with _parsing(source), safetensors.safe_open(source.path, framework="pt", device="cpu") as file:
        name = _pick(source, list(file.keys()), tensor)
        return name, file.get_tensor(name)


def _read_pt(source: Source, tensor: str | None) -> tuple[str | None, Tensor]:
    with _parsing(source), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old formats; what comes out is checked
        try:
            content = torch.load(source.path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            # The text of an UnpicklingError tells how to run the code that was just refused.
            if isinstance(error, RuntimeError) and "TorchScript" not in str(error):
                raise
            raise LogitsFileError(
                f"'{source}' needs tensors alone, found a TorchScript program, other Python objects or damaged data, "
                "which are not loaded. Save the tensor itself with torch.save."
            ) from error
    if isinstance(content, Tensor):
        _refuse_name(source, tensor)
        return None, content
    if not isinstance(content, dict):
        raise LogitsFileError(
            f"'{source}' needs a tensor or a dict of tensors, found an object of type {type(content).__name__}. "
            "Save the tensor itself with torch.save."
        )
    names = [key for key, value in content.items() if isinstance(key, str) and isinstance(value, Tensor)]
    name = _pick(source, names, tensor)
    return name, content[name]


READERS: dict[str, Reader] = {
    ".npy": _read_numpy,
    ".npz": _read_numpy,
    ".safetensors": _read_safetensors,
    ".pt": _read_pt,
}
"""Maps the ending of a file name, in lower case, to a reader."""


@contextlib.contextmanager
def _parsing(source: Source) -> Iterator[None]:
    """Turn any exception of a parser on damaged bytes into one sentence."""
    try:
        yield
    except LogitsFileError:
        raise
    except Exception as error:
        raise LogitsFileError(
            f"'{source}' needs a complete {source.ending} file, found {source.path.stat().st_size} bytes that "
            "are damaged or cut short. Write it again."
        ) from error


def _optional(library: str, source: Source) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise LogitsFileError(
            f"'{source}' needs the library '{library}' to be read, found it not installed. "
            f"Run {how_to_install('tokendraw', 'files')}."
        ) from error


def _refuse_name(source: Source, tensor: str | None) -> None:
    if tensor is not None:
        raise LogitsFileError(
            f"'{source}' holds one tensor without a name, but '{tensor}' was asked for. Leave --tensor out."
        )


def _pick(source: Source, names: Sequence[str], tensor: str | None) -> str:
    listing = ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN])
    if len(names) > _NAMES_SHOWN:
        listing += f" and {len(names) - _NAMES_SHOWN} more"
    if not names:
        raise LogitsFileError(f"'{source}' needs a tensor, found none in it. Write it again.")
    if tensor is None and len(names) > 1:
        raise LogitsFileError(
            f"'{source}' needs a choice between its tensors {listing}. Pick one with --tensor."
        )
    if tensor is not None and tensor not in names:
        near = nearest(tensor, names)
        mend = "Pick one of them" if near is None else f"Try --tensor {near}"
        raise LogitsFileError(f"'{source}' needs a tensor '{tensor}', found {listing}. {mend}.")
    return names[0] if tensor is None else tensor
