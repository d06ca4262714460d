"""Page plans in plain Python, the reference for every provider of ``plan_paged_kv``, and an engine's loop.

The loop verifies, advances and plans without reading anything back, and is compared with a Python loop. Four requests
decode with up to three drafts; two more have prompts in chunks, and decode afterwards. The host knows the schedule; the
number of accepted drafts, and so every length, is on the device alone.
"""

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calling import loaded, selection_of
from cuda_batches import NoWait
from tokendraw import (
    Drafts,
    Need,
    PagedKVPlan,
    SamplingMetadata,
    SamplingParams,
    VerifyOutput,
    load_sampler,
    paged_kv,
)
from tokendraw.calls.negotiator import Negotiator
from tokendraw.operations.plan_paged_kv.provider import PagedKVPlanner
from tokendraw.plugin import HostNeed
from tokendraw_testing import sync_is_an_error
from tokendraw_testing.kit.device import LONGEST_CALL_SECONDS, _cycles_per_second, capture

SENTINEL = -77_777


def planner_of(backend, device):
    """Return a planner as from ``tokendraw.load``, around a given object."""
    selection = selection_of(loaded("planted", backend), operation="plan_paged_kv")
    return PagedKVPlanner(Negotiator(torch.device(device), HostNeed(), selections=[selection]))


