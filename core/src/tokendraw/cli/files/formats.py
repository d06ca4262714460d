"""Readers of the file formats of logits. No code in a file is ever run.

Arrays are mapped without pickles, so that a header that lies about the shape costs no memory; .pt is loaded with
weights only. Each reader returns the tensor as it lies in the file; :mod:`tokendraw.cli.files.logits` judges
it.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import nearest, one_of
from tokendraw.errors.install_commands import how_to_install

HEAD_BYTES = 9
"""Number of leading bytes that identify a format."""

_NUMPY_MAGIC = b"\x93NUMPY"
_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE_MAGIC = b"\x80"
_NAMES_SHOWN = 8


@dataclass(frozen=True)
class Source:
    """A file to read logits from."""

    name: str
    """Name of the file in messages."""
    path: Path
    head: bytes
    """First bytes of the file."""
    ending: str
    """File ending of its format, such as ``.npy``."""

    def __str__(self) -> str:
        return self.name


Reader: TypeAlias = Callable[[Source, str | None], tuple[str | None, Tensor]]
"""Takes a file and the name of a tensor or None; returns the tensor's name or None, and the tensor."""


class LogitsFileError(TokendrawError):
    """A file does not hold logits; the message names the file, the need and the content in one line."""


def ending_by_content(name: str, path: Path, head: bytes) -> str:
    """Recognise the format of a file without an ending by its content.

    :raises LogitsFileError: it is none of them.
    """
    if head.startswith(_NUMPY_MAGIC):
        return ".npy"
    if head.startswith(_ZIP_MAGIC):
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            if any(member.endswith(".npy") for member in archive.namelist()):
                return ".npz"
        return ".pt"
    if head.startswith(_PICKLE_MAGIC):
        return ".pt"
    if head[8:9] == b"{":
        return ".safetensors"
    raise LogitsFileError(
        f"'{name}' needs to be a {one_of(READERS)} file inside, found other bytes. Save the logits as one of these."
    )


def _read_npy(source: Source, tensor: str | None) -> tuple[None, Tensor]:
    _optional("numpy", source)
    _refuse_name(source, tensor)
    if not source.head.startswith(_NUMPY_MAGIC[: len(source.head)]):
        raise _other_kind(source)
    with _parsing(source):
        return None, _array(source, source.path)


def _read_npz(source: Source, tensor: str | None) -> tuple[str, Tensor]:
    _optional("numpy", source)
    if not source.head.startswith(_ZIP_MAGIC[:2][: len(source.head)]):  # an empty archive begins with PK too
        raise _other_kind(source)
    with (
        _parsing(source),
        zipfile.ZipFile(source.path) as archive,
        tempfile.TemporaryDirectory() as folder,
    ):
        members = {m.removesuffix(".npy"): m for m in archive.namelist() if m.endswith(".npy")}
        name = _pick(source, list(members), tensor)
        unpacked = Path(folder, "array.npy")
        with archive.open(members[name]) as packed, unpacked.open("wb") as file:
            shutil.copyfileobj(packed, file)
        return name, _array(source, unpacked)


def _array(source: Source, path: Path) -> Tensor:
    """Map the array in a .npy file: ``source`` itself, or a member unpacked from ``source``."""
    import numpy

    try:
        array = numpy.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        if "Python objects" not in str(error):
            raise
        raise LogitsFileError(
            f"'{source}' needs numbers, found an array of Python objects, which is not loaded. "
            "Save the logits as float32."
        ) from error
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise LogitsFileError(
            f"'{source}' needs float32, float16 or float64 values, found {array.dtype}. "
            "Save the logits as one of these (bfloat16 fits into .safetensors and .pt)."
        )
    return torch.from_numpy(numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _read_safetensors(source: Source, tensor: str | None) -> tuple[str, Tensor]:
    safetensors = _optional("safetensors", source)
    if source.head.startswith((_NUMPY_MAGIC, _ZIP_MAGIC)):
        raise _other_kind(source)
    with _parsing(source), safetensors.safe_open(source.path, framework="pt", device="cpu") as file:
        name = _pick(source, list(file.keys()), tensor)
        return name, file.get_tensor(name)


def _read_pt(source: Source, tensor: str | None) -> tuple[str | None, Tensor]:
    if not source.head.startswith((_ZIP_MAGIC[: len(source.head)], _PICKLE_MAGIC)):
        raise _other_kind(source)
    with _parsing(source), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old formats; what comes out is checked
        try:
            content = torch.load(source.path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # its text tells how to run the code that it just refused
            raise LogitsFileError(
                f"'{source}' needs tensors alone, found other Python objects or damaged data, which are not "
                "loaded. Save the tensor itself with torch.save."
            ) from error
        except RuntimeError as error:
            if "TorchScript" not in str(error):
                raise
            raise LogitsFileError(
                f"'{source}' needs tensors alone, found a TorchScript program, which is not run. "
                "Save the tensor itself with torch.save."
            ) from error
    if isinstance(content, Tensor):
        _refuse_name(source, tensor)
        return None, content
    if isinstance(content, dict):
        tensors = {
            key: value for key, value in content.items() if isinstance(value, Tensor) and isinstance(key, str)
        }
        name = _pick(source, list(tensors), tensor)
        return name, tensors[name]
    raise LogitsFileError(
        f"'{source}' needs a tensor or a dict of tensors, found an object of type {type(content).__name__}. "
        "Save the tensor itself with torch.save."
    )


READERS: dict[str, Reader] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
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
    if tensor is not None and tensor in names:
        return tensor
    if tensor is not None:
        near = nearest(tensor, names)
        mend = "Pick one of them" if near is None else f"Try --tensor {near}"
        raise LogitsFileError(f"'{source}' needs a tensor '{tensor}', found {listing}. {mend}.")
    if len(names) > 1:
        raise LogitsFileError(
            f"'{source}' needs a choice between its tensors {listing}. Pick one with --tensor."
        )
    return names[0]


def _other_kind(source: Source) -> LogitsFileError:
    if source.head.startswith(_NUMPY_MAGIC):
        content = "a .npy array"
    elif source.head.startswith(_ZIP_MAGIC):
        content = "a zip archive, such as .npz or .pt"
    elif source.head.startswith(_PICKLE_MAGIC):
        content = "a pickle, which is not loaded"
    elif source.head[8:9] == b"{":
        content = "what looks like a .safetensors file"
    else:
        content = "other bytes"
    return LogitsFileError(
        f"'{source}' needs to be a {source.ending} file inside, found {content}. "
        "Give the file the ending of what it holds, or save the logits again."
    )
