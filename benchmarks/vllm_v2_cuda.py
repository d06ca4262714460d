"""Times the draws of vLLM's V2 sampler on a GPU against tokendraw-vllm's, in a single process, and prints a table.

    python benchmarks/vllm_v2_cuda.py --sources FOLDER --output benchmarks/results/vllm_v2_h200.md

``FOLDER`` holds ``vllm``, the Python sources of an official wheel (``pip download --no-deps vllm==0.33.0``, unpacked).
vLLM itself need not be installed: the sampler, its states, processors and kernels are vLLM's, the rest is stubbed, as
``tests/fakes/vllm_v2_sources.py`` says. A step is ``Sampler.__call__`` with all that it does around the draw. vLLM's
own draws come with FlashInfer, where it is installed, and with vLLM's Triton kernels.

``--steps`` steps are launched back to back and waited for once, so a figure is the larger of the host's and the GPU's
time a step. The contenders take turns; the fastest of the rounds counts. Before that their greedy tokens are compared.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fakes"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integrations" / "vllm" / "src"))

import vllm_v2_sources

BOTH = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
CASES: dict[str, list[dict[str, Any]]] = {
    "k = 50, p = 0.9": [BOTH],
    "k = 50, p = 0.9, one seed": [BOTH] * 255 + [{**BOTH, "seed": 1}],
    "k = 50, p = 0.9, one greedy": [BOTH] * 255 + [{"temperature": 0.0}],
    "k = 50, p = 0.9, one presence penalty": [BOTH] * 255 + [{**BOTH, "presence_penalty": 0.5}],
    "p = 0.9": [{"temperature": 0.8, "top_p": 0.9}],
    "none": [{"temperature": 0.8}],
    "none, T = 1": [{}],
    "greedy": [{"temperature": 0.0}],
}
"""Parameters of the requests, which take turns where there are several."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--vocab-size", type=int, default=151936)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    vllm_v2_sources.use(options.sources, device)
    from tokendraw_vllm import _engine, _v2

    if (reason := _engine.misfit()) is not None:
        sys.exit(reason)
    _v2.install()
    lines = [
        f"`python benchmarks/vllm_v2_cuda.py {' '.join(sys.argv[1:])}`",
        "",
        f"{torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}, torch {torch.__version__}, sources of "
        f"{options.sources.name}. Microseconds a step of `Sampler.__call__`, V = {options.vocab_size:,}, "
        f"{options.dtype}.",
        "",
    ]
    with torch.inference_mode():
        lines += table(options, device)
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


def table(options: argparse.Namespace, device: torch.device) -> list[str]:
    has_flashinfer = device.type == "cuda" and importlib.util.find_spec("flashinfer") is not None
    owns = ["vLLM's own, FlashInfer"] * has_flashinfer + ["vLLM's own, Triton"]
    lines = [
        f"| batch | requests | {' | '.join(owns)} | tokendraw | times faster than the fastest |",
        "|--:|---|" + "--:|" * (len(owns) + 2),
    ]
    for batch in options.batches:
        logits = [
            (torch.randn(batch, options.vocab_size, device=device) * 3).to(getattr(torch, options.dtype))
            for _ in range(3)  # in turns, so that none stays in the cache
        ]
        for name, case in CASES.items():
            if len(case) > batch:
                continue
            contenders = {who: contender(options, device, batch, case, who) for who in (*owns, "tokendraw")}
            best = dict.fromkeys(contenders, float("inf"))
            for _ in range(options.rounds):
                for who, step in contenders.items():
                    best[who] = min(best[who], timed(step, logits, options.steps, device))
            own = [best[who] for who in owns]
            lines.append(
                f"| {batch} | {name} | {' | '.join(f'{t:.1f}' for t in own)} | {best['tokendraw']:.1f} | "
                f"{min(own) / best['tokendraw']:.2f} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def contender(
    options: argparse.Namespace, device: torch.device, batch: int, case: list[dict[str, Any]], who: str
) -> Callable[[torch.Tensor], Any]:
    """Make a step of a contender, after a check of its greedy tokens and its first draw."""
    engine = vllm_v2_sources.Engine(options.vocab_size, batch, device)
    slots = engine.sampler._tokendraw
    if who == "tokendraw":
        assert slots is not None, "vLLM was left alone: the log says why"
    else:
        engine.sampler._tokendraw = None
        engine.sampler.use_flashinfer = who.endswith("FlashInfer")
    for slot in range(batch):
        engine.add(slot, **case[slot * len(case) // batch])
    rows = engine.batch(range(batch), [7] * batch)
    logits = torch.randn(batch, options.vocab_size, device=device).to(getattr(torch, options.dtype))
    found = engine.sampler(logits, rows).sampled_token_ids.flatten()
    assert bool(((found >= 0) & (found < options.vocab_size)).all())
    greedy = torch.tensor(
        [case[slot * len(case) // batch].get("temperature") == 0.0 for slot in range(batch)], device=device
    )
    assert torch.equal(found[greedy], logits.float().argmax(1)[greedy]), f"greedy tokens of {who}"
    assert who != "tokendraw" or slots._drawing.sampler is not None, (
        "tokendraw's draw failed: the log says why"
    )
    return lambda these: engine.sampler(these, rows)


def timed(
    step: Callable[[torch.Tensor], Any], logits: list[torch.Tensor], steps: int, device: torch.device
) -> float:
    """Microseconds a step, back to back."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for _ in range(3):
        step(logits[0])
    wait()
    start = time.perf_counter()
    for turn in range(steps):
        step(logits[turn % len(logits)])
    wait()
    return (time.perf_counter() - start) / steps * 1e6


if __name__ == "__main__":
    os.environ.setdefault("TOKENDRAW_DEBUG", "0")
    main()
