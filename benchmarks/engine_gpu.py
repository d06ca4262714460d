"""Times vLLM's engine and the calls of its sampler on a GPU, with tokendraw-vllm and without.

    python benchmarks/engine_gpu.py MODEL --output benchmarks/results/h200_engine.md

``MODEL`` is a folder; where it holds no model, a Qwen2 of random weights is written there, 0.9 billion by default.
Four engines start one after the other, each in a process of its own: vLLM alone and with the adapter, without drafts
and with drafts from n-grams. ``--drafts drawn`` starts two instead, with drafts drawn by a model of one layer, whose
steps vLLM captures in no CUDA graph; events stand around the draw of each draft too. CUDA events stand around each call
of vLLM's V2 ``Sampler`` or ``RejectionSampler``, from the logits to the tokens. "Queued" calls find the GPU at work, as
behind a large model: the figure is the time of the GPU. A "call" is one as this engine makes it, whose small model lets
the GPU wait for the host. A step is all of vLLM between two tokens of a request. Prompts of the engines with drafts
repeat themselves, so that n-grams are found. ``make test-engines-gpu`` judges the tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

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
    "k = 50, p = 0.9, min-p and a bias": lambda i, n: BOTH | {"min_p": 0.02, "logit_bias": {77: 2.0}},
    "greedy": lambda i, n: {"temperature": 0.0},
}
"""Beside drafts vLLM alone refuses min-p and biases: no figures."""
SPECULATION = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
DRAWN = {"method": "draft_model", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}
"""The draft model stands in the folder of :func:`draft_folder`."""
MOST_REQUESTS, HIDDEN_SIZE = 256, 2048
QUEUED_CYCLES, QUEUED_TOKENS = 6_000_000, 24
"""Work of the GPU before a queued call, 3 to 4 milliseconds, and the tokens drawn so by each request."""


def main() -> None:
    """Start the engines in turns, and print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--cases", choices=CASES, nargs="+", default=list(CASES), metavar="CASE")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 64, MOST_REQUESTS])
    parser.add_argument("--tokens", type=int, default=64, help="drawn by each request of a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--drafts", choices=("both", "with", "without", "drawn"), default="both")
    parser.add_argument("--timeout", type=float, default=280.0, help="seconds for an engine")
    parser.add_argument("--vocab-size", type=int, default=151936, help="of a model that is written")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one-engine", action="store_true", help="measure in this process, print JSON")
    options = parser.parse_args()
    if options.one_engine:
        print(json.dumps(measured(options)), flush=True)
        return
    write_model(options.model, options, layers=6)
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
        hidden_size=HIDDEN_SIZE,
        intermediate_size=3 * HIDDEN_SIZE,
        num_hidden_layers=layers,
        num_attention_heads=max(1, HIDDEN_SIZE // 128),
        num_key_value_heads=max(1, HIDDEN_SIZE // 256),
        max_position_embeddings=4096,
        initializer_range=HIDDEN_SIZE**-0.5,
        tie_word_embeddings=False,
    )
    with torch.device("cuda"), torch.no_grad():
        model = Qwen2ForCausalLM(config)
        model.lm_head.weight.mul_(3)
        model.to(torch.bfloat16).save_pretrained(folder)


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
        yield f"\nReady in {engines[0]['ready']:.1f} s and {engines[1]['ready']:.1f} s."


def run_engine(options: argparse.Namespace, adapter: str, drafts: str, cache: Path) -> dict[str, Any]:
    """Start an engine in a new process; return the result of :func:`measured`."""
    settings = {
        "TOKENDRAW_VLLM": ADAPTERS[adapter],
        "TRITON_CACHE_DIR": str(cache),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "START": str(time.time()),
    }
    command = [sys.executable, __file__, *sys.argv[1:], "--one-engine", "--drafts", drafts]
    own = {"env": os.environ | settings, "timeout": options.timeout}
    run = subprocess.run(command, check=False, capture_output=True, text=True, **own)
    if run.returncode:
        sys.exit(f"{command} failed:\n{run.stdout[-3000:]}\n{run.stderr[-6000:]}")
    log = run.stdout + run.stderr
    print("\n".join(line for line in log.splitlines() if "tokendraw:" in line), file=sys.stderr)
    (found,) = (line for line in run.stdout.splitlines() if line.startswith('{"versions"'))
    return dict(json.loads(found))


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Start an engine in this process and measure it.

    :returns: ``versions``, ``ready`` in seconds since the process was started, ``cases`` as [name, requests, figures].
    """
    import torch
    import vllm
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    has_drafts = options.drafts in ("with", "drawn")
    calls = {"": Calls(RejectionSampler if has_drafts else Sampler, "__call__")}
    more: dict[str, Any] = {}
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
        gpu_memory_utilization=0.6,
        kernel_config={"enable_flashinfer_autotune": False},
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
        **more,
    )
    if options.drafts == "drawn":
        from vllm.v1.worker.gpu.spec_decode import speculator

        calls[": a draft"] = Calls(speculator, "gumbel_sample")  # of the engine that is there
    ready = time.time() - float(os.environ["START"])
    vocab_size = llm.llm_engine.model_config.get_vocab_size()
    prompts = make_prompts(max(options.requests), vocab_size, repeated=has_drafts)

    def draw(requests: Sequence[dict[str, Any]], tokens: int) -> None:
        params = [
            vllm.SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, **request)
            for request in requests
        ]
        llm.generate(prompts[: len(requests)], params, use_tqdm=False)

    measure(draw, [CASES["no filter"](0, 1)], options, calls)  # counts nowhere: the first steps are slower
    cases = [
        [f"{name}{call}", size, figures]
        for size in options.requests
        for name in options.cases
        for call, figures in measure(
            draw, [CASES[name](i, size) for i in range(size)], options, calls
        ).items()
    ]
    device = torch.cuda.get_device_name()
    return {
        "versions": f"{device}, vLLM {vllm.__version__}, torch {torch.__version__}",
        "ready": ready,
        "cases": cases,
    }


class Calls:
    """The calls of a function of vLLM's in this process, each between two events.

    :ivar is_queued: whether the GPU gets other work before each call.
    """

    def __init__(self, owner: Any, name: str) -> None:
        import torch

        original = getattr(owner, name)
        self.is_queued = False
        self.events: list[tuple[int, Any, Any]] = []

        def timed(*arguments: Any, **options: Any) -> Any:
            (logits, *_) = (v for v in (*arguments, *options.values()) if isinstance(v, torch.Tensor))
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if self.is_queued:
                torch.cuda._sleep(QUEUED_CYCLES)
            begin.record()
            output = original(*arguments, **options)
            end.record()
            self.events.append((logits.shape[0], begin, end))
            return output

        setattr(owner, name, timed)

    def median(self, rows: int) -> float:
        """Return the median microseconds of the calls with at least so many rows, NaN for none; forget the calls."""
        import torch

        torch.cuda.synchronize()
        times = [begin.elapsed_time(end) * 1e3 for count, begin, end in self.events if count >= rows]
        self.events.clear()
        return statistics.median(times) if times else float("nan")


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
    try:
        draw(requests, 8)  # compiles what is left to compile
    except ValueError:  # vLLM refuses the request
        return {name: dict.fromkeys(("us", "queued_us", "step_ms"), float("nan")) for name in calls}
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


def make_prompts(count: int, vocab_size: int, *, repeated: bool) -> list[dict[str, list[int]]]:
    """Make prompts of token ids, each four times in a row where n-grams are to be found."""
    rng = random.Random(3)
    texts = [[rng.randrange(10, vocab_size - 10) for _ in range(PROMPT_TOKENS)] for _ in range(count)]
    return [{"prompt_token_ids": text * 4 if repeated else text} for text in texts]


if __name__ == "__main__":
    main()
