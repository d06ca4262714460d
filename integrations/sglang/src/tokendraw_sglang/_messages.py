"""Words the lines of the log."""

from __future__ import annotations

import logging

from tokendraw.plugin import printable

log = logging.getLogger("tokendraw.sglang")


def spoken(error: BaseException) -> str:
    """Put an exception on one line: its type, then its message."""
    return printable(f"{type(error).__name__}: {' '.join(str(error).split())}").removesuffix(".")


def left_alone(reason: str, backend: str | None = None) -> str:
    """Say that SGLang draws itself from the start.

    :param backend: the sampling backend that it goes on with; None: the one that it was given.
    """
    goes_on = "" if backend is None else f". It samples with its backend {backend!r}"
    return f"tokendraw: SGLang left alone: {reason}{goes_on}"


def gone_on(reason: str, backend: str) -> str:
    """Say that SGLang draws itself from now on."""
    return (
        f"tokendraw: {reason}. SGLang goes on with its own sampling backend {backend!r}, without seeds per request; "
        "restart it to draw through tokendraw again"
    )
