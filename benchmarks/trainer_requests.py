"""Time what trainers and evaluators ask for: thresholds, log-probabilities, those of given ids, and scores.

``python benchmarks/trainer_requests.py --output benchmarks/results/h100_trainer_requests.md``. Medians of CUDA graphs
over buffers that a cache does not hold, Gaussian logits at T = 1; reads of the same buffers in turn. Scored are tokens
drawn from the same logits, and tokens drawn evenly, most of which have large ranks.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch

import tokendraw
from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_bench import Cell, TimedCall, make_inputs, markdown_table, measure, timer_for

NUMS_GIVEN = (1, 8, 32, 128)
BASES = {"none": {}, "k = 50, p = 0.9": {"top_k": 50, "top_p": 0.9}, "p = 0.9": {"top_p": 0.9}}


def calls_of(
    name: str, device: torch.device, rows: int, size: int, base: dict[str, float]
) -> dict[str, TimedCall]:
    """Return the calls of a table's row, by the title of their column."""
    needs = (Need(logprob_ranks=False), Need(), Need(threshold=True))
    plain, ranked, bounded = (tokendraw.load_sampler(name, device=device, need=need) for need in needs)
    requests = {
        "draw": (plain, {}),
        "with threshold": (bounded, {}),
        "N = 0": (plain, {"logprobs": 0}),
        **{
            f"{count} ids": (plain, {"logprob_token_ids": range(0, size, size // count)[:count]})
            for count in NUMS_GIVEN
        },
        "N = 0 and rank": (ranked, {"logprobs": 0}),
        "32 ids and rank": (ranked, {"logprob_token_ids": range(0, size, size // 32)[:32]}),
    }
    calls = {}
    for title, (sampler, fields) in requests.items():
        params = [SamplingParams(**base, **fields, seed=i) for i in range(rows)]
        metadata = SamplingMetadata.from_params(params, device=device, positions=range(rows))
        calls[title] = TimedCall(draw=partial(_sample, sampler, metadata))
    return calls


def _sample(sampler: tokendraw.Sampler, metadata: SamplingMetadata, logits: torch.Tensor) -> object:
    return sampler.sample(logits, metadata)


def score_calls(
    name: str, device: torch.device, rows: int, size: int, base: dict[str, float], buffers: list[torch.Tensor]
) -> dict[str, TimedCall]:
    """Return the scores of a table's row, by the title of their column."""
    draws = tokendraw.load_sampler(name, device=device)
    params = [SamplingParams(**base, seed=i) for i in range(rows)]
    metadata = SamplingMetadata.from_params(params, device=device, positions=range(rows))
    likely = {each.data_ptr(): draws.sample(each, metadata).token_ids for each in buffers}
    generator = torch.Generator(device).manual_seed(1)
    even = torch.randint(size, (rows,), device=device, generator=generator)
    calls = {}
    for title, mode, num_best, tokens in (
        ("N = 0", "raw_logprobs", 0, likely),
        ("N = 20", "raw_logprobs", 20, likely),
        ("N = 0, even tokens", "raw_logprobs", 0, {}),
        ("N = 0, at T = 0.7", "temperature_logprobs", 0, likely),
        ("N = 0, processed", "processed_logprobs", 0, likely),
    ):
        need = Need(logprobs_mode=mode)
        sampler = tokendraw.load_sampler(name, device=device, need=need, operations=("sample", "score"))
        fields = {**base, "logprobs": num_best, "temperature": 0.7 if "T" in title else 1.0}
        params = [SamplingParams(**fields) for _ in range(rows)]
        metadata = SamplingMetadata.from_params(params, device=device)
        calls[title] = TimedCall(draw=partial(_score, sampler, metadata, tokens, even))
    return calls


def _score(
    sampler: tokendraw.Sampler,
    metadata: SamplingMetadata,
    tokens: dict[int, torch.Tensor],
    even: torch.Tensor,
    logits: torch.Tensor,
) -> object:
    return sampler.score(logits, tokens.get(logits.data_ptr(), even), metadata)


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sampler", default="triton-gumbel")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=151_936)
    parser.add_argument("--scored-rows", type=int, default=4096)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device, lines, head = torch.device(arguments.device), [], []
    for dtype in ("float32", "bfloat16"):
        cell = Cell(arguments.rows, arguments.vocab_size, dtype, "none", "gaussian")
        timer = timer_for(device, 15)
        buffers = make_inputs(cell, device, timer.buffers(cell.nbytes))
        for name, base in BASES.items():
            calls = calls_of(arguments.sampler, device, arguments.rows, arguments.vocab_size, base)
            measured = measure(calls, buffers, timer)
            times = measured.microseconds()
            head = ["dtype", "filters", "read", *times]
            draw = times["draw"]
            shown = [f"{us:.1f} ({us / draw:.2f})" for us in list(times.values())[1:]]
            lines.append([dtype, name, f"{measured.read.us:.1f}", f"{draw:.1f}", *shown])
            print(lines[-1], flush=True)
    scored, scored_head = [], []
    for dtype in ("float32", "bfloat16"):
        cell = Cell(arguments.scored_rows, arguments.vocab_size, dtype, "none", "gaussian")
        timer = timer_for(device, 15)
        buffers = make_inputs(cell, device, timer.buffers(cell.nbytes))
        for name, base in BASES.items():
            calls = score_calls(
                arguments.sampler, device, arguments.scored_rows, arguments.vocab_size, base, buffers
            )
            measured = measure(calls, buffers, timer)
            read = measured.read.us
            times = measured.microseconds()
            scored_head = ["dtype", "filters", "read", *times]
            shown = [f"{us:.0f} ({us / read:.2f})" for us in times.values()]
            scored.append([dtype, name, f"{read:.0f}", *shown])
            print(scored[-1], flush=True)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    parts = [
        "`python benchmarks/trainer_requests.py --output benchmarks/results/h100_trainer_requests.md`",
        f"Microseconds a call of {arguments.sampler} on {card}, {arguments.rows} x {arguments.vocab_size:,}; in "
        "brackets beside the draw without any of it. Ranks are left out but in the last two columns.",
        markdown_table(head, lines, ()),
        f"Scores of {arguments.scored_rows:,} rows with ranks and entropies, in microseconds; in brackets in reads of "
        "the logits. The mode is raw where the title names no other.",
        markdown_table(scored_head, scored, ()),
    ]
    text = "\n\n".join(parts) + "\n"
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
