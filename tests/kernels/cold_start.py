"""Load triton-gumbel and draw in eight threads at once, in a process with an empty Triton cache.

Prints as JSON what was compiled how often, how long it took, and whether all threads drew the same.
"""

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import torch
import triton

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams

THREADS = 8


def draw(barrier):
    barrier.wait(timeout=60)
    sampler = tokendraw.load_sampler("triton-gumbel", device="cuda")
    metadata = SamplingMetadata.from_params([SamplingParams(seed=1)] * 5, device="cuda", positions=range(5))
    logits = torch.arange(5 * 4000, device="cuda").view(5, 4000) % 17 / 4
    return sampler.sample(logits.to(torch.bfloat16), metadata).token_ids.tolist()


def main():
    compiled = Counter()

    def count(*, key, fn, **_):
        compiled[f"{fn.name} {key}"] += 1

    triton.knobs.runtime.jit_post_compile_hook = count
    torch.zeros(1, device="cuda")
    barrier, start = threading.Barrier(THREADS), time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        tokens = list(pool.map(draw, [barrier] * THREADS))
    seconds = time.perf_counter() - start
    same = all(each == tokens[0] for each in tokens)
    print(json.dumps({"compiled": sorted(compiled.values()), "seconds": seconds, "same": same}))


if __name__ == "__main__":
    main()