def ints(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


def table_of(requests, columns, seed=0):
    """Return a block table as lists, with pages in random order."""
    pages = np.random.default_rng([seed, requests, columns]).permutation(requests * columns) + 1000
    return pages.reshape(requests, columns).tolist()


def model(seq_lens, table, page_size, pad=-1):
    """The three lists of a plan, request by request."""
    width = len(table[0]) if table else 0
    indptr, last, indices = [0], [], []
    for given, row in zip(seq_lens, table, strict=True):
        length = min(max(given, 0), width * page_size)
        pages = 0
        while pages * page_size < length:
            indices.append(row[pages])
            pages += 1
        indptr.append(indptr[-1] + pages)
        last.append(length - (pages - 1) * page_size if pages else 0)
    return indptr, last, indices + [pad] * (len(table) * width - len(indices))


def lists(plan):
    """A plan as lists."""
    indices = None if plan.page_indices is None else plan.page_indices.tolist()
    return plan.page_indptr.tolist(), plan.last_page_len.tolist(), indices


def sentinels(requests, columns, device, page_indices=True):
    """Return buffers full of the sentinel."""
    buffers = PagedKVPlan.empty(requests, columns, device=device, page_indices=page_indices)
    for buffer in tensors(buffers):
        buffer.fill_(SENTINEL)
    return buffers


def tensors(plan):
    result = (plan.page_indptr, plan.last_page_len, plan.page_indices)
    return [tensor for tensor in result if tensor is not None]


def require_equal(result, needed, what):
    """Compare plans as lists, and name the first difference."""
    names = ("page_indptr", "last_page_len", "page_indices")
    for name, ours, theirs in zip(names, result, needed, strict=True):
        if ours != theirs:
            at = "length" if ours is None or theirs is None or len(ours) != len(theirs) else None
            at = at or next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
            raise AssertionError(f"{what}: {name} differs at {at}: found {ours}, needed {theirs}")


def require_plan(planner, seq_lens, table, page_size, device, *, pad=-1, what="", **options):
    """Plan on the device and compare with the model; ``table`` may be a strided tensor."""
    on_device = table if isinstance(table, torch.Tensor) else ints(table, device).view(len(table), -1)
    plan = planner.plan(ints(seq_lens, device), on_device, page_size, pad=pad, **options)
    needed = list(model(seq_lens, on_device.tolist(), page_size, pad))
    if not options.get("page_indices", True):
        needed[2] = None
    require_equal(lists(plan), needed, what or f"{seq_lens} by {page_size}")
    return plan


def require_no_wait(planner, device):
    """Require that no operation of torch in a plan, ``advance`` or a segment needs a value on the host."""
    table, seq_lens = ints(table_of(6, 4), device), ints([5, 0, 16, 17, 1, 64], device)
    out = sentinels(6, 4, device)
    planner.plan(seq_lens, table, 16)
    with NoWait():
        planner.plan(seq_lens, table, 16)
        planner.plan(seq_lens, table, 16, page_indices=False)
        planner.plan(seq_lens, table, 16, out=out)
        paged_kv.advance(seq_lens, seq_lens, seq_lens, seq_lens, seq_lens)
        paged_kv.segment_query_indptr(seq_lens, 2)


# An engine's loop.


STEPS, DRAFTS, VOCAB_SIZE = 20, 3, 4
COMPUTED = (4, 1, 9, 6, 0, 0)
"""Tokens in the cache of each request before the first step."""
PROMPTS = (4, 1, 9, 6, 30, 45)
CHUNK, PAGE, COLUMNS = 8, 4, 32
REQUESTS = len(PROMPTS)


@dataclass
class Step:
    """The host's knowledge of a step, and the inputs on the device."""

    queries: list[int]
    logits_rows: list[int]
    """Rows of logits of each request: 0 in its prefill, but for the last chunk."""
    num_prefills: int
    logits: Any
    drafts: Any
    metadata: Any


def schedule(device, seed=0):
    """Return the steps; the last step is planned for and not run."""
    rng = np.random.default_rng(seed)
    done, steps = list(COMPUTED), []
    for _ in range(STEPS + 1):
        queries, rows, ids, prefills = [], [], [], 0
        for b, prompt in enumerate(PROMPTS):
            if done[b] < prompt:
                chunk = min(CHUNK, prompt - done[b])
                done[b] += chunk
                prefills += 1
                queries.append(chunk)
                rows.append(int(done[b] == prompt))
                if rows[-1]:
                    ids.append([])
            else:
                drafts = int(rng.integers(0, DRAFTS + 1))
                queries.append(1 + drafts)
                rows.append(1 + drafts)
                ids.append(rng.integers(0, VOCAB_SIZE, drafts).tolist())
        logits = rng.normal(size=(sum(rows), VOCAB_SIZE)).astype(np.float32)
        row = 0
        for drafted in ids:  # half of the drafts are likely tokens, so that whole chains stand now and then
            for token in drafted:
                logits[row, token] += rng.choice([0.0, 4.0])
                row += 1
            row += 1
        steps.append(
            Step(
                queries=queries,
                logits_rows=rows,
                num_prefills=prefills,
                logits=torch.from_numpy(logits).to(device),
                drafts=Drafts.from_lists(ids, device=device),
                metadata=SamplingMetadata.from_params([SamplingParams()] * len(ids), device=device),
            )
        )
    return steps


@dataclass
class Outcome:
    """The results of a step on the device."""

    verified: VerifyOutput
    num_computed: torch.Tensor
    seq_lens: torch.Tensor
    plans: tuple[PagedKVPlan, PagedKVPlan]
    """Of the decodes, and of the prefills."""


class Loop:
    """An engine's loop with lengths on the device."""

    def __init__(self, sampler, planner, device):
        self.sampler, self.planner, self.device = sampler, planner, device
        self.steps = schedule(device)
        self.table = ints(table_of(REQUESTS, COLUMNS), device)
        self.on_device = [(ints(s.queries, device), ints(s.logits_rows, device)) for s in self.steps]
        self.start = ints(COMPUTED, device)
        self.restart()

    def restart(self):
        """Begin anew with the same random numbers."""
        torch.manual_seed(0)
        self.outcomes, self.num_computed = [], self.start

    def verify(self, i):
        step = self.steps[i]
        return self.sampler.verify(step.logits, step.drafts, step.metadata)

    def plan(self, i, verified):
        """Make the plans of step i + 1 from the accepted drafts of step i."""
        (queries, rows), (next_queries, _) = self.on_device[i : i + 2]
        num_sampled = torch.zeros_like(queries)
        num_sampled[: len(verified.num_accepted)] = verified.num_accepted + 1
        self.num_computed, seq_lens = paged_kv.advance(
            self.num_computed, queries, rows, num_sampled, next_queries
        )
        first = REQUESTS - self.steps[i + 1].num_prefills
        plans = tuple(
            self.planner.plan(seq_lens[part], self.table[part], PAGE)
            for part in (slice(0, first), slice(first, REQUESTS))
        )
        self.outcomes.append(Outcome(verified, self.num_computed, seq_lens, plans))

    def require_right(self):
        """Compare every step with a loop of plain Python."""
        computed, table, accepted = list(COMPUTED), self.table.tolist(), set()
        for i, (step, following, outcome) in enumerate(
            zip(self.steps[:-1], self.steps[1:], self.outcomes, strict=True)
        ):
            kept = outcome.verified.num_accepted.tolist()
            for b in range(REQUESTS):
                drafts = step.logits_rows[b] - 1
                computed[b] += step.queries[b]
                if drafts > 0:
                    computed[b] -= drafts - kept[b]
                    accepted.add((kept[b], drafts))
            lengths = [done + more for done, more in zip(computed, following.queries, strict=True)]
            assert outcome.num_computed.tolist() == computed, f"step {i}"
            assert outcome.seq_lens.tolist() == lengths, f"step {i}"
            first = REQUESTS - following.num_prefills
            for plan, part in zip(outcome.plans, (slice(0, first), slice(first, REQUESTS)), strict=True):
                require_equal(lists(plan), model(lengths[part], table[part], PAGE), f"step {i}")
        assert accepted >= {(n, DRAFTS) for n in range(DRAFTS + 1)}, "acceptance needs to be random"


def run_loop(sampler, planner, device):
    """Run the loop; only the verification may read values on the host."""
    loop = Loop(sampler, planner, torch.device(device))
    for i in range(STEPS):
        verified = loop.verify(i)
        with NoWait() if loop.device.type == "cpu" else contextlib.nullcontext():
            loop.plan(i, verified)
    loop.require_right()


# On a CUDA device alone.


def verifier():
    """Load a sampler whose verifications wait for nothing and can be captured."""
    need = Need(sync_free=True, graph_safe=True)
    return load_sampler("triton-gumbel", device="cuda", need=need, operations=("sample", "verify"))


def loop_behind_a_busy_device(planner):
    """Require that no step of verify, advance and plan waits, and that every result is right."""
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
    """Replay the whole step as one CUDA graph 20 times, with other logits and drafts."""
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
        kept, seq_lens = paged_kv.advance(computed, queries, queries, verified.num_accepted + 1, queries)
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
