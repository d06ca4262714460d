"""The hazards of page plans that a CUDA device alone shows, each a function of a planner, as in paged_kv_hazards."""

import time

import numpy as np
import torch

from paged_kv_loop import COLUMNS, DRAFTS, PAGE, STEPS, VOCAB_SIZE, Loop
from paged_kv_model import (
    SENTINEL,
    ints,
    lists,
    model,
    require_equal,
    sentinels,
    table_of,
    tensors,
)
from tokendraw import Drafts, Need, SamplingMetadata, SamplingParams, load_sampler
from tokendraw.paged_kv import advance, segment_query_indptr
from tokendraw_testing.kit.device import (
    LONGEST_CALL_SECONDS,
    _cycles_per_second,
    capture,
    require_no_wait,
    sync_is_an_error,
)
from tokendraw_testing.kit.trial import Trial

_REQUESTS = 256


def _batch(seed, columns=64):
    lengths = np.random.default_rng(seed).integers(-3, columns * PAGE + 9, _REQUESTS).tolist()
    return lengths, table_of(_REQUESTS, columns, seed)


def verifier():
    """A sampler whose verifications wait for nothing and can be captured."""
    need = Need(sync_free=True, graph_safe=True)
    return load_sampler("triton-gumbel", device="cuda", need=need, operations=("sample", "verify"))


def no_wait(planner):
    """No call waits, by torch's own check and by a stopwatch behind a busy device."""
    trial = Trial("plan", 0)
    lengths, table = _batch(0)
    seq_lens, block_table = ints(lengths, "cuda"), ints(table, "cuda")
    out = sentinels(_REQUESTS, 64, "cuda")
    for what, work in {
        "plan": lambda: planner.plan(seq_lens, block_table, PAGE),
        "plan of a strided table": lambda: planner.plan(seq_lens, block_table[:, 3:20], PAGE),
        "plan without pages": lambda: planner.plan(seq_lens, block_table, PAGE, page_indices=False),
        "plan into buffers": lambda: planner.plan(seq_lens, block_table, PAGE, out=out),
        "advance": lambda: advance(seq_lens, seq_lens, seq_lens, seq_lens, seq_lens),
        "segment_query_indptr": lambda: segment_query_indptr(seq_lens, 3),
    }.items():
        require_no_wait(trial, what, work)


def replays(planner):
    """A captured plan follows lengths and tables that change in place, five times, with and without ``out``."""
    lengths, table = _batch(0)
    seq_lens, block_table = ints(lengths, "cuda"), ints(table, "cuda")
    out = sentinels(_REQUESTS, 64, "cuda")
    ways = {
        "into buffers": lambda: planner.plan(seq_lens, block_table, PAGE, out=out),
        "into new ones": lambda: planner.plan(seq_lens, block_table, PAGE, pad=7),
    }
    for what, work in ways.items():
        replay, plan = capture(work)
        for step in range(1, 6):
            lengths, table = _batch(step)
            seq_lens.copy_(ints(lengths, "cuda"))
            block_table.copy_(ints(table, "cuda"))
            for buffer in tensors(plan):
                buffer.fill_(SENTINEL)
            replay()
            pad = -1 if plan is out else 7
            require_equal(lists(plan), model(lengths, table, PAGE, pad), f"{what}, replay {step}")


def loop_behind_a_busy_device(planner):
    """Hazard 8: no step of verify, advance and plan waits, and all of them are right."""
    loop = Loop(verifier(), planner, torch.device("cuda"))
    for i in range(STEPS):  # compiles, and fills the cache of the allocator
        loop.plan(i, loop.verify(i))
    loop.require_right()
    loop.restart()
    cycles, times = int(0.05 * _cycles_per_second()), []
    for i in range(STEPS):
        with (
            sync_is_an_error()
        ):  # begins with an idle device: its launch queue has room for a step, not for all
            awake = torch.cuda.Event()
            torch.cuda._sleep(cycles)
            awake.record()
            start = time.perf_counter()
            loop.plan(i, loop.verify(i))
            times.append((time.perf_counter() - start, not awake.query()))
    assert all(slept and seconds < LONGEST_CALL_SECONDS for seconds, slept in times), times
    loop.require_right()


def loop_in_a_graph(planner):
    """Hazard 8: the whole step as one CUDA graph, replayed 20 times with other logits and drafts."""
    device, requests = torch.device("cuda"), 5
    torch.manual_seed(0)
    rng, sampler = np.random.default_rng(3), verifier()
    rows = requests * (DRAFTS + 1)
    logits = torch.zeros(rows, VOCAB_SIZE, device=device)
    ids = torch.zeros(requests * DRAFTS, dtype=torch.int64, device=device)
    drafts = Drafts.from_counts(ids, [DRAFTS] * requests, any_placeholder=False)
    metadata = SamplingMetadata.from_params([SamplingParams()] * requests, device=device)
    start = [4, 0, 15, 7, 30]
    computed, table = ints(start, device), ints(table_of(requests, COLUMNS), device)
    queries = ints([DRAFTS + 1] * requests, device)
    out = sentinels(requests, COLUMNS, device)

    def step():
        verified = sampler.verify(logits, drafts, metadata)
        kept, seq_lens = advance(computed, queries, queries, verified.num_accepted + 1, queries)
        computed.copy_(kept)
        planner.plan(seq_lens, table, PAGE, out=out)
        return verified.num_accepted

    replay, num_accepted = capture(step)
    computed.copy_(ints(start, device))
    needed, seen = list(start), set()
    for i in range(STEPS):
        tokens = rng.integers(0, VOCAB_SIZE, (requests, DRAFTS))
        values = rng.normal(size=(requests, DRAFTS + 1, VOCAB_SIZE))
        np.put_along_axis(
            values[:, :DRAFTS], tokens[..., None], rng.choice([0.0, 5.0], (requests, DRAFTS, 1)), 2
        )
        logits.copy_(torch.from_numpy(values.reshape(rows, VOCAB_SIZE)))
        ids.copy_(torch.from_numpy(tokens.reshape(-1)))
        for buffer in tensors(out):
            buffer.fill_(SENTINEL)
        replay()
        accepted = num_accepted.tolist()
        seen |= set(accepted)
        needed = [done + kept + 1 for done, kept in zip(needed, accepted, strict=True)]
        lengths = [done + DRAFTS + 1 for done in needed]
        require_equal(lists(out), model(lengths, table.tolist(), PAGE), f"replay {i}")
    assert seen == set(range(DRAFTS + 1)), "acceptance needs to be random"


HAZARDS = {
    "4 no wait": no_wait,
    "7 replays of a graph": replays,
    "8 the loop behind a busy device": loop_behind_a_busy_device,
    "8 the loop in a graph": loop_in_a_graph,
}
