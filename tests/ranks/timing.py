"""Times draws over ranks beside an all-gather and the draw of one device, both in CUDA graphs, and compares the tokens.

``torchrun --nproc-per-node 2 tests/ranks/timing.py`` in a checkout, of which nothing has to be installed. A call reads
logits that no cache holds: in a graph buffers take turns, and others are written before each replay.
"""

import os
import statistics
import sys
import tempfile
import tomllib
from datetime import timedelta
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
VOCAB_SIZE = int(os.environ.get("VOCAB_SIZE", "151936"))
ROWS = [int(rows) for rows in os.environ.get("ROWS", "64 256").split()]
FILTERS = {"none": {}, "k, p": {"top_k": 50, "top_p": 0.9}, "p": {"top_p": 0.9}}
REPEATS, BUFFERS = 30, 4


def install(folder, *projects):
    """Put distributions of the checkout on the path, with the entry points of their manifests in a folder."""
    for name in projects:
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text("utf-8"))["project"]
        metadata = Path(folder) / f"{project['name'].replace('-', '_')}-0.1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n"
        )
        groups = project.get("entry-points", {}).items()
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items()) for group, each in groups]
        (metadata / "entry_points.txt").write_text("\n".join(lines))
        sys.path.insert(0, str(ROOT / name / "src"))
    sys.path.insert(0, str(folder))


def microseconds(call, buffers, evict):
    """Capture a call on each buffer; return the median time of a call, on the slowest rank, and the tokens."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for buffer in buffers:
            call(buffer)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        outputs = [call(buffer).token_ids for buffer in buffers]
    for _ in range(REPEATS):
        dist.barrier()
        evict.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / len(buffers))
    slowest = torch.tensor(statistics.median(times), device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    tokens = torch.stack(outputs).clone()
    graph.reset()  # NCCL waits for the end of every graph that it is part of
    return float(slowest), tokens


def main():
    """Print the table, on rank 0."""
    install(tempfile.mkdtemp(), "core", "plugins/native", "plugins/triton_gumbel", "ranks")
    import tokendraw
    from tokendraw_ranks import VocabShard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=timedelta(minutes=5), device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    width = -(-VOCAB_SIZE // ranks)
    lo, n = rank * width, min(width, VOCAB_SIZE - rank * width)
    over_ranks = tokendraw.load("sample_over_ranks", device=device)
    alone = tokendraw.load_sampler("triton-gumbel", device=device)
    evict, say = torch.empty(1 << 26, device=device), print if rank == 0 else (lambda *words, **options: None)
    say(f"{torch.cuda.get_device_name()}, {ranks} ranks, V = {VOCAB_SIZE}, torch {torch.__version__}\n")
    say("| dtype | rows | filters | over ranks, us | all-gather and draw, us | | tokens that differ |")
    say("|---|--:|---|--:|--:|--:|--:|", flush=True)
    for dtype, rows, name in product((torch.bfloat16, torch.float32), ROWS, FILTERS):
        params = [tokendraw.SamplingParams(temperature=0.8, seed=row, **FILTERS[name]) for row in range(rows)]
        metadata = tokendraw.SamplingMetadata.from_params(params, device=device, positions=range(rows))
        shard, buffers = VocabShard(lo, VOCAB_SIZE), []
        for seed in range(
            BUFFERS
        ):  # the same on every rank, with nuclei of some tens of tokens; as heads pad them
            rng = torch.Generator(device).manual_seed(seed)
            x = torch.randn(rows, VOCAB_SIZE, generator=rng, device=device)
            local = torch.full((rows, width), float("-inf"), dtype=dtype, device=device)
            local[:, :n] = (x * 2.5 + 6.0 * (x > 3.4))[:, lo : lo + n]
            buffers.append(local)

        def gathered(local, rows=rows, metadata=metadata):
            whole = torch.empty(ranks, *local.shape, dtype=local.dtype, device=device)
            dist.all_gather_into_tensor(whole.view(-1), local.view(-1))
            return alone.sample(whole.movedim(0, 1).reshape(rows, -1)[:, :VOCAB_SIZE], metadata)

        def direct(local, metadata=metadata, shard=shard):
            return over_ranks.sample(local[:, :n], metadata, shard)

        (ours, tokens), (theirs, expected) = (microseconds(c, buffers, evict) for c in (direct, gathered))
        differ = f"{int((tokens != expected).sum())} of {tokens.numel()}"
        say(
            f"| {str(dtype)[6:]} | {rows} | {name} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f}x | {differ} |"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
