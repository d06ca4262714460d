"""Finds a file of logits and its format, on disk or on standard input, or refuses the file in a sentence."""

from __future__ import annotations

import contextlib
import shutil
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import one_of

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
