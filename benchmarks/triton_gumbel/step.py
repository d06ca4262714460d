"""Times a step of triton-gumbel on the host, with and without launches."""

from __future__ import annotations

import contextlib
import gc
import itertools
import statistics
from collections.abc import Callable, Iterator
from time import perf_counter
from unittest import mock

import torch
from setting import Findings, Setting, markdown

from tokendraw import Drafts, Need, SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel import launch
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler

_MOST_OWN = 25.0
"""Upper limit of the microseconds of a draw without launches, with known metadata."""
_ROWS, _REQUESTS, _MOST_DRAFTS = 64, 16, 3
_SEEDED = SamplingParams(temperature=0.8, seed=1)
_FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1)
_DRAWS = {
    "seeded": _SEEDED,
    "unseeded": SamplingParams(temperature=0.8),
    "seeded, top-k and top-p": _FILTERED,
    "seeded, logprobs=0": SamplingParams(seed=1, logprobs=0),
    "seeded, logprobs=5": SamplingParams(seed=1, logprobs=5),
}
_VERIFICATIONS = {
    "verify, draft_logits": ("draft_logits", _SEEDED),
    "verify, draft_probs, top-k and top-p": ("draft_probs", _FILTERED),
    "verify, chosen drafts": (None, _SEEDED),
}

Step = Callable[[SamplingMetadata], object]


def run(setting: Setting, *, own: bool) -> Findings:
    """Time single calls on an idle device, with every launch left out and, unless ``own``, with all of them."""
    vocab_size, calls = (2000, 20) if setting.small else (151_936, 400)
    sampler, lines, holds = TritonGumbelSampler(setting.device, Need()), [], True
    launched = not own and setting.device.type != "cpu"
    for name, (step, metadata) in _steps(sampler, setting.device, vocab_size).items():
        moved = [metadata.with_positions(metadata.positions.clone()) for _ in range(8)]
        figures = []
        with _no_launches(compiled=launched):
            for batches in ([metadata], moved):
                figures += _figures(_times(setting, step, batches, calls))
        if name in _DRAWS and not setting.small:
            holds = holds and figures[1] <= _MOST_OWN
        if launched:
            for batches in ([metadata], moved):
                figures += _figures(_times(setting, step, batches, calls))
        lines.append([name, *(f"{figure:.1f}" for figure in figures)])
    titles = ["own, same metadata", "own, other positions", "whole, same metadata", "whole, other positions"]
    titles = titles if launched else titles[:2]
    said = (
        f"Microseconds until a call of the backend returns, {_ROWS} x {vocab_size} bfloat16, a verification of "
        f"{_REQUESTS} requests with {_MOST_DRAFTS} drafts each, the device idle: least and median of {calls} calls. "
        "Own: every launch of a kernel of triton-gumbel is left out, those of torch are not. Other positions: metadata "
        f"that with_positions made, each of 8 in turn. A draw's own may take {_MOST_OWN:g}."
    )
    head = ["call", *itertools.chain.from_iterable((title, "median") for title in titles)]
    return Findings(text=f"{said}\n\n{markdown(head, lines)}", holds=holds)


def _steps(
    sampler: TritonGumbelSampler, device: torch.device, vocab_size: int
) -> dict[str, tuple[Step, SamplingMetadata]]:
    logits = torch.randn(_ROWS, vocab_size, device=device).to(torch.bfloat16)
    found: dict[str, tuple[Step, SamplingMetadata]] = {}
    for name, params in _DRAWS.items():
        metadata = SamplingMetadata.from_params([params] * _ROWS, device=device, positions=range(_ROWS))
        found[name] = (lambda metadata: sampler.sample(logits, metadata)), metadata
    for name, (known, params) in _VERIFICATIONS.items():
        q = {} if known is None else {known: logits[: _REQUESTS * _MOST_DRAFTS].softmax(-1)}
        drafts = Drafts.from_lists([[5] * _MOST_DRAFTS] * _REQUESTS, device=device, **q)
        slots = [request for request in range(_REQUESTS) for _ in range(_MOST_DRAFTS + 1)]
        metadata = SamplingMetadata.from_params(
            [params] * _REQUESTS, device=device, positions=range(len(slots)), row_index=slots
        )
        step: Step = lambda metadata, drafts=drafts: sampler.verify(logits, drafts, metadata)  # noqa: E731
        found[name] = step, metadata
    return found


@contextlib.contextmanager
def _no_launches(*, compiled: bool) -> Iterator[None]:
    """Leave out every launch, and unless ``compiled`` every compilation."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(launch.Launch, "__call__", _nothing))
        if not compiled:
            for name in ("compile_kernel", "compile_all"):
                stack.enter_context(mock.patch.object(launch, name, mock.MagicMock()))
        yield


def _nothing(*_: object) -> None:
    """Launch nothing."""


def _times(setting: Setting, step: Step, batches: list[SamplingMetadata], calls: int) -> list[float]:
    """Microseconds of single calls, each with the next of the batches."""
    found = []
    for metadata in itertools.islice(itertools.cycle(batches), 20):
        step(metadata)
    gc.disable()
    try:
        for metadata in itertools.islice(itertools.cycle(batches), calls):
            setting.synchronize()
            start = perf_counter()
            step(metadata)
            found.append(1e6 * (perf_counter() - start))
    finally:
        gc.enable()
    return found


def _figures(times: list[float]) -> tuple[float, float]:
    return min(times), statistics.median(times)
