"""The three file formats that logits come in. Nothing in a file is ever run, whatever it claims to be.

.npy is mapped without pickles, so that a header that lies about the shape costs no memory; .pt is loaded with
weights only. Each reader returns the tensor as it lies in the file; :mod:`tokendraw.cli._logits_file` judges
it.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tokendraw._errors import TokendrawError

Reader: TypeAlias = Callable[[Path, bytes, str | None], tuple[str | None, Tensor]]
"""(path, its first bytes, name of a tensor or None) to (name of the tensor or None, tensor)."""

_NUMPY_MAGIC = b"\x93NUMPY"
_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE_MAGIC = b"\x80"
_NAMES_SHOWN = 8


class LogitsFileError(TokendrawError):
    """A file does not hold logits; one line names the file, what is needed and what was found."""


def _read_npy(path: Path, head: bytes, tensor: str | None) -> tuple[None, Tensor]:
    numpy = _optional("numpy", path)
    _refuse_name(path, tensor)
    if not head.startswith(_NUMPY_MAGIC[: len(head)]):
        raise _other_kind(path, head)
    with _parsing(path):
        try:
            array = numpy.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            if "Python objects" not in str(error):
                raise
            raise LogitsFileError(
                f"'{path}' needs numbers, found an array of Python objects, which is not loaded. "
                "Save the logits as float32."
            ) from error
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise LogitsFileError(
            f"'{path}' needs float32, float16 or float64 values, found {array.dtype}. "
            "Save the logits as one of these (bfloat16 fits into .safetensors and .pt)."
        )
    values = numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return None, torch.from_numpy(values)


def _read_safetensors(path: Path, head: bytes, tensor: str | None) -> tuple[str, Tensor]:
    safetensors = _optional("safetensors", path)
    if head.startswith((_NUMPY_MAGIC, _ZIP_MAGIC)):
        raise _other_kind(path, head)
    with _parsing(path), safetensors.safe_open(path, framework="pt", device="cpu") as file:
        name = _pick(path, list(file.keys()), tensor)
        return name, file.get_tensor(name)


def _read_pt(path: Path, head: bytes, tensor: str | None) -> tuple[str | None, Tensor]:
    if not head.startswith((_ZIP_MAGIC[: len(head)], _PICKLE_MAGIC)):
        raise _other_kind(path, head)
    with _parsing(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old formats; what comes out is checked
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # its text tells how to run the code that it just refused
            raise LogitsFileError(
                f"'{path}' needs tensors alone, found other Python objects or damaged data, which are not "
                "loaded. Save the tensor itself with torch.save."
            ) from error
        except RuntimeError as error:
            if "TorchScript" not in str(error):
                raise
            raise LogitsFileError(
                f"'{path}' needs tensors alone, found a TorchScript program, which is not run. "
                "Save the tensor itself with torch.save."
            ) from error
    if isinstance(content, Tensor):
        _refuse_name(path, tensor)
        return None, content
    if isinstance(content, dict):
        named = {
            key: value for key, value in content.items() if isinstance(value, Tensor) and isinstance(key, str)
        }
        name = _pick(path, list(named), tensor)
        return name, named[name]
    raise LogitsFileError(
        f"'{path}' needs a tensor or a dict of tensors, found an object of type {type(content).__name__}. "
        "Save the tensor itself with torch.save."
    )


READERS: dict[str, Reader] = {".npy": _read_npy, ".safetensors": _read_safetensors, ".pt": _read_pt}
"""Ending of the file name, in lower case, to its reader."""


@contextlib.contextmanager
def _parsing(path: Path) -> Iterator[None]:
    """Turn what the parsers raise over damaged bytes, which may be anything, into one sentence."""
    try:
        yield
    except LogitsFileError:
        raise
    except Exception as error:
        raise LogitsFileError(
            f"'{path}' needs a complete {path.suffix.lower()} file, found {path.stat().st_size} bytes that "
            "are damaged or cut short. Write it again."
        ) from error


def _optional(library: str, path: Path) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise LogitsFileError(
            f"'{path}' needs the library '{library}' to be read, found it not installed. "
            "Run: pip install 'tokendraw[files]'"
        ) from error


def _refuse_name(path: Path, tensor: str | None) -> None:
    if tensor is not None:
        raise LogitsFileError(
            f"'{path}' holds one tensor without a name, but '{tensor}' was asked for. Leave --tensor out."
        )


def _pick(path: Path, names: Sequence[str], tensor: str | None) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN])
    if len(names) > _NAMES_SHOWN:
        shown += f" and {len(names) - _NAMES_SHOWN} more"
    if not names:
        raise LogitsFileError(f"'{path}' needs a tensor, found none in it. Write it again.")
    if tensor is not None and tensor in names:
        return tensor
    if tensor is not None:
        near = difflib.get_close_matches(tensor, names, n=1, cutoff=0)
        raise LogitsFileError(f"'{path}' needs a tensor '{tensor}', found {shown}. Try --tensor {near[0]}.")
    if len(names) > 1:
        raise LogitsFileError(f"'{path}' needs a choice between its tensors {shown}. Pick one with --tensor.")
    return names[0]


def _other_kind(path: Path, head: bytes) -> LogitsFileError:
    if head.startswith(_NUMPY_MAGIC):
        found = "a .npy array"
    elif head.startswith(_ZIP_MAGIC):
        found = "a zip archive, such as .npz or .pt"
    elif head.startswith(_PICKLE_MAGIC):
        found = "a pickle, which is not loaded"
    elif head[8:9] == b"{":
        found = "what looks like a .safetensors file"
    else:
        found = "other bytes"
    return LogitsFileError(
        f"'{path}' needs to be a {path.suffix.lower()} file inside, found {found}. "
        "Give the file the ending of what it holds, or save the logits again."
    )
