"""Times draws over ranks beside an all-gather and the draw of one device, both in CUDA graphs, and compares the tokens.

``torchrun --nproc-per-node 2 tests/ranks/timing.py``, with tokendraw, -native, -triton-gumbel and -ranks installed.
A call reads logits that no cache holds: buffers take turns, and others are written before each replay.
"""

import datetime
import os
import statistics
import sys

import torch
import torch.distributed as dist

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_ranks import VocabShard

VOCAB_SIZE = int(os.environ.get("VOCAB_SIZE", "151936"))
ROWS = [int(rows) for rows in os.environ.get("ROWS", "64 256").split()]
FILTERS = {"none": {}, "k, p": {"top_k": 50, "top_p": 0.9}, "p": {"top_p": 0.9}}
REPEATS, BUFFERS = 30, 4


def logits_of(rows, dtype, seed, device):
    """Make rows with a nucleus of about 30 tokens, like a language model's, the same on every rank."""
    rng = torch.Generator(device).manual_seed(seed)
    x = torch.randn(rows, VOCAB_SIZE, generator=rng, device=device)
    return (x * 2.5 + 6.0 * (x > 3.4)).to(dtype)


def microseconds(call, buffers, evict):
    """Capture a call on each buffer, and return the median time of a call, on the slowest rank."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for buffer in buffers:
            call(buffer)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [call(buffer).token_ids for buffer in buffers]
    times = []
    for turn in range(REPEATS + 3):
        dist.barrier()
        evict.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if turn >= 3:
            times.append(1e3 * start.elapsed_time(end) / len(buffers))
    slowest = torch.tensor(statistics.median(times), device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest), torch.stack(outputs).clone(), graph


def main():
    """Print the table, on rank 0."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=datetime.timedelta(minutes=5), device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    width = -(-VOCAB_SIZE // ranks)
    start, end = rank * width, min((rank + 1) * width, VOCAB_SIZE)
    over_ranks = tokendraw.load("sample_over_ranks", device=device)
    alone = tokendraw.load_sampler(os.environ.get("SAMPLER", "triton-gumbel"), device=device)
    evict, graphs, wrong = torch.empty(1 << 26, device=device), [], 0
    if rank == 0:
        print(f"{torch.cuda.get_device_name()}, {ranks} ranks, V = {VOCAB_SIZE}, torch {torch.__version__}")
        print("| dtype | rows | filters | over ranks, us | all-gather and draw, us | | tokens that differ |")
        print("|---|--:|---|--:|--:|--:|--:|", flush=True)
    for dtype, rows, (name, asked) in (
        (d, r, f) for d in (torch.bfloat16, torch.float32) for r in ROWS for f in FILTERS.items()
    ):
        params = [SamplingParams(temperature=0.8, seed=row, **asked) for row in range(rows)]
        metadata = SamplingMetadata.from_params(params, device=device, positions=range(rows))
        shard = VocabShard(start, VOCAB_SIZE)
        buffers = []
        for seed in range(BUFFERS):  # as heads leave them: padded to the same width on every rank
            local = torch.full((rows, width), float("-inf"), dtype=dtype, device=device)
            local[:, : end - start] = logits_of(rows, dtype, seed, device)[:, start:end]
            buffers.append(local)

        def gathered(local, rows=rows, metadata=metadata):
            whole = torch.empty(ranks, *local.shape, dtype=local.dtype, device=device)
            dist.all_gather_into_tensor(whole.view(-1), local.view(-1))
            return alone.sample(whole.movedim(0, 1).reshape(rows, -1)[:, :VOCAB_SIZE], metadata)

        def direct(local, metadata=metadata, shard=shard):
            return over_ranks.sample(local[:, : end - start], metadata, shard)

        ours, tokens, graph = microseconds(direct, buffers, evict)
        theirs, expected, other = microseconds(gathered, buffers, evict)
        differing = int((tokens != expected).sum())
        wrong += differing
        graphs += [graph, other]
        if rank == 0:
            print(f"| {str(dtype)[6:]} | {rows} | {name} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f}x | "
                  f"{differing} of {tokens.numel()} |", flush=True)  # fmt: skip
    graphs.clear()  # NCCL waits for the end of every graph that it is part of
    torch.cuda.synchronize()
    dist.destroy_process_group()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
