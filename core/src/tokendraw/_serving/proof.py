"""Building is proving: a sampler is accepted only after it drew rightly from a batch whose tokens are known.

A kernel that does not compile, a missing compiler or a wrong driver shows here, as a reason, and not as a
crash at the first request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pluggy
import torch

from tokendraw._discovery import places, torch_state
from tokendraw._discovery.guard import guarded
from tokendraw._exchange.backends import SamplerBackend, VerifierBackend
from tokendraw._exchange.capabilities import Capabilities, Need, Operation
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._exchange.output_checks import wrong_output, wrong_verify_output
from tokendraw._exchange.params import SamplingParams
from tokendraw._messages.errors import PluginError
from tokendraw.operations.verify.drafts import Drafts

_VOCAB_SIZE = 2048  # two tiles of the two-level draw
_PEAK = 100.0  # exp(-100) of the mass is left for all other tokens


def build(
    hooks: pluggy.HookRelay,
    capabilities: Capabilities,
    device: torch.device,
    need: Need,
    operation: Operation = "sample",
) -> Any:
    """Build a plugin's sampler, or verifier, for one device and prove it with a draw.

    Torch's random state, default device and default dtype are left alone. One thread at a time does this.

    :raises PluginError: it did not build, or did not draw rightly; the message is a reason in words.
    """
    name, package = hooks.tokendraw_build.get_hookimpls()[-1].plugin_name, package_of(hooks)
    with torch_state.kept_while_building(name), random_state_kept(device):
        backend = guarded(
            "tokendraw_build",
            lambda: hooks.tokendraw_build(operation=operation, device=device, need=need),
            package,
        )
        for method in ("sample",) if operation == "sample" else ("verify", "draft"):
            if not callable(getattr(backend, method, None)):
                raise PluginError(
                    f"tokendraw_build needs to return an object with a method {method}, "
                    f"found {type(backend).__name__}"
                )
        prove = _draw if operation == "sample" else _verify
        guarded("the proof draw", lambda: prove(backend, capabilities, device, need), package)
    return backend


def package_of(hooks: pluggy.HookRelay) -> str:
    """Top-level package of the code behind the hooks of one plugin."""
    return places.package_of(hooks.tokendraw_build.get_hookimpls()[-1].plugin)


def _draw(backend: SamplerBackend, capabilities: Capabilities, device: torch.device, need: Need) -> None:
    """Draw from two rows: one has its mass on one token, one on the first and the last of the vocabulary."""
    vocab_size = min(_VOCAB_SIZE, capabilities.max_vocab_size or _VOCAB_SIZE)
    dtype = getattr(torch, need.dtype or (*capabilities.dtypes, "float32")[0])
    expected = [{vocab_size // 2}, {0, vocab_size - 1}]
    logits = torch.zeros(2, vocab_size, dtype=dtype, device=device)
    for row, tokens in enumerate(expected):
        logits[row, sorted(tokens)] = _PEAK
    pristine = logits.clone()
    params = [_params(capabilities, need)] * 2  # equal, so that a scalar filter can serve both
    output = backend.sample(logits, SamplingMetadata.from_params(params, device=device))

    _require(wrong_output(output, logits, None))
    for row, (token, allowed) in enumerate(zip(output.token_ids.tolist(), expected, strict=True)):
        if token not in allowed:
            raise PluginError(
                f"the proof draw needs token {' or '.join(map(str, sorted(allowed)))} in row {row} "
                f"of {vocab_size} logits, found {token}"
            )
    if capabilities.valid_flag and not all(output.valid.tolist()):
        raise PluginError(f"the proof draw needs two valid rows, found valid {output.valid.tolist()}")
    if not torch.equal(logits, pristine):
        raise PluginError("the proof draw needs its logits unmodified, found them changed")


def _verify(backend: VerifierBackend, capabilities: Capabilities, device: torch.device, need: Need) -> None:
    """Verify the drafts of two requests: the first one's is the one likely token, the other's has no probability."""
    vocab_size = min(_VOCAB_SIZE, capabilities.max_vocab_size or _VOCAB_SIZE)
    dtype = getattr(torch, need.dtype or (*capabilities.dtypes, "float32")[0])
    peak = vocab_size // 2
    logits = torch.zeros(4, vocab_size, dtype=dtype, device=device)
    logits[:, peak] = _PEAK
    probs = torch.zeros(2, vocab_size, device=device)
    probs[0, peak] = probs[1, 0] = 1.0
    kind = "probs" if "probs" in capabilities.draft_kinds else (*capabilities.draft_kinds, "chosen")[0]
    given = {"probs": {"draft_probs": probs}, "logits": {"draft_logits": probs.mul(_PEAK).to(dtype)}}
    drafts = Drafts.from_lists([[peak], [0]], device=device, **given.get(kind, {}))
    metadata = SamplingMetadata.from_params([_params(capabilities, need)] * 4, device=device)
    mode = (*capabilities.verify_modes, "rejection")[0]
    output = backend.verify(logits, drafts, metadata, mode=mode)
    _require(wrong_verify_output(output, logits, drafts, None))
    found = (output.token_ids.tolist(), output.num_accepted.tolist())
    if found != ([[peak, peak], [peak, -1]], [1, 0]):
        raise PluginError(
            f"the proof draw needs the tokens {[[peak, peak], [peak, -1]]} of {vocab_size} logits and [1, 0] accepted, "
            f"found {found[0]} and {found[1]}"
        )


def _require(reason: str | None) -> None:
    if reason is not None:
        raise PluginError(f"the proof draw needs {reason}")


def _params(capabilities: Capabilities, need: Need) -> SamplingParams:
    """Parameters that keep both tokens of row 1 and use only what the sampler advertises."""
    filters = {name for name, _ in capabilities.filters}
    orders = [order for order in need.filter_orders if order in capabilities.filter_orders]
    return SamplingParams(
        top_k=2 if "top_k" in filters else 0,
        top_p=0.9 if "top_p" in filters else 1.0,
        min_p=0.1 if filters == {"min_p"} else 0.0,
        filter_order=(*orders, "top_k_first")[0],
    )


@contextlib.contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Put torch's random state back: ``torch.manual_seed`` means the same with and without a proof draw."""
    if device.type in ("cuda", "xpu"):
        with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type):
            yield
    else:
        with torch.random.fork_rng(devices=[], device_type="cpu"):
            yield
