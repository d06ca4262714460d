"""Ranks as threads of one process, one at work at a time, and batches of which they hold the columns."""

import random
import threading
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams, philox
from tokendraw_ranks import VocabShard, thresholds

NAN, INF, ROWS = float("nan"), float("inf"), 12
MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs")
FAMILIES = (*("mixed", "plain", "greedy", "top-k, top-p", "top-p", "min-p", "large k", "joint", "filters"),)
FILTERS = {"top_n_sigma": 1.3, "epsilon_cutoff": 2e-3, "eta_cutoff": 5e-3, "p_less": 1.0}


ONE_AT_WORK = threading.Lock()  # Triton's interpreter serves one thread


class ThreadRank:
    """A rank of a group, as a :class:`tokendraw_ranks.messages.Transport`, with a note of each collective."""

    def __init__(self, rank, barrier, offers):
        self.rank, self.size, self._barrier, self._offers, self.notes = rank, len(offers), barrier, offers, []

    def all_gather(self, tensor):
        return torch.stack(self._exchange("gather", tensor))

    def all_sum(self, tensor):
        tensor.copy_(torch.stack(self._exchange("sum", tensor)).sum(0))

    def broadcast_from_first(self, tensor):
        first = self._exchange("broadcast", tensor)[0]
        return lambda: tensor.copy_(first)

    def gather_objects(self, value):
        return self._meet("objects", value)

    def _exchange(self, name, tensor):
        assert tensor.is_contiguous()
        self.notes.append((name, tensor.nbytes))
        return self._meet((name, tuple(tensor.shape), tensor.dtype), tensor.clone())

    def _meet(self, about, value):
        self._offers[self.rank] = about, value
        self._wait()
        offers = list(self._offers)
        self._wait()
        assert all(offer[0] == about for offer in offers), offers
        return [offer[1] for offer in offers]

    def _wait(self):
        ONE_AT_WORK.release()
        try:
            self._barrier.wait()
        finally:
            ONE_AT_WORK.acquire()


def results_and_errors(size, work):
    """Run ``work(rank)`` on every rank, a thread each; return results and errors by rank."""
    barrier, offers, results, errors = threading.Barrier(size, timeout=300), [None] * size, {}, {}

    def one(rank):
        try:
            with ONE_AT_WORK:
                results[rank] = work(ThreadRank(rank, barrier, offers))
        except BaseException as error:
            errors[rank] = error
            barrier.abort()

    threads = [
        threading.Thread(target=one, args=(rank,), name=str(rank), daemon=True) for rank in range(size)
    ]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    return results, errors


