"""Time filters from moments beside min-p in their place, and XTC and ``temperature_last`` beside the batch without.

``python benchmarks/filters.py --output benchmarks/results/h100_filters.md``, and ``--rules`` for XTC and
``temperature_last``; with ``--verify rejection`` in a verification, whose rows are those of the target. Medians of CUDA
graphs over buffers that no cache holds; a read of the same buffers in turn. Min-p is the one whose floor is that of the
filter in the median row.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

import tokendraw
from tokendraw import Drafts, Need, SamplingMetadata, SamplingParams, speculative
from tokendraw.plugin import VerifyMode
from tokendraw_bench import Cell, TimedCall, make_inputs, markdown_table, measure, timer_for

FILTERS = {
    "top_n_sigma = 1": {"top_n_sigma": 1.0},
    "top_n_sigma = 2": {"top_n_sigma": 2.0},
    "epsilon_cutoff = 3e-4": {"epsilon_cutoff": 3e-4},
    "eta_cutoff = 2e-3": {"eta_cutoff": 2e-3},
    "p_less": {"p_less": 1.0},
    "all four": {"top_n_sigma": 2.0, "epsilon_cutoff": 1e-5, "eta_cutoff": 1e-4, "p_less": 1.0},
}
BASES = {"none": {}, "p = 0.9": {"top_p": 0.9}, "k = 50, p = 0.9": {"top_k": 50, "top_p": 0.9}}
RULES = {
    "temperature_last": {"filter_order": "temperature_last"},
    "XTC": {"xtc_probability": 0.5},
    "both": {"filter_order": "temperature_last", "xtc_probability": 0.5},
}
RULE_BASES = {
    "k = 50, p = 0.9": ("gaussian", {"top_k": 50, "top_p": 0.9}),
    "k = 40, p = 0.95, min-p = 0.05": ("gaussian", {"top_k": 40, "top_p": 0.95, "min_p": 0.05}),
    "p = 0.9, 100 tokens": ("peaked-100", {"top_p": 0.9}),
    "min-p = 0.05": ("gaussian", {"min_p": 0.05}),
    "k = 1,000": ("gaussian", {"top_k": 1000}),
    "p = 0.9": ("gaussian", {"top_p": 0.9}),
}
_RULE_TEMPERATURE = 0.8
_DRAFTS = 3
"""Drafts a request."""


class Comparison(NamedTuple):
    """Two draws of the same logits."""

    beside: str
    name: str
    first: dict[str, Any]
    second: dict[str, Any]
    """Fields of the requests."""


def filter_comparisons(name: str, logits: torch.Tensor) -> Iterator[Comparison]:
    """Yield each filter from moments behind min-p with the same floor."""
    rows, device = len(logits), logits.device
    bounded = tokendraw.load_sampler(name, device=device, need=Need(threshold=True))
    for beside, base in BASES.items():
        for title, filters in FILTERS.items():
            threshold = bounded.sample(logits, _metadata(device, rows, {"filters": filters})).threshold
            assert threshold is not None
            min_p = (threshold - logits.float().amax(-1)).exp().median().item()
            yield Comparison(beside, title, base | {"min_p": min_p}, base | {"filters": filters})


def rule_comparisons(beside: str, base: dict[str, Any]) -> Iterator[Comparison]:
    """Yield XTC and ``temperature_last`` behind the same draw without, whose filters look at the same temperature."""
    for title, fields in RULES.items():
        filtered_at = 1.0 if "filter_order" in fields else _RULE_TEMPERATURE
        first = base | {"temperature": filtered_at}
        yield Comparison(beside, title, first, base | fields | {"temperature": _RULE_TEMPERATURE})


def _metadata(device: torch.device, rows: int, fields: dict[str, object]) -> SamplingMetadata:
    params = [SamplingParams(**fields, seed=i) for i in range(rows)]
    return SamplingMetadata.from_params(params, device=device, positions=range(rows))


def _sample(sampler: tokendraw.Sampler, metadata: SamplingMetadata, logits: torch.Tensor) -> object:
    return sampler.sample(logits, metadata)


def _verification(
    sampler: tokendraw.Sampler,
    device: torch.device,
    rows: int,
    size: int,
    fields: dict[str, object],
    mode: VerifyMode,
) -> Callable[[torch.Tensor], object]:
    """Return a verification of random drafts from the logits of other rows, so that most are rejected."""
    requests = rows // (_DRAFTS + 1)
    counts = torch.full((requests,), _DRAFTS)
    offsets = speculative.cu_num_logits(counts).to(device)
    ids = torch.randint(size, (requests * _DRAFTS,), generator=torch.Generator().manual_seed(0)).to(device)
    drafts = Drafts(draft_token_ids=ids, cu_num_logits=offsets, max_drafts=_DRAFTS)
    metadata = SamplingMetadata.from_params(
        [SamplingParams(**fields, seed=i) for i in range(requests)],
        device=device,
        positions=range(rows),
        row_index=speculative.row_index(offsets, rows),
    )

    def verify(logits: torch.Tensor) -> object:
        return sampler.verify(logits, replace(drafts, draft_logits=logits[: len(ids)]), metadata, mode=mode)

    return verify


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sampler", default="triton-gumbel")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 64, 1])
    parser.add_argument("--vocab-size", type=int, default=151_936)
    parser.add_argument("--rules", action="store_true", help="time XTC and temperature_last")
    parser.add_argument(
        "--verify",
        choices=["rejection", "block", "coupled"],
        help="time verifications of this mode, not draws",
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.verify and any(rows % (_DRAFTS + 1) for rows in arguments.rows):
        parser.error(f"--verify needs --rows that are multiples of {_DRAFTS + 1}, found {arguments.rows}.")
    device, lines = torch.device(arguments.device), []
    sampler = tokendraw.load_sampler(arguments.sampler, device=device)
    designs = list(RULE_BASES.items()) if arguments.rules else [("", ("gaussian", {}))]

    def timed(fields: dict[str, Any], rows: int) -> TimedCall:
        if arguments.verify:
            size = arguments.vocab_size
            return TimedCall(draw=_verification(sampler, device, rows, size, fields, arguments.verify))
        return TimedCall(draw=partial(_sample, sampler, _metadata(device, rows, fields)))

    for rows in arguments.rows:
        for dtype, (beside, (family, base)) in product(("float32", "bfloat16"), designs):
            cell = Cell(rows, arguments.vocab_size, dtype, "none", family)
            timer = timer_for(device, 15)
            buffers = make_inputs(cell, device, timer.buffers(cell.nbytes))
            comparisons = filter_comparisons(arguments.sampler, buffers[0])
            for each in rule_comparisons(beside, base) if arguments.rules else comparisons:
                calls = {
                    title: timed(fields, rows)
                    for title, fields in (("first", each.first), ("second", each.second))
                }
                measured = measure(calls, buffers, timer)
                first, second = measured.microseconds().values()
                times = [f"{us:.1f}" for us in (measured.read.us, first, second)]
                lines.append([str(rows), dtype, each.beside, each.name, *times, f"{second / first:.2f}"])
                print(*lines[-1], flush=True)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    titles = (
        ("without", "with", "with / without") if arguments.rules else ("min-p", "filter", "filter / min-p")
    )
    option, stem = (" --rules --rows 256 64 16 1", "interval_rules") if arguments.rules else ("", "filters")
    if arguments.verify:
        option = option.removesuffix(" 1") + f" --verify {arguments.verify}"
        stem = f"{stem}_{arguments.verify}"
    parts = [
        f"`python benchmarks/filters.py{option} --output benchmarks/results/h100_{stem}.md`",
        f"Microseconds a call of {arguments.sampler} on {card}, V = {arguments.vocab_size:,}.",
        markdown_table(["rows", "dtype", "beside", "filter", "read", *titles], lines, ()),
    ]
    text = "\n\n".join(parts) + "\n"
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
