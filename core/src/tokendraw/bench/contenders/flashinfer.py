"""FlashInfer called directly: every way that it has to draw for the filters of a cell, with parameters by row.

Which way is the fastest depends on its version, the batch and the logits, so all are timed. Left out is what answers
another question: ``filter_apply_order="joint"`` keeps other tokens, a scalar ``top_k`` is no batch of different
requests. FlashInfer makes float32 of halves before its softmax; ``top_k_mask_logits`` takes them as they are, and may
come before the temperature, which moves no token past another.

A graph captures the seed of a launch by value, so it is given here; without one FlashInfer reads torch's generator on
the host. Versions that cannot be given one are kept out of graphs.

Drafts are verified by ``chain_speculative_sampling``, which takes probabilities of target and draft after every filter:
its ways are those to them, in one call for the rows of both. It accepts by rejection, and there is no min-p whose
result is probabilities.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tokendraw._discovery.installed import installed_version
from tokendraw._exchange.host import Host
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._messages.errors import SamplerUnavailableError
from tokendraw.bench.cells import Cell
from tokendraw.bench.contenders.parameters import Parameters
from tokendraw.bench.timing.timer import Call, Draw

DISTRIBUTION = "flashinfer-python"
_SEED = 1


def lacks(host: Host) -> str | None:
    """Say what FlashInfer needs and this machine lacks; None if nothing."""
    if host.device_type != "cuda":
        return f"needs an NVIDIA GPU, found {host.device_type}"
    if installed_version(DISTRIBUTION) is None:
        return f"needs {DISTRIBUTION}, found it not installed; run `pip install {DISTRIBUTION}`"
    return None


def prepare(cell: Cell, metadata: SamplingMetadata) -> tuple[Call, ...]:
    """Make a call for each way. In mixed rows min-p counts after the other filters: other tokens at the same cost."""
    sampling: Any = importlib.import_module("flashinfer.sampling")
    seed = _seed(sampling.sampling_from_probs)
    found = _ways(sampling, seed, Parameters.of(cell, metadata))
    calls = [Call(draw=draw, graph_safe=bool(seed), way=way) for way, draw in found.items()]
    fused = _fused(sampling, cell, metadata)
    if fused is not None:
        calls.append(Call(draw=fused, way="softmax, cake_top_k_top_p_sampling_from_probs"))
    return tuple(calls)


def prepare_chain(cell: Cell, metadata: SamplingMetadata, draft_ids: Tensor, mode: str) -> tuple[Call, ...]:
    """Make a call for each way to hold drafts against their target.

    :param metadata: of the requests of the cell.
    :param draft_ids: [B, K]; a buffer holds the target's B * (K + 1) rows and below them the B * K of the drafts.
    """
    rows = Parameters.of(cell, metadata)
    if mode != "rejection":
        raise SamplerUnavailableError(f"it does not serve the mode {mode}")
    if rows.min_p is not None:
        raise SamplerUnavailableError("it does not serve min_p per row")
    sampling: Any = importlib.import_module("flashinfer.sampling")
    seed = _seed(sampling.chain_speculative_sampling)
    batch, count = draft_ids.shape
    requests = torch.arange(batch, device=draft_ids.device)
    rows = rows.take(torch.cat([requests.repeat_interleave(count + 1), requests.repeat_interleave(count)]))
    drafted, last = draft_ids.int(), batch * (count + 1)

    def chain(probs: Tensor) -> object:
        target, draft = probs[:last], probs[last:]
        return sampling.chain_speculative_sampling(
            draft.view(batch, count, -1), drafted, target.view(batch, count + 1, -1), **seed
        )

    return tuple(
        Call(draw=_chain(*steps, chain), graph_safe=bool(seed), way=f"{way}, chain_speculative_sampling")
        for way, steps in _probabilities(sampling, rows).items()
    )


def _probabilities(sampling: Any, rows: Parameters) -> dict[str, tuple[Callable[[Any], Any], ...]]:
    """List the ways from logits to the probabilities that top-k and top-p leave."""
    softmax = partial(sampling.softmax, temperature=rows.temperature)
    last = () if rows.top_p is None else (partial(sampling.top_p_renorm_probs, top_p=rows.top_p),)
    more = ", top_p_renorm_probs" if last else ""
    if rows.top_k is None:
        return {f"softmax{more}": (softmax, *last)}
    renorm, mask = (
        partial(function, top_k=rows.top_k.int())
        for function in (sampling.top_k_renorm_probs, sampling.top_k_mask_logits)
    )
    return {
        f"softmax, top_k_renorm_probs{more}": (softmax, renorm, *last),
        f"top_k_mask_logits, softmax{more}": (mask, softmax, *last),
    }


def _seed(function: Callable[..., Any]) -> dict[str, int]:
    """Return arguments that keep a function from asking torch's generator; none where that is impossible."""
    takes = {"seed", "offset"} <= inspect.signature(function).parameters.keys()
    return {"seed": _SEED, "offset": 0} if takes else {}


