"""Names SGLang's default sampling backend."""

from __future__ import annotations


def default_backend() -> str:
    """Return ``flashinfer`` where SGLang finds it, else ``pytorch``: the default of ``--sampling-backend``."""
    from sglang.srt.runtime_context import get_platform

    return "flashinfer" if get_platform().has_flashinfer else "pytorch"
