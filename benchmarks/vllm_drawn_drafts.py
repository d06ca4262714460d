"""Times the verification of drawn drafts as tokendraw-vllm lays them out, and prints a table.

    python benchmarks/vllm_drawn_drafts.py --output benchmarks/results/h200_drawn_drafts.md

Three drafts a request, drawn at T = 0.8 from logits with a standard deviation of 3, bfloat16, V = 151,936. The
probabilities of the drafts come from the adapter's kernels, or from operations of torch, as on a CPU; both ways have to
emit the same tokens. Beside them: a verification of chosen drafts, which needs no probabilities, and a sum over the
target's logits, which reads them. Medians of 20 replays of a CUDA graph with one call.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tokendraw
from tokendraw import BatchFacts, SamplingMetadata, VerifyOutput
from tokendraw.plugin import VerifyMode
from tokendraw_vllm import _v2_draft_kernels, _v2_drafts

V, K, SLOTS, TEMPERATURE = 151936, 3, 256, 0.8
FILTERS: dict[str, dict[str, Any]] = {
    "k = 50, p = 0.9": {"max_top_k": 50, "all_top_k": True},
    "p = 0.9": {"max_top_k": 0, "all_top_k": False},
}
DEVICE = torch.device("cuda")
KERNELS, TORCH = _v2_drafts.probabilities, _v2_drafts.probabilities_by_torch


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64, SLOTS])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    text = "\n".join(lines(options.requests)) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


def lines(sizes: list[int]) -> Iterator[str]:
    """Yield the lines of the table."""
    torch.manual_seed(1)
    sampler = tokendraw.load_sampler(device=DEVICE)
    cache = (torch.randn(SLOTS, K, V, device=DEVICE) * 3).bfloat16()
    _v2_draft_kernels.warm_up(DEVICE, cache.dtype, V)
    yield "`python benchmarks/vllm_drawn_drafts.py`\n"
    yield f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {sampler.name}\n"
    yield (
        "| requests | filters | read, us | chosen drafts | drawn, by torch | drawn, by kernels | torch / kernels "
        "| probabilities alone: torch | kernels | requests whose tokens differ |"
    )
    yield f"| --: | --- {'| --: ' * 8}|"
    for requests in sizes:
        batch = Batch(sampler, cache, requests)
        read = microseconds(lambda batch=batch: batch.target.view(torch.int32).sum())
        alone = [
            microseconds(functools.partial(batch.probabilities, compute)) for compute in (TORCH, KERNELS)
        ]
        for name in FILTERS:
            calls = [functools.partial(batch.verify, name, compute) for compute in (None, TORCH, KERNELS)]
            differ = int((calls[1]().token_ids != calls[2]().token_ids).any(1).sum())
            chosen, by_torch, by_kernels = map(microseconds, calls)
            cells = [f"{each:.0f}" for each in (read, chosen, by_torch, by_kernels)]
            cells += [f"{by_torch / by_kernels:.2f}", *(f"{each:.0f}" for each in alone), str(differ)]
            yield f"| {requests} | {name} | {' | '.join(cells)} |"


class Batch:
    """Requests with K drawn drafts each, as vLLM's runner passes them."""

    def __init__(self, sampler: tokendraw.Sampler, cache: Tensor, requests: int) -> None:
        """Draw the drafts.

        :param cache: [slots, K, V]: their logits.
        """
        self._sampler, self._cache = sampler, cache
        count, width = requests * (K + 1), K + 1
        rows = torch.arange(count, device=DEVICE)
        self.target = (torch.randn(count, V, device=DEVICE) * 3).bfloat16()
        self._slots, self._steps = (rows // width).int(), (rows % width).int()
        self._offsets = torch.arange(requests + 1, device=DEVICE, dtype=torch.int32) * width
        self._fed = torch.zeros(count, dtype=torch.int32, device=DEVICE)
        for step in range(K):
            chances = torch.softmax(cache[:requests, step].float() / TEMPERATURE, -1)
            self._fed.view(requests, width)[:, step + 1] = torch.multinomial(chances, 1).squeeze(1)
        self._temperature = torch.full((SLOTS,), TEMPERATURE, device=DEVICE)
        self._judging = rows[self._steps < K]
        self._layouts = _v2_drafts.DraftLayouts()

    def verify(self, filters: str, compute: Callable[..., Tensor] | None) -> VerifyOutput:
        """Verify the drafts.

        :param compute: computes their probabilities; None: they count as chosen.
        """
        drafts = self._layouts.lay_out(self._rows(), K, lambda: self._temperature, verifies=True)
        mode: VerifyMode = "coupled"
        if compute is not None:
            drafts, mode = replace(drafts, draft_probs=self.probabilities(compute)), "rejection"
        return self._sampler.verify(self.target, drafts, self._metadata(filters), mode=mode)

    def probabilities(self, compute: Callable[..., Tensor]) -> Tensor:
        """Compute the probabilities of the drafts: [D, V]."""
        return compute(self._rows(), self._cache, self._judging, self._temperature)

    def _rows(self) -> _v2_drafts.VerifiedRows:
        positions = torch.arange(len(self.target), device=DEVICE)
        return _v2_drafts.VerifiedRows(
            self.target,
            None,
            self._fed,
            positions,
            self._offsets,
            np.arange(len(self._offsets) - 1),
            self._slots,
            self._steps,
            self._fed,
        )

    @functools.cache  # noqa: B019 (a batch lives as long as the table)
    def _metadata(self, filters: str) -> SamplingMetadata:
        facts = BatchFacts(
            any_greedy=False, any_top_p=True, any_min_p=False, any_joint=False, filters=(), **FILTERS[filters]
        )
        return SamplingMetadata(
            temperature=self._temperature,
            top_k=torch.full((SLOTS,), 50, device=DEVICE) if facts.max_top_k else None,
            top_p=torch.full((SLOTS,), 0.9, device=DEVICE),
            seed=torch.arange(SLOTS, device=DEVICE),
            positions=torch.arange(len(self.target), device=DEVICE),
            row_index=self._slots.long(),
            facts=facts,
        )


def microseconds(call: Callable[[], Any], replays: int = 20) -> float:
    """Return the median microseconds of a call in a CUDA graph."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    main()