def _ways(sampling: Any, seed: dict[str, int], rows: Parameters) -> dict[str, Draw]:
    """List the ways to draw with public functions of ``flashinfer.sampling``, named by the calls in their order."""
    top_k = None if rows.top_k is None else rows.top_k.int()
    softmax = partial(sampling.softmax, temperature=rows.temperature)
    if rows.min_p is not None:
        if top_k is None and rows.top_p is None:
            draw = _chain(softmax, partial(sampling.min_p_sampling_from_probs, min_p=rows.min_p, **seed))
            return {"softmax, min_p_sampling_from_probs": draw}
        draw = _chain(
            softmax,
            partial(sampling.top_k_renorm_probs, top_k=top_k),
            partial(sampling.top_p_renorm_probs, top_p=rows.top_p),
            partial(sampling.min_p_sampling_from_probs, min_p=rows.min_p, **seed),
        )
        return {"softmax, top_k_renorm_probs, top_p_renorm_probs, min_p_sampling_from_probs": draw}
    from_probs = partial(sampling.sampling_from_probs, **seed)
    if top_k is None and rows.top_p is None:
        return {
            "softmax, sampling_from_probs": _chain(softmax, from_probs),
            "division by T, sampling_from_logits": _chain(
                lambda logits: logits / rows.temperature[:, None],
                partial(sampling.sampling_from_logits, **seed),
            ),
        }
    if top_k is None:
        top_p_sampling = partial(sampling.top_p_sampling_from_probs, top_p=rows.top_p, **seed)
        renorm = partial(sampling.top_p_renorm_probs, top_p=rows.top_p)
        return {
            "softmax, top_p_sampling_from_probs": _chain(softmax, top_p_sampling),
            "softmax, top_p_renorm_probs, sampling_from_probs": _chain(softmax, renorm, from_probs),
        }
    mask = partial(sampling.top_k_mask_logits, top_k=top_k)
    if rows.top_p is None:
        top_k_sampling = partial(sampling.top_k_sampling_from_probs, top_k=top_k, **seed)
        return {
            "softmax, top_k_sampling_from_probs": _chain(softmax, top_k_sampling),
            "top_k_mask_logits, softmax, sampling_from_probs": _chain(mask, softmax, from_probs),
        }
    both = partial(sampling.top_k_top_p_sampling_from_probs, top_k=top_k, top_p=rows.top_p, **seed)
    top_p_sampling = partial(sampling.top_p_sampling_from_probs, top_p=rows.top_p, **seed)
    return {
        "softmax, top_k_top_p_sampling_from_probs": _chain(softmax, both),
        "top_k_mask_logits, softmax, top_p_sampling_from_probs": _chain(mask, softmax, top_p_sampling),
    }


def _fused(sampling: Any, cell: Cell, metadata: SamplingMetadata) -> Draw | None:
    """Find the fused sampler of 0.7 and later, which needs a top-k in every row and names its seed otherwise."""
    flashinfer: Any = importlib.import_module("flashinfer")
    fused = getattr(flashinfer, "cake_top_k_top_p_sampling_from_probs", None)
    rows, largest = Parameters.of(cell, metadata), metadata.facts.max_top_k
    if fused is None or rows.top_k is None or rows.min_p is not None or not metadata.facts.all_top_k:
        return None
    return _chain(
        partial(sampling.softmax, temperature=rows.temperature),
        partial(
            fused,
            top_k=rows.top_k.int(),
            top_p=1.0 if rows.top_p is None else rows.top_p,
            top_k_max=largest,  # or it would ask the device for it
            philox_seed=_SEED,
            philox_offset=0,
        ),
    )


def _chain(*steps: Callable[[Any], Any]) -> Draw:
    def draw(logits: Tensor) -> object:
        found: Any = logits
        for step in steps:
            found = step(found)
        return found

    return draw
