"""Times vLLM's engine and the calls of its sampler, with tokendraw-vllm and without, and compares its tokens.

    python benchmarks/engine_gpu.py MODEL --output benchmarks/results/h200_engine.md

``MODEL`` is a folder; where it holds no model, a Qwen2 of random weights is written there, 0.9 billion by default.
Four engines start one after the other, each in a process of its own: vLLM alone and with the adapter, without drafts
and with drafts from n-grams. ``--drafts drawn`` starts two instead, with drafts drawn by a model of one layer, whose
steps vLLM captures in no CUDA graph; events stand around the draw of each draft too. CUDA events stand around each call
of vLLM's V2 ``Sampler`` or ``RejectionSampler``, from the logits to the tokens. "Queued" calls find the GPU at work, as
behind a large model: the figure is the time of the GPU. A "call" is one as this engine makes it, whose small model lets
the GPU wait for the host. A step is all of vLLM between two tokens of a request. Prompts of the engines with drafts
repeat themselves, so that n-grams are found. On a CPU, with vLLM's V1 runner, only the steps are timed; there
``--layers 2 --hidden-size 64`` leave mostly sampling of a step.

Every engine also draws greedy texts, which have to be the same four times, and a text with a seed alone, beside others
and in another place of the batch. vLLM's monitor of Triton reports the kernels compiled after the start.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPORT = re.compile(r"Triton kernel JIT compilation during inference: (\w+)")
ADAPTERS = {"vLLM alone": "0", "with tokendraw-vllm": "1"}
"""Values of ``TOKENDRAW_VLLM`` by the name of an engine."""
PROMPT_TOKENS = 16
BOTH: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
Request = Callable[[int, int], dict[str, Any]]
"""Sampling parameters of a request, from its number and the number of requests."""
CASES: dict[str, Request] = {
    "no filter": lambda i, n: {"temperature": 1.0},
    "k = 50, p = 0.9": lambda i, n: BOTH,
    "p = 0.9": lambda i, n: {"temperature": 0.8, "top_p": 0.9},
    "k = 50, p = 0.9, one seed": lambda i, n: BOTH | ({"seed": 1234} if i == n // 2 else {}),
    "k = 50, p = 0.9, one presence penalty": lambda i, n: (
        BOTH | ({"presence_penalty": 0.5} if i == n // 3 else {})
    ),
    "k = 50, p = 0.9, five log-probabilities": lambda i, n: BOTH | {"logprobs": 5},
    "greedy": lambda i, n: {"temperature": 0.0},
}
SPECULATION = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
DRAWN = {"method": "draft_model", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}
"""The draft model stands in the folder of :func:`draft_folder`."""
MOST_REQUESTS = 256
QUEUED_CYCLES, QUEUED_TOKENS = 6_000_000, 24
"""Work of the GPU before a queued call, 3 to 4 milliseconds, and the tokens drawn so by each request."""


def main() -> None:
    """Start the engines in turns, and print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 64, MOST_REQUESTS])
    parser.add_argument("--tokens", type=int, default=64, help="drawn by each request of a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--drafts", choices=("both", "with", "without", "drawn"), default="both")
    parser.add_argument("--timeout", type=float, default=280.0, help="seconds for an engine")
    parser.add_argument("--layers", type=int, default=6, help="of a model that is written")
    parser.add_argument("--hidden-size", type=int, default=2048, help="likewise, as is the next")
    parser.add_argument("--vocab-size", type=int, default=151936)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one-engine", action="store_true", help="measure in this process, print JSON")
    options = parser.parse_args()
    if options.one_engine:
        print(json.dumps(measured(options)), flush=True)
        return
    write_model(options.model, options, options.layers)
    if options.drafts == "drawn":
        write_model(draft_folder(options.model), options, layers=1)
    text = "\n".join(lines(options)) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


