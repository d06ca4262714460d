"""Facts that a configuration of vLLM tells about its drafts of speculative decoding."""

from __future__ import annotations

from typing import Any, NamedTuple

from tokendraw.plugin import VerifyMode

_VERIFIED_METHODS = ("standard", "block")


class DraftSetup(NamedTuple):
    """What drafts a configuration of vLLM brings, to compile kernels for."""

    most: int
    """K."""
    verifies: bool
    """Whether tokendraw has the way in which vLLM judges them."""
    mode: VerifyMode | None
    """The mode for drafts that were drawn; None: all are chosen."""

    @classmethod
    def of(cls, config: Any) -> DraftSetup | None:
        """Read vLLM's configuration; None without speculative decoding."""
        given = getattr(config, "speculative_config", None)
        if given is None:
            return None
        mode: VerifyMode = "block" if given.rejection_sample_method == "block" else "rejection"
        return cls(
            given.num_speculative_tokens,
            given.rejection_sample_method in _VERIFIED_METHODS,
            mode if given.draft_sample_method == "probabilistic" else None,
        )


def verification_obstacle(config: Any) -> str | None:
    """Name the option by which vLLM verifies the drafts of all batches; None where tokendraw may verify.

    :param config: vLLM's configuration, with or without speculative decoding.
    """
    import vllm.envs as envs

    drafts = getattr(config, "speculative_config", None)
    if drafts is None:
        return None
    if drafts.rejection_sample_method not in _VERIFIED_METHODS:
        return f"rejection_sample_method={drafts.rejection_sample_method!r}"
    if getattr(config, "watermark_config", None) is not None:
        return "watermark_config"
    return "VLLM_BATCH_INVARIANT=1" if envs.VLLM_BATCH_INVARIANT else None
