"""Times ``model.generate`` of transformers with built-in sampling and through tokendraw, and prints a table.

    python benchmarks/transformers_generate.py --threads 1      # CPU: two layers, three vocabularies, batches 1, 4, 16
    python benchmarks/transformers_generate.py --device cuda --model 0.5b --batches 64 256 --caches dynamic static
    python benchmarks/transformers_generate.py --output benchmarks/results/transformers_cpu.md

The models are Qwen2 with random weights, made in memory. Their logits are spread to a standard deviation of 3, about
that of a trained model. Every row has a seed in the adapter's runs, none in transformers' own. No sampler is passed, so
each call looks up the one that it needs, as a program that only passes ``custom_generate`` has it.

* step: (a call of ``--steps`` tokens less a call of one) / (steps - 1), so without the prefill.
* loop alone: the same loop with a sampler that returns the same token at no cost. What a step takes beyond it is
  sampling. Where a GPU works behind the host, the two overlap, and the share says what sampling adds.
* tokens a second: batch x steps / the whole call, prefill included.

The three take turns; the fastest of the rounds counts, since what else a machine does only adds. With ``--cpu-time``
the time of the thread counts in place of the clock's: for one thread of a CPU that other programs use too.
``static`` is transformers' static cache with its default, which compiles the forward pass on a GPU; ``static-eager``
does not compile.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

import tokendraw
import tokendraw_transformers
from tokendraw_testing import fake_dist

FILTERS: dict[str, dict[str, Any]] = {
    "k = 50, p = 0.9": {"top_k": 50, "top_p": 0.9},
    "k = 50": {"top_k": 50},
    "p = 0.9": {"top_k": 0, "top_p": 0.9},
    "none": {"top_k": 0},
}
TEMPERATURE = 0.8
SPREAD = 3.0
MODELS: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
}


def model_of(name: str, vocab_size: int, device: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=vocab_size, tie_word_embeddings=True, max_position_embeddings=4096, **MODELS[name]
    )
    with torch.device(device):
        model = transformers.Qwen2ForCausalLM(config).to(dtype).eval()
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None  # every row runs to the end
    with torch.no_grad():
        found = model(torch.arange(1, 33, device=device)[None]).logits.float().std()
        model.model.norm.weight.mul_(SPREAD / found)
    return model


NO_SAMPLING = """
    import torch
    from tokendraw import SamplerOutput
    from tokendraw.plugin import Capabilities, PluginInfo, hookimpl

    class NoSampling:
        def __init__(self):
            self.made = {}

        def sample(self, logits, metadata):
            if len(logits) not in self.made:
                valid = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
                self.made[len(logits)] = SamplerOutput(logits.argmax(-1), valid)
            return self.made[len(logits)]

    class Plugin:
        @hookimpl
        def tokendraw_describe(self):
            sample = Capabilities(
                device_types=None, dtypes=("float32", "bfloat16", "float16"), seeding="counter", greedy=True,
                filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row")),
                filter_orders=("top_k_first", "joint"), valid_flag=True, graph_safe=True, sync_free=True,
            )
            return PluginInfo(name="no-sampling", api_version=1, priority=-1, operations={"sample": sample})

        @hookimpl
        def tokendraw_build(self, operation, device, need):
            return NoSampling()

    plugin = Plugin()
"""
"""A plugin that draws once for each number of rows, and returns the same tokens from then on."""


def without_sampling(device: str) -> tokendraw.Sampler:
    """Load a sampler without work, so that a step is the decoding loop alone."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(_installed(Path(folder))))
        try:
            return tokendraw.load_sampler("no-sampling", device=device, companion=False)
        finally:
            del sys.path[0]


def _installed(folder: Path) -> Path:
    plugins, modules = {"no-sampling": "no_sampling:plugin"}, {"no_sampling": NO_SAMPLING}
    return fake_dist(folder, "no-sampling-tokendraw", plugins=plugins, modules=modules)


