"""Times the start of vLLM with tokendraw-vllm and without, with an empty and a filled Triton cache.

    python benchmarks/vllm_start.py MODEL --output benchmarks/results/h100_vllm_start.md

``MODEL`` is a folder with a model; its tokenizer is not needed. Each start is a process of its own, on the same cores:
vLLM's ``LLM`` with its V2 runner and CUDA graphs, then requests of every kind, alone and 256 at once. vLLM's monitor
of Triton reports each kernel compiled after the start; the last column names those of tokendraw among them. Starts with
and without the adapter take turns. One start before them, which counts nowhere, fills the machine's file cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPORT = re.compile(r"Triton kernel JIT compilation during inference: (\w+)")
ADAPTERS = {"vLLM alone": "0", "with tokendraw-vllm": "1"}
"""Values of ``TOKENDRAW_VLLM`` by the row of the table."""
REQUESTS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.7},
    {"top_k": 50},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 1},
    {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.5},
    {"temperature": 0.0},
)


def main() -> None:
    """Start vLLM in turns, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--filled", action="store_true", help="the machine's file cache is filled already")
    parser.add_argument("--one-start", action="store_true", help="start once in this process, print JSON")
    options = parser.parse_args()
    if options.one_start:
        print(json.dumps(start(options.model)), flush=True)
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    text = "\n".join(lines(options.model, options.cores, options.rounds, fill=not options.filled)) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


def lines(model: Path, cores: int, rounds: int, *, fill: bool) -> Iterator[str]:
    """Yield the lines of the table.

    :param fill: whether a start that counts nowhere comes first.
    """
    cases = [(adapter, cached) for cached in (False, True) for adapter in ADAPTERS]
    starts: dict[tuple[str, bool], list[dict[str, Any]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        if fill:
            started(model, "vLLM alone", Path(folder, "unused"))
        for turn in range(rounds):
            for adapter, cached in cases:
                cache = Path(folder, f"{adapter} {turn}")
                starts[adapter, cached].append(started(model, adapter, cache))
                print(adapter, cached, starts[adapter, cached][-1], file=sys.stderr, flush=True)
    versions = starts[cases[0]][0]["versions"]
    yield "`python benchmarks/vllm_start.py MODEL`\n"
    kind = (
        "one start of each kind"
        if rounds == 1
        else f"{rounds} starts of each kind in turns, median (largest)"
    )
    yield f"{versions}, {cores} cores, {kind}. Seconds.\n"
    yield "| Triton cache | | until `LLM` is ready | later than alone | first requests | compiled after the start |"
    yield "| --- | --- | --: | --: | --: | --- |"
    for adapter, cached in cases:
        ready = [each["ready"] for each in starts[adapter, cached]]
        alone = [each["ready"] for each in starts["vLLM alone", cached]]
        later = f"{statistics.median(ready) - statistics.median(alone):+.1f}" if ready != alone else ""
        requests = [each["requests"] for each in starts[adapter, cached]]
        compiled = sorted({name for each in starts[adapter, cached] for name in each["compiled"]})
        state = "filled" if cached else "empty"
        cells = (state, adapter, spread(ready), later, spread(requests), ", ".join(compiled) or "none")
        yield f"| {' | '.join(cells)} |"


def spread(seconds: list[float]) -> str:
    """Write the median and the largest of some times."""
    largest = f" ({max(seconds):.1f})" if len(seconds) > 1 else ""
    return f"{statistics.median(seconds):.1f}{largest}"


def started(model: Path, adapter: str, cache: Path) -> dict[str, Any]:
    """Start vLLM in a new process; return the result of :func:`start`, and the reported kernels."""
    settings = {
        "TOKENDRAW_VLLM": ADAPTERS[adapter],
        "TRITON_CACHE_DIR": str(cache),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_LOGGING_COLOR": "0",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, __file__, str(model), "--one-start"]
    begun = time.time()
    run = subprocess.run(
        command,
        check=False,
        env={**os.environ, **settings, "START": str(begun)},
        capture_output=True,
        text=True,
    )
    if run.returncode:
        sys.exit(f"{command} failed:\n{run.stdout[-3000:]}\n{run.stderr[-6000:]}")
    log = run.stdout + run.stderr
    print("\n".join(line for line in log.splitlines() if "tokendraw:" in line), file=sys.stderr)
    (found,) = (line for line in run.stdout.splitlines() if line.startswith('{"ready"'))
    return json.loads(found) | {"compiled": [name for name in REPORT.findall(log) if name in kernels()]}


def kernels() -> set[str]:
    """Return the names of triton-gumbel's kernels."""
    import tokendraw_triton_gumbel

    sources = Path(tokendraw_triton_gumbel.__file__).parent.glob("kernels/**/*.py")
    return {name for path in sources for name in re.findall(r"^def (\w+)", path.read_text(), re.MULTILINE)}


def start(model: Path) -> dict[str, Any]:
    """Start vLLM and send requests; return seconds since the process was started, and of the requests."""
    import torch
    import triton
    import vllm

    llm = vllm.LLM(
        model=str(model),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=256,
        gpu_memory_utilization=0.6,
        jit_monitor_verbose=True,
        disable_log_stats=True,
        kernel_config={"enable_flashinfer_autotune": False},
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    )
    ready = time.time() - float(os.environ["START"])
    begun = time.time()
    kinds = [[request] for request in REQUESTS] + [[request] * 256 for request in REQUESTS] + [REQUESTS * 32]
    for requests in kinds:
        params = [
            vllm.SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False, **request)
            for request in requests
        ]
        llm.generate([{"prompt_token_ids": [5, 6, 7]}] * len(params), params, use_tqdm=False)
    seconds = time.time() - begun
    versions = f"{torch.cuda.get_device_name()}, vLLM {vllm.__version__}, torch {torch.__version__}, "
    versions += f"triton {triton.__version__}"
    return {"ready": ready, "requests": seconds, "versions": versions}


if __name__ == "__main__":
    main()
