"""One process with a vLLM and a model of exact logits: runs configurations or two ranks, and prints tokens as JSON.

``python vllm_judged.py FOLDER one GROUP`` or ``python vllm_judged.py FOLDER two TOKENS``
"""

import functools
import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

import tokendraw
from vllm_process import Engine, Places, fail, write_model, write_tokenizer
from vllm_v2_cases import DRAWN, ENGINES, FILTERS, JUDGED, LONG, NGRAMS, PROMPTS

if os.environ.get("TRITON_INTERPRET") == "1":  # also in processes that vLLM starts, which import this file
    import triton_on_cpu

    triton_on_cpu.filter_in_torch()

ON_GPU = torch.cuda.is_available()
V, HIDDEN_SIZE, DTYPE = (32_000, 128, "bfloat16") if ON_GPU else (1000, 64, "float32")
ALLOWED = [*range(0, V, V // 900)]  # vLLM takes up to 1,024
REQUESTS = [
    each | {"seed": 100 + i} | ({"allowed_token_ids": ALLOWED} if "allowed_token_ids" in each else {})
    for i, each in enumerate(JUDGED * 10)
]
FEW_BLOCKS = {"max_num_batched_tokens": 128, "num_gpu_blocks_override": 60}
"""Long prompts in parts, and blocks for a third of the requests at their end."""
MANY_BLOCKS = {"max_num_batched_tokens": 8192, "num_gpu_blocks_override": 400}
GRAPHS = {
    "enforce_eager": False,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}
CACHED, NOT_ASYNC = {"enable_prefix_caching": True}, {"async_scheduling": False}
SETUPS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": (MANY_BLOCKS, False),
    "CUDA graphs": (MANY_BLOCKS | GRAPHS, False),
    "scheduling not async": (MANY_BLOCKS | NOT_ASYNC, False),
    "chunked": (MANY_BLOCKS | {"max_num_batched_tokens": 128}, True),
    "chunked, preempted": (FEW_BLOCKS, True),
    "cached prefixes, preempted": (FEW_BLOCKS | CACHED, True),
    "drafts": (MANY_BLOCKS | NGRAMS, False),
    "drafts, CUDA graphs": (MANY_BLOCKS | NGRAMS | GRAPHS, False),
    "drafts, scheduling not async": (MANY_BLOCKS | NGRAMS | NOT_ASYNC, False),
    "drafts, chunked, preempted": (FEW_BLOCKS | NGRAMS, True),
    "drafts, cached prefixes": (MANY_BLOCKS | NGRAMS | CACHED, True),
}
"""Options of vLLM, and whether prompts are long."""
GROUPS = {"plain": [*SETUPS][:6], "drafts": [*SETUPS][6:], DRAWN: [DRAWN]}
FLOORED = FILTERS | {"min_p": 0.02, "logit_bias": dict.fromkeys((5, 23, 77, 600, 999), 12.0)}
"""Of one prompt: most texts are of the five tokens, and each follows each often."""
SHARED_PROMPT, FLOORED_REQUESTS = PROMPTS[0], 512


def prompts_of(*, long: bool) -> list[list[int]]:
    """A prompt for each of the requests; equal prompts share a cached prefix."""
    return [(LONG if long else PROMPTS)[i % 6] for i in range(len(REQUESTS))]


def write_models(folder: Path) -> None:
    """Write the target, and a draft model of different logits."""
    for name, seed in ("exact", 0), ("drafts", 1):
        write_model(folder / name, vocab_size=V, hidden_size=HIDDEN_SIZE, exact_seed=seed)
        write_tokenizer(folder / name / "tokenizer", vocab_size=V)


def engine(folder: Path, **options: Any) -> Engine:
    """Start vLLM with the model."""
    options |= {"gpu_memory_utilization": 0.3, "kv_cache_memory_bytes": 1 << 30} if ON_GPU else {}
    return Engine(folder / "exact", dtype=DTYPE, **options)


def texts(outputs: list[Any]) -> list[list[int]]:
    """Tokens of each request."""
    return [list(each.outputs[0].token_ids) for each in outputs]


def of_one(folder: Path, group: str) -> dict[str, Any]:
    """Texts and places of the draws by setup: of the requests, with drawn drafts of one with a floor and a bias."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    places, results = Places("V2"), {}
    for name in GROUPS[group]:
        if name == DRAWN:
            drafts = ENGINES[DRAWN]["speculative_config"] | {"model": str(folder / "drafts")}
            options = MANY_BLOCKS | {"speculative_config": drafts}
            prompts, requests = [SHARED_PROMPT] * FLOORED_REQUESTS, [FLOORED] * FLOORED_REQUESTS
        else:
            options, long = SETUPS[name]
            prompts, requests = prompts_of(long=long), REQUESTS
        llm = engine(folder, **options)
        places.counts.clear()
        results[name] = {"texts": texts(llm.outputs(prompts, requests)), "places": dict(places.counts)}
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
    return results


def of_two(folder: Path, tokens: int) -> dict[str, Any]:
    """Texts of requests by two ranks, what each rank's states hold, and what vLLM raises once the second rank fails."""
    llm = engine(
        folder,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        max_model_len=tokens + 10,
        max_num_seqs=len(JUDGED) * 2,
        **MANY_BLOCKS,
    )
    seeded = [each | {"max_tokens": tokens} for each in REQUESTS[: len(JUDGED)]]
    requests = seeded + [{**each, "seed": None} for each in seeded]
    found = texts(llm.outputs(prompts_of(long=False)[: len(requests)], requests))
    held = llm.llm.collective_rpc(held_tokens)
    try:
        llm.llm.collective_rpc(break_second_rank)
        llm.outputs(PROMPTS[:1], seeded[1:2])
        error = ""
    except Exception as raised:
        error = type(raised).__name__
    return {"texts": found, "held": held, "error": error}


def held_tokens(worker: Any) -> list[list[int]]:
    """The tokens in vLLM's states on a rank, by slot, with the prompt."""
    states = worker.model_runner.req_states
    rows, lengths = (each.gpu.cpu().tolist() for each in (states.all_token_ids, states.total_len))
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def break_second_rank(worker: Any) -> None:
    """Have tokendraw's draws raise on the second rank, whose clean-up then waits, as NCCL's does, for the first."""
    if worker.rank == 1:
        tokendraw.Sampler.sample = fail
        worker.shutdown = functools.partial(time.sleep, 10_000)


def main() -> None:
    """Run, print the results, and end without waiting for a dead engine."""
    folder, count, what = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    status = 1
    try:
        if not (folder / "drafts").exists():
            write_models(folder)
        results = of_one(folder, what) if count == "one" else of_two(folder, int(what))
        print(json.dumps(results), flush=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