def on_ranks(size, work):
    """Run ``work(rank)`` on every rank; return the results by rank."""
    results, errors = results_and_errors(size, work)
    for error in sorted(errors.values(), key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [results[rank] for rank in range(size)]


def seeds_of_thread(rows, device):
    """Make other fresh seeds on every rank but the first, which has those of one device."""
    name = threading.current_thread().name
    return torch.arange(rows, device=device) * 7919 + (int(name) if name.isdigit() else 0)


def cuts(size, vocab_size, seed):
    """Return borders of ``size`` shards: odd, within a tile, or empty."""
    rng = random.Random(f"{size} {vocab_size} {seed}")
    inner = [rng.randint(0, vocab_size) for _ in range(size - 1)]
    if size > 2 and seed % 2:
        inner[0] = inner[1]  # one rank is empty
    if size > 3 and seed % 3 == 0:
        inner[2] = min(vocab_size, inner[1] + 5)
    return [0, *sorted(inner), vocab_size]


def logits_of(vocab_size, seed, dtype):
    """Return Gaussian rows of several widths, with ties, NaN and infinities."""
    rows, rng = ROWS, torch.Generator().manual_seed(seed)
    x = torch.randn(rows, vocab_size, generator=rng)
    x *= torch.tensor([1.0, 3.0, 8.0])[torch.arange(rows) % 3].unsqueeze(-1)
    tied = torch.arange(rows) % 5 == 4
    x[tied] = x[tied].round()
    x[0] = x[0].masked_fill(torch.rand(vocab_size, generator=rng) < 0.01, NAN)
    x[1], x[2], x[3] = -INF, 0.5, NAN
    x[4] = x[4].masked_fill(torch.rand(vocab_size, generator=rng) < 0.01, INF)
    x[5, vocab_size // 2 :] = -INF
    x[6] *= 1e37
    return x.to(dtype)


def request(rng, row, vocab_size, family):
    """Return a request of a family."""
    some, seed = rng.choice, rng.randrange(2**63) if row % 3 else None
    orders, names = ["top_k_first", "joint"], rng.sample([*FILTERS], some([0, 1, 1, 2]))
    fields = {
        "plain": {},
        "greedy": {"temperature": 0.0},
        "top-k, top-p": {"top_k": some([1, 20, 50]), "top_p": some([0.5, 0.9, 1.0])},
        "top-p": {"top_p": some([0.3, 0.9, 0.99])},
        "min-p": {"min_p": some([0.5, 0.01])},
        "large k": {"top_k": some([1, 40, 1500]), "top_p": some([0.7, 1.0])},
        "joint": {"top_k": 50, "top_p": some([0.5, 0.9]), "filter_order": "joint"},
        "filters": {"filters": {name: FILTERS[name] for name in names}, "top_k": some([0, 0, 40]),
                    "top_p": some([1.0, 0.9]), "filter_order": some(orders)},
        "mixed": {"temperature": some([0.0, 0.5, 1.0, 2.0]), "top_k": some([0, 0, 1, 5, 50, 300, vocab_size]),
                  "top_p": some([1.0, 1.0, 0.1, 0.9, 0.99]), "min_p": some([0.0, 0.0, 0.05, 0.5]),
                  "filter_order": some(orders)},
    }  # fmt: skip
    return replace(SamplingParams(temperature=some([0.5, 1.0, 1.7]), seed=seed), **fields[family])


def batch_of(vocab_size, family, seed, dtype, widths=(None,)):
    """Return logits [ROWS, V] and metadata of a family, of which rows ask for ``widths`` of logprobs in turn."""
    rng = random.Random(seed)
    params = [request(rng, row, vocab_size, family) for row in range(ROWS)]
    params = [replace(each, logprobs=widths[row % len(widths)]) for row, each in enumerate(params)]
    index = [*range(ROWS)][::-1] if seed % 2 else None
    metadata = SamplingMetadata.from_params(
        params[:: -1 if index else 1], positions=range(ROWS), row_index=index
    )
    return logits_of(vocab_size, seed, dtype), metadata


def split(rank, logits, seed):
    """Return the columns of a rank, and its shard."""
    start, end = list(pairwise(cuts(rank.size, logits.shape[1], seed)))[rank.rank]
    return logits[:, start:end], VocabShard(start, logits.shape[1], rank)


def load(name="sample_over_ranks", **need):
    """Load the sampler of ranks, or ``sample`` by native."""
    plugin = "native" if name == "sample" else None
    return tokendraw.load(name, plugin, device="cpu", need=tokendraw.Need(**need))


def both(size, logits, metadata, seed, sampler=None, **need):
    """Return the output of one device by native, and that of each rank."""
    alone, sampler = load("sample", **need).sample(logits, metadata), sampler or load(**need)

    def work(rank):
        columns, shard = split(rank, logits, seed)
        return sampler.sample(columns, metadata, shard)

    return alone, on_ranks(size, work)


def judge(alone, output, about, *, tolerance=2e-6):
    """Compare an output of a rank with that of one device: the same tokens, and what comes with them."""
    assert output.token_ids.tolist() == alone.token_ids.tolist(), about
    assert output.valid.tolist() == alone.valid.tolist(), about
    if alone.threshold is not None:
        torch.testing.assert_close(output.threshold, alone.threshold, rtol=0, atol=0, equal_nan=True)
    if alone.logprobs is not None:
        assert torch.equal(output.logprobs.token_ids, alone.logprobs.token_ids), about
        assert torch.equal(output.logprobs.ranks, alone.logprobs.ranks), about
        close = {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(output.logprobs.logprobs, alone.logprobs.logprobs, **close)
        torch.testing.assert_close(output.log_kept_mass, alone.log_kept_mass, **close)


class RanksAlone:
    """The sampler of ranks without negotiation, by the kernels of a GPU."""

    def __init__(self, need):
        from tokendraw_ranks import operation, triton_columns

        self._call, self._need = operation.SampleOverRanks, need
        self._backend = operation.RanksSampler(torch.device("cpu"), need)
        self._backend._columns = triton_columns.TritonColumns

    def sample(self, *arguments):
        call = self._call(*arguments)
        call.check(torch.device("cpu"), self._need)
        return call.run(self._backend)


def interpreted_tokens(size, dtype, *families):
    """Draw in Triton's interpreter, beside native on one device: for :func:`triton_stand_ins.interpreted`."""
    philox.fresh_seeds = seeds_of_thread
    thresholds.reads_values = lambda device: False
    for seed, family in enumerate(families):
        for need in ({}, {"threshold": True, "gumbel_dtype": "fp64", "logprobs_mode": "processed_logprobs"}):
            logits, metadata = batch_of(3500, family, seed, getattr(torch, dtype), [3] if need else [None])
            sampler = RanksAlone(tokendraw.Need(**need))
            alone, outputs = both(int(size), logits, metadata, seed, sampler, **need)
            for output in outputs:
                judge(alone, output, (family, need), tolerance=1e-4)
    return "alike"


def gloo(rank, port):
    """Draw on a rank of a process group; a disagreement raises on every rank, and the group goes on."""
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    logits, metadata = batch_of(3500, "mixed", 0, torch.bfloat16)
    wrong = VocabShard(2000 * rank, 3500)
    with pytest.raises(
        ValueError, match="'start' of the shard on rank 1 needs to be 1000, where the shard of rank 0"
    ):
        load().sample(logits[:, :1000] if rank == 0 else logits[:, 2000:], metadata, wrong)
    philox.fresh_seeds = seeds_of_thread
    alone = load("sample").sample(logits, metadata)
    over_ranks, shard = load(), VocabShard(1000 * rank, 3500)
    threading.current_thread().name = str(rank)
    part = logits[:, :1000] if rank == 0 else logits[:, 1000:]
    judge(alone, over_ranks.sample(part, metadata, shard), "gloo")
    dist.destroy_process_group()