def calls_for(
    model: Any, batch: int, prompt: int, cache: str, sampler: str | None, filters: dict[str, Any]
) -> dict[str, Callable[[int], object]]:
    """Return the contenders, each a function of the number of tokens."""
    ids = torch.randint(1, 1000, (batch, prompt), generator=torch.Generator().manual_seed(1)).to(model.device)
    settings = {"do_sample": True, "temperature": TEMPERATURE, **filters}
    if cache.startswith("static"):
        settings["cache_implementation"] = "static"
        settings["disable_compile"] = cache == "static-eager"
        settings["max_cache_len"] = 1024
    own = partial(model.generate, ids, attention_mask=torch.ones_like(ids), **settings)
    ours = partial(own, custom_generate=tokendraw_transformers.generate, seeds=list(range(batch)))
    nothing = without_sampling(str(model.device))
    return {
        "transformers": lambda steps: own(max_new_tokens=steps),
        "tokendraw": lambda steps: ours(max_new_tokens=steps, sampler=sampler),
        "loop": lambda steps: ours(max_new_tokens=steps, sampler=nothing),
    }


def seconds(call: Callable[[int], object], steps: int, options: argparse.Namespace) -> float:
    clock = time.thread_time if options.cpu_time else time.perf_counter
    start = clock()
    call(steps)
    if options.device != "cpu":
        torch.accelerator.synchronize()
    return clock() - start


def line(calls: dict[str, Callable[[int], object]], batch: int, options: argparse.Namespace) -> list[str]:
    steps = options.steps
    whole: dict[str, list[float]] = {name: [] for name in calls}
    one: dict[str, list[float]] = {name: [] for name in calls}
    for warm in (False, *[True] * options.rounds):
        for name, call in calls.items():
            first, all_steps = seconds(call, 1, options), seconds(call, steps, options)
            if warm:
                one[name].append(first)
                whole[name].append(all_steps)
    step = {name: 1e3 * (min(whole[name]) - min(one[name])) / (steps - 1) for name in calls}
    rate = {name: batch * steps / min(whole[name]) for name in calls}
    share = {name: max(0.0, 1 - step["loop"] / step[name]) for name in calls}
    return [
        f"{step['transformers']:.2f}",
        f"{step['tokendraw']:.2f}",
        f"{step['loop']:.2f}",
        f"{share['transformers']:.0%}",
        f"{share['tokendraw']:.0%}",
        f"{rate['transformers']:,.0f}",
        f"{rate['tokendraw']:,.0f}",
        f"{rate['tokendraw'] / rate['transformers']:.2f}",
    ]


def table(options: argparse.Namespace, dtype: torch.dtype) -> list[str]:
    lines = [
        "| vocabulary | batch | cache | filters | transformers: step ms | tokendraw: step ms | loop alone: step ms | "
        "transformers: share of sampling | tokendraw: share of sampling | transformers: tokens/s | "
        "tokendraw: tokens/s | times faster |",
        "|--:|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for vocab_size in options.vocab_sizes:
        model = model_of(options.model, vocab_size, options.device, dtype)
        for batch, cache, name in itertools.product(options.batches, options.caches, options.filters):
            calls = calls_for(model, batch, options.prompt, cache, options.sampler, FILTERS[name])
            cells = line(calls, batch, options)
            lines.append(f"| {vocab_size} | {batch} | {cache} | {name} | " + " | ".join(cells) + " |")
            print(lines[-1], file=sys.stderr)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--vocab-sizes", type=int, nargs="+", default=[1000, 32000, 151936])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument(
        "--caches", nargs="+", choices=["dynamic", "static", "static-eager"], default=["dynamic"]
    )
    parser.add_argument("--filters", nargs="+", choices=FILTERS, default=list(FILTERS))
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--steps", type=int, default=33)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="Count the time of the one thread.")
    parser.add_argument("--sampler", help="Plugin that draws. Default: the best.")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.cpu_time and (options.device != "cpu" or options.threads != 1):
        parser.error("--cpu-time needs --device cpu --threads 1")
    torch.set_num_threads(options.threads)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    sampler = tokendraw.load_sampler(options.sampler, device=options.device)
    where = (
        f"{options.threads} threads, {platform.machine()}{', CPU time' if options.cpu_time else ''}"
        if options.device == "cpu"
        else torch.cuda.get_device_name()
    )
    layers = MODELS[options.model]["num_hidden_layers"]
    head = (
        f"Qwen2 with random parameters in {str(dtype).removeprefix('torch.')}, {layers} layers of width "
        f"{MODELS[options.model]['hidden_size']}, T = {TEMPERATURE}, prompts of {options.prompt}, {options.steps} "
        f"tokens drawn; sampler {sampler.name}; transformers {transformers.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}; {where}"
    )
    text = "\n".join([head, "", *table(options, dtype)]) + "\n"
    print(text)
    if options.output:
        options.output.write_text(f"`python {' '.join(sys.argv)}`\n\n{text}")


if __name__ == "__main__":
    main()