def write_model(folder: Path, options: argparse.Namespace, layers: int) -> None:
    """Write a Qwen2 in bfloat16, whose logits have a standard deviation of 3, where there is no model."""
    if (folder / "config.json").exists():
        return
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=options.vocab_size,
        hidden_size=options.hidden_size,
        intermediate_size=3 * options.hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=max(1, options.hidden_size // 128),
        num_key_value_heads=max(1, options.hidden_size // 256),
        max_position_embeddings=4096,
        initializer_range=options.hidden_size**-0.5,
        tie_word_embeddings=False,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"), torch.no_grad():
        model = Qwen2ForCausalLM(config)
        model.lm_head.weight.mul_(3)
        model.to(torch.bfloat16).save_pretrained(folder)


def kernels() -> set[str]:
    """Return the names of triton-gumbel's kernels."""
    import tokendraw_triton_gumbel

    sources = Path(tokendraw_triton_gumbel.__file__).parent.glob("kernels/**/*.py")
    return {name for path in sources for name in re.findall(r"^def (\w+)", path.read_text(), re.MULTILINE)}


def lines(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the tables."""
    results: dict[tuple[str, str], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for drafts in ("without", "with") if options.drafts == "both" else (options.drafts,):
            for adapter in ADAPTERS:
                results[adapter, drafts] = run_engine(options, adapter, drafts, Path(cache, adapter))
                print(adapter, drafts, results[adapter, drafts], file=sys.stderr, flush=True)
    alone, ours = ADAPTERS
    yield f"`python benchmarks/engine_gpu.py MODEL`\n\n{next(iter(results.values()))['versions']}"
    for drafts in dict.fromkeys(each for _, each in results):
        engines = results[alone, drafts], results[ours, drafts]
        yield f"\n## {drafts.capitalize()} drafts\n"
        yield (
            "| | requests | vLLM alone, us queued | adapter | ratio "
            "| vLLM alone, us a call | adapter | ratio | vLLM alone, ms a step | adapter |"
        )
        yield f"| --- {'| --: ' * 9}|"
        for (name, requests, before), (_, _, after) in zip(*(each["cases"] for each in engines), strict=True):
            cells = [name, str(requests)]
            for kind in ("queued_us", "us"):
                times = before[kind], after[kind]
                cells += [f"{times[0]:.0f}", f"{times[1]:.0f}", f"{times[1] / times[0]:.2f}"]
            cells += [f"{each['step_ms']:.2f}" for each in (before, after)]
            yield f"| {' | '.join(cells)} |"
        yield ""
        same = [x == y for x, y in zip(*(each["greedy"] for each in engines), strict=True)]
        yield f"Greedy texts alike with and without the adapter: {sum(same)} of {len(same)}."
        for adapter, each in zip((alone, ours), engines, strict=True):
            seeds = ", ".join(f"{place} {count}" for place, count in each["seeds"].items())
            yield (
                f"{adapter[0].upper()}{adapter[1:]}: ready in {each['ready']:.1f} s; greedy texts alike in a second "
                f"run: {each['greedy_again']} of {len(same)}; tokens of {options.tokens} of a text with a seed "
                f"that are as among {max(options.requests) - 1} others: {seeds}; compiled after the start: "
                f"{', '.join(each['compiled']) or 'none'}."
            )


def run_engine(options: argparse.Namespace, adapter: str, drafts: str, cache: Path) -> dict[str, Any]:
    """Start an engine in a new process; return the result of :func:`measured`, and the reported kernels."""
    import torch

    settings = {
        "TOKENDRAW_VLLM": ADAPTERS[adapter],
        "TRITON_CACHE_DIR": str(cache),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": str(int(torch.cuda.is_available())),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "START": str(time.time()),
    }
    sizes = [str(size) for size in options.requests]
    command = [sys.executable, __file__, str(options.model), "--one-engine", "--drafts", drafts]
    command += ["--tokens", str(options.tokens), "--rounds", str(options.rounds), "--requests", *sizes]
    run = subprocess.run(
        command,
        check=False,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=options.timeout,
    )
    if run.returncode:
        sys.exit(f"{command} failed:\n{run.stdout[-3000:]}\n{run.stderr[-6000:]}")
    log = run.stdout + run.stderr
    print("\n".join(line for line in log.splitlines() if "tokendraw:" in line), file=sys.stderr)
    (found,) = (line for line in run.stdout.splitlines() if line.startswith('{"versions"'))
    reported = {*REPORT.findall(log)}
    return json.loads(found) | {"compiled": sorted(reported & kernels()) if reported else []}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Start an engine in this process and measure it.

    :returns: ``versions``, ``ready`` in seconds since the process was started, ``cases`` as [name, requests, figures],
        ``greedy`` and ``greedy_again``, and ``seeds``: by place, the tokens before the first that differs.
    """
    import torch
    import vllm

    has_drafts, on_gpu = options.drafts in ("with", "drawn"), torch.cuda.is_available()
    calls = {"": timed_calls(has_drafts) if on_gpu else Calls()}
    more: dict[str, Any] = {"enforce_eager": True}
    if on_gpu:
        more = {
            "gpu_memory_utilization": 0.6,
            "jit_monitor_verbose": True,
            "kernel_config": {"enable_flashinfer_autotune": False},
            "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
        }
    if has_drafts:
        drawn = DRAWN | {"model": str(draft_folder(options.model))}
        more["speculative_config"] = drawn if options.drafts == "drawn" else SPECULATION
    llm = vllm.LLM(
        model=str(options.model),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=max(options.requests),
        enable_prefix_caching=False,
        disable_log_stats=True,
        seed=0,
        **more,
    )
    if on_gpu and options.drafts == "drawn":
        calls[": a draft"] = timed_drafts()
    ready = time.time() - float(os.environ["START"])
    vocab_size = llm.llm_engine.model_config.get_vocab_size()
    prompts = make_prompts(max(options.requests), vocab_size, repeated=has_drafts)

    def draw(
        requests: Sequence[dict[str, Any]], tokens: int, order: Sequence[int] | None = None
    ) -> list[list[int]]:
        params = [
            vllm.SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, **request)
            for request in requests
        ]
        chosen = [prompts[i] for i in (order or range(len(requests)))]
        return [list(each.outputs[0].token_ids) for each in llm.generate(chosen, params, use_tqdm=False)]

    measure(draw, [CASES["no filter"](0, 1)], options, calls)  # counts nowhere: the first steps are slower
    cases = [
        [f"{name}{call}", size, figures]
        for size in options.requests
        for name in CASES
        for call, figures in measure(
            draw, [CASES[name](i, size) for i in range(size)], options, calls
        ).items()
    ]
    greedy, again = (draw([{"temperature": 0.0}] * max(options.requests), options.tokens) for _ in range(2))
    device = torch.cuda.get_device_name() if on_gpu else "a CPU"
    return {
        "versions": f"{device}, vLLM {vllm.__version__}, torch {torch.__version__}",
        "ready": ready,
        "cases": cases,
        "greedy": greedy,
        "greedy_again": sum(x == y for x, y in zip(greedy, again, strict=True)),
        "seeds": compare_seeds(draw, max(options.requests), options.tokens),
    }


@dataclass
class Calls:
    """The calls of vLLM's sampler of this process."""

    is_queued: bool = False
    """Whether the GPU gets other work before each call."""
    events: list[tuple[int, Any, Any]] = field(default_factory=list)
    """Of each call the number of logits rows, and the events before and after."""

    def time(self, logits: Any, call: Callable[[], Any]) -> Any:
        """Make a call between two events."""
        import torch

        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        if self.is_queued:
            torch.cuda._sleep(QUEUED_CYCLES)
        events[0].record()
        output = call()
        events[1].record()
        self.events.append((logits.shape[0], *events))
        return output

    def median(self, rows: int) -> float:
        """Return the median microseconds of the calls with at least so many rows, NaN for none; forget the calls."""
        if not self.events:
            return float("nan")
        import torch

        torch.cuda.synchronize()
        times = [begin.elapsed_time(end) * 1e3 for count, begin, end in self.events if count >= rows]
        self.events.clear()
        return statistics.median(times)


def timed_calls(has_drafts: bool) -> Calls:
    """Put events around the calls of vLLM's sampler of this process."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    calls = Calls()
    sampler = RejectionSampler if has_drafts else Sampler
    original = sampler.__call__

    def timed(self: Any, logits: Any, *arguments: Any, **options: Any) -> Any:
        return calls.time(logits, lambda: original(self, logits, *arguments, **options))

    sampler.__call__ = timed
    return calls


def timed_drafts() -> Calls:
    """Put events around the draws of drafts of this process, whose engine is there."""
    from vllm.v1.worker.gpu.spec_decode import speculator

    calls, original = Calls(), speculator.gumbel_sample

    def timed(logits: Any, *arguments: Any, **options: Any) -> Any:
        return calls.time(logits, lambda: original(logits, *arguments, **options))

    speculator.gumbel_sample = timed
    return calls


def draft_folder(model: Path) -> Path:
    """Return the folder of the draft model beside that of the target."""
    return model.with_name(f"{model.name}-draft")


def measure(
    draw: Callable[..., Any],
    requests: list[dict[str, Any]],
    options: argparse.Namespace,
    calls: dict[str, Calls],
) -> dict[str, dict[str, float]]:
    """Return the medians of queued calls and of calls in microseconds, and the milliseconds of a step, by call."""
    draw(requests, 8)  # compiles what is left to compile
    for each in calls.values():
        each.events.clear()
    seconds: dict[int, list[float]] = {1: [], options.tokens: []}
    for _ in range(options.rounds):
        for tokens, times in seconds.items():
            begun = time.perf_counter()
            draw(requests, tokens)
            times.append(time.perf_counter() - begun)
    step = (min(seconds[options.tokens]) - min(seconds[1])) / max(1, options.tokens - 1)
    found = {name: {"us": each.median(len(requests)), "step_ms": step * 1e3} for name, each in calls.items()}
    for name, each in calls.items():
        each.is_queued = True
        draw(requests, min(options.tokens, QUEUED_TOKENS))
        each.is_queued = False
        found[name]["queued_us"] = each.median(len(requests))
        for other in calls.values():
            other.events.clear()
    return found


def compare_seeds(draw: Callable[..., Any], size: int, tokens: int) -> dict[str, int]:
    """Count by place the tokens of a seeded text before the first that differs from the text among other requests."""

    def text(count: int, place: int, others: dict[str, Any]) -> list[int]:
        requests = [dict(others) for _ in range(count)]
        requests[place] = BOTH | {"seed": 77}
        order = list(range(count))
        order[place], order[0] = 0, place  # the prompt is the same everywhere
        drawn: list[int] = draw(requests, tokens, order)[place]
        return drawn

    base, middle = text(size, size // 2, BOTH), size // 2
    places = {
        "again": (size, middle, BOTH),
        "last": (size, size - 1, BOTH),
        "beside greedy ones": (size, middle, {"temperature": 0.0}),
        "of 3": (min(3, size), min(1, size - 1), BOTH),
        "alone": (1, 0, BOTH),
    }
    return {name: alike(base, text(*place)) for name, place in places.items()}


def alike(one: list[int], other: list[int]) -> int:
    """Count the tokens before the first that differs."""
    return next((i for i, (x, y) in enumerate(zip(one, other, strict=True)) if x != y), len(one))


def make_prompts(count: int, vocab_size: int, *, repeated: bool) -> list[dict[str, list[int]]]:
    """Make prompts of token ids, each four times in a row where n-grams are to be found."""
    rng = random.Random(3)
    texts = [[rng.randrange(10, vocab_size - 10) for _ in range(PROMPT_TOKENS)] for _ in range(count)]
    return [{"prompt_token_ids": text * 4 if repeated else text} for text in texts]


if __name__ == "__main__":
    main()
