"""Words the lines of the log."""

from __future__ import annotations

import logging

log = logging.getLogger("tokendraw.sglang")


def kept_message(reason: str, backend: str | None = None) -> str:
    """Write the log line of a process: SGLang draws from the start.

    :param backend: the sampling backend in use; None: the backend of its arguments.
    """
    ending = "" if backend is None else f". It samples with its backend {backend!r}"
    return f"tokendraw: SGLang left alone: {reason}{ending}"


def fallback_message(reason: str, backend: str) -> str:
    """Write the log line of a process: SGLang draws from now on."""
    return (
        f"tokendraw: {reason}. SGLang goes on with its own sampling backend {backend!r}, without "
        "seeds per request; restart it to draw through tokendraw again"
    )


def own_verification_message(reason: str) -> str:
    """Write the log line of a process: SGLang verifies drafts from the start."""
    return f"tokendraw: SGLang verifies drafts, without seeds per request: {reason}"


def own_logprobs_message(reason: str) -> str:
    """Write the log line of a process: SGLang computes log-probabilities from now on."""
    return f"tokendraw: a score raised {reason}. SGLang computes log-probabilities from now on"
