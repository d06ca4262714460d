"""The conformance kit on triton-gumbel in Triton's interpreter, and rows beside the kit's.

Rows are judged by the float64 reference. Which branches of the kernels a run takes, ``coverage`` shows: the interpreter
runs their bodies as Python.
"""

from dataclasses import replace

import numpy as np
import torch
import triton.language as tl

from judged_rows import judge
from tokendraw import BatchFacts, Need, RequestSlots, SamplingMetadata, SamplingParams
from tokendraw_testing import Effort, Subject, properties, run
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.kernels import edits, large_set, large_set_passes
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler

CPU = torch.device("cpu")
DTYPES = torch.float32, torch.bfloat16, torch.float16


def kit(*names, effort=None):
    """Status and detail of each line of some names, or of all lines of an operation."""
    described = plugin.tokendraw_describe().operations
    subject = Subject(
        "triton-gumbel",
        capabilities={
            operation: replace(offered, device_types=("cpu",), compute_capability=None)
            for operation, offered in described.items()
        },
        device=CPU,
        build=lambda operation, need: plugin.tokendraw_build(operation, CPU, need),
        effort=effort or Effort.tiny(),
    )
    return {line.name: (str(line.status), line.detail) for line in run(subject, only=names).lines}


def kit_by_small_programs():
    """The lines of ``process_logits`` with several programs that share each row and take turns."""
    edits.CONFIG = edits.ProcessConfig(IDS=8, WORDS=4, TILE=32, REQUESTS=2)
    edits._PROGRAMS, edits._MASK_PROGRAMS = 24, 16
    return kit(*(prop.name for prop in properties("process_logits")))


def kit_of_many_tiles():
    """Verifications in a vocabulary of several groups of tiles, which one to three programs share."""
    effort = replace(Effort.tiny(), crossed_sizes=(12_200,), crossed_rows=6, crossed_batch=2)
    return kit("verify crossing", effort=effort)


def sampler(mode=None, **need):
    """A sampler that reports thresholds where it reports log-probabilities of a mode."""
    fields = {} if mode is None else {"logprobs_mode": mode, "threshold": True}
    return TritonGumbelSampler(CPU, Need(**fields, **need))


def judged(*verdicts):
    """Return how many tokens were judged, and what was wrong, of several batches."""
    return {
        "judged": sum(verdict.judged for verdict in verdicts),
        "wrong": [fault for verdict in verdicts for fault in verdict.wrong],
    }


def twice(logits, requests):
    """Judge tokens alone, and tokens with everything that describes them: two ways through the kernels."""
    mode = "processed_logprobs"
    described = [replace(request, logprobs=0) for request in requests]
    return judge(sampler(), logits, requests), judge(sampler(mode), logits, described, mode=mode)


def flat(first, end):
    """Nuclei of small p of flat rows, whose mass is far above what a list of collected logits can hold.

    Of the last but one of these rows top-k decides.
    """
    rng, verdicts, apart = np.random.default_rng(11), [], []
    rows = (
        (32_000, lambda size: rng.uniform(-0.005, 0.005, size), 1.0, 0, 0.003, "top_k_first"),
        (151_936, lambda size: rng.normal(0, 0.1, size), 1.0, 0, 0.002, "top_k_first"),
        (128_256, lambda size: rng.normal(0, 3, size), 10.0, 0, 0.01, "top_k_first"),
        (128_256, lambda size: rng.normal(0, 3, size), 10.0, 0, 0.01, "temperature_last"),
        (151_936, lambda size: rng.normal(0, 0.1, size), 1.0, 2000, 0.05, "joint"),
        (151_936, lambda size: rng.normal(0, 0.1, size), 1.0, 2000, 0.01, "joint"),
    )
    for size, draw, temperature, k, p, order in rows[int(first) : int(end)]:
        logits = torch.from_numpy(draw(size).astype(np.float32))[None]
        request = SamplingParams(temperature=temperature, top_k=k, top_p=p, filter_order=order, seed=1)
        metadata = SamplingMetadata.from_params([request], positions=[0])
        plain, exact = (
            each.sample(logits, metadata).token_ids.item() for each in (sampler(), sampler("raw_logits"))
        )
        if plain != exact:
            apart.append([str(request), plain, exact])
        verdicts.append(judge(sampler("raw_logits"), logits, [request]))
    return {"wrong": judged(*verdicts)["wrong"], "apart": apart, "rows": len(verdicts)}


LARGE_SETS = [
    SamplingParams(temperature=0.7, top_k=k, top_p=p, min_p=m, filter_order=order)
    for k, p, m, order in (
        (0, 0.9, 0.0, "top_k_first"),
        (0, 0.5, 0.1, "joint"),
        (0, 0.9, 0.1, "joint"),
        (0, 0.99, 0.5, "joint"),
        (0, 0.99, 0.49, "joint"),  # of the last family, the floor is just above a value: 0.7507
        (0, 0.9, 0.2, "top_k_first"),
        (0, 1.0, 0.05, "top_k_first"),
        (1500, 1.0, 0.0, "top_k_first"),
        (3000, 0.9, 0.0, "top_k_first"),
        (3000, 0.9, 0.0, "joint"),
        (1500, 1.0, 0.3, "top_k_first"),
        (50, 0.9, 0.0, "top_k_first"),
        (1100, 0.5, 0.0, "joint"),
        (1100, 0.95, 0.01, "top_k_first"),
    )
]


def large_rows(rng, size):
    """Rows [size] whose kept sets are large, by name."""
    ranks = np.arange(size)
    return {
        "ascending": ranks / size * 4,
        "descending": ranks[::-1] / size * 4,
        "mostly dropped": np.where(rng.random(size) < 0.6, -np.inf, rng.normal(0, 0.5, size)),
        "flat": rng.uniform(0, 0.1, size),
        "gaussian": rng.normal(0, 0.5, size),
        "tied": rng.integers(0, 6, size) * 0.25,
        "two values": (rng.random(size) < 0.4) * 1.0,
        "all equal": np.full(size, 3.5),
        "heavy below the floor": np.select((ranks == 5, ranks < 500, ranks < 1024), (1.25, 0.75, 0.5), 1.0),
    }


def kept_by_seed(seeds=12):
    """Return the large kept sets whose threshold or mass has other bits under another seed."""
    apart = []
    for name, row in large_rows(np.random.default_rng(2), 5003).items():
        logits = torch.from_numpy(np.tile(row, (seeds, 1))).float()
        for each in LARGE_SETS:
            requests = [replace(each, seed=seed, logprobs=0) for seed in range(seeds)]
            metadata = SamplingMetadata.from_params(requests, positions=[0] * seeds)
            output = sampler("raw_logits").sample(logits, metadata)
            if len(output.log_kept_mass.unique()) + len(output.threshold.unique()) > 2:
                apart.append(f"{name}: {each}")
    return apart


def large_sets(how):
    """Rows with more kept tokens than a program's registers hold: every kind of threshold, with ties.

    Lists hold few logits, so that passes over these short rows weigh them as they weigh long rows.

    :param how: ``all passes``; ``even pivots``: behind the first pass no pivot is guessed; ``no lists``: likewise, and
        lists have room for few logits; ``few in a bracket``: these are collected at once.
    """
    rng, size, verdicts = np.random.default_rng(1), 4099, []
    large_set_passes.MOST_EXPECTED, large_set._MAX_SET = tl.constexpr(500), tl.constexpr(500)
    if how == "few in a bracket":
        large_set._MIN_PASSES = tl.constexpr(0)
    elif how != "all passes":
        large_set_passes.MOST_GUESSES = tl.constexpr(1 if how == "even pivots" else 3)
    if how == "no lists":
        large_set_passes.MAX_COLLECTED = large_set_passes.MAX_EXPECTED = tl.constexpr(1)
        large_set_passes.MOST_EXPECTED, large_set._MAX_SET = tl.constexpr(0), tl.constexpr(0)
    families = large_rows(rng, size)
    half = int(how == "all passes")
    for number, family in enumerate(families.values()):
        requests = [
            replace(each, seed=100 + i) for i, each in enumerate(LARGE_SETS) if (i + number) % 2 == half
        ]
        verdicts += twice(torch.from_numpy(np.tile(family, (len(requests), 1))).float(), requests)
    if half:
        # Where the floor of min-p is what top-p falls back to, and bfloat16 has no value there.
        requests = [replace(LARGE_SETS[4], seed=seed) for seed in range(8)]
        verdicts += twice(
            torch.from_numpy(np.tile(families["heavy below the floor"], (8, 1))).bfloat16(), requests
        )
    return judged(*verdicts)


def lists(how):
    """Kept sets that are collected: scattered and side by side, of some hundred tokens and of thousands.

    :param how: ``guessed``; ``too short``: a guess misses tokens, and passes have to weigh; ``bounded``: no guess.
    """
    if how == "too short":
        large_set_passes._MORE_STANDARD_ERRORS = tl.constexpr(-3.0)
    elif how == "bounded":
        large_set_passes.number_in_row = lambda *args: tl.full((), 1e9, tl.float32)
    rng, size = np.random.default_rng(7), 100_003
    some, thousands = (
        [
            SamplingParams(temperature=0.8, top_k=k, top_p=p, min_p=m, filter_order=order, seed=seed)
            for seed, (k, p, m, order) in enumerate(requests)
        ]
        for requests in (
            (
                (200, 0.95, 0.0, "top_k_first"),
                (300, 1.0, 0.0, "top_k_first"),
                (300, 0.5, 0.0, "joint"),
                (0, 0.9, 0.0, "top_k_first"),
                (0, 1.0, 1e-4, "top_k_first"),
                (0, 0.9, 1e-4, "top_k_first"),
            ),
            (
                (2500, 1.0, 0.0, "top_k_first"),
                (2500, 0.95, 0.0, "top_k_first"),
                (2500, 0.95, 0.0, "joint"),
                (20_000, 0.95, 0.0, "top_k_first"),
                (50, 0.99, 0.01, "top_k_first"),  # of neighbours, of which a sample sees few or none
            ),
        )
    )
    scattered = np.where(rng.random(size) < 0.003, rng.normal(12, 1, size), rng.normal(0, 1, size))
    wide = rng.normal(0, 2, (len(thousands), size))
    wide[4:] = np.sort(wide[4:])[:, ::-1]
    scattered, side_by_side = (np.tile(row, (len(some), 1)) for row in (scattered, np.sort(scattered)))
    rows = {
        "guessed": ((scattered, some, torch.bfloat16), (side_by_side, some, None), (wide, thousands, None)),
        "too short": ((scattered, some, None), (wide, thousands, torch.bfloat16)),
        "bounded": ((scattered, some, None), (wide, thousands, torch.bfloat16)),
    }[how]
    return judged(
        *(
            judge(sampler(), torch.from_numpy(logits).to(dtype or torch.float32), requests)
            for logits, requests, dtype in rows
        )
    )


LIKELY = (100, 101, 102)
"""Ids of the three likely tokens in rows of requests with even numbers."""


def interval_requests(rng, count, *, is_described=False):
    """Make requests of every filter order, with XTC or without.

    :param is_described: whether they ask for logprobs.
    """
    requests = [
        SamplingParams(
            temperature=float(rng.choice([0.7, 1.0, 1.3, 0.0], p=[0.4, 0.2, 0.3, 0.1])),
            top_k=int(rng.choice([0, 0, 40, 500])),
            top_p=float(rng.choice([1.0, 0.3, 0.9])),
            min_p=float(rng.choice([0.0, 1e-3, 0.1])),
            filters={"p_less": 1.0} if rng.random() < 0.2 else None,
            xtc_probability=float(rng.choice([0.0, 0.5, 1.0])),
            xtc_threshold=float(rng.choice([0.3, 0.1, 1e-3])),
            filter_order=str(rng.choice(["top_k_first", "joint", "temperature_last", "temperature_last"])),
            seed=int(rng.integers(-(2**40), 2**40)),
            logprobs=int(rng.choice([0, 3])) if is_described else None,
            logprob_token_ids=(1, *LIKELY[:2]) if is_described else None,
        )
        for _ in range(count)
    ]
    # XTC looks at what a min-p behind top-p left, and at a wide nucleus alone.
    wide = {"temperature": 0.7, "top_k": 0, "top_p": 0.9, "filters": None, "xtc_probability": 1.0}
    last = {"min_p": 1e-3, "xtc_threshold": 0.3, "filter_order": "temperature_last"}
    requests[0] = replace(requests[0], **wide | last)
    requests[2] = replace(requests[2], **wide, min_p=0.0, xtc_threshold=0.1, filter_order="top_k_first")
    # In the order joint a floor may leave less than the mass of top-p.
    least = {"temperature": 1.0, "top_p": 0.999, "min_p": 0.5, "xtc_threshold": 0.341}
    requests[4] = replace(requests[4], **wide | least, filter_order="joint")
    return requests


def interval_logits(rng, requests, size):
    """Make logits [rows, size] float32: three likely tokens beside many, or any number of them.

    :param requests: [rows]: the number of each row's request.
    """
    spread = np.where(requests % 2 == 0, 0.5, rng.choice([0.5, 3.0, 6.0], len(requests)))
    logits = rng.normal(0, spread[:, None], (len(requests), size)).astype(np.float32)
    logits[np.ix_(requests % 2 == 0, LIKELY)] = 8.0, 7.9, 7.7
    return logits


def intervals():
    """XTC and ``temperature_last`` in rows of few and many tokens, alone and beside all other filters.

    What a call wants beside tokens decides which thresholds are exact, and at which temperatures tiles are summed.
    """
    rng, verdicts = np.random.default_rng(9), []
    for mode in (None, "raw_logprobs", "temperature_logprobs", "processed_logprobs", "processed_logits"):
        requests = interval_requests(rng, 32, is_described=mode is not None)
        logits = torch.from_numpy(interval_logits(rng, np.arange(32), 9000))
        verdicts.append(judge(sampler(mode), logits, requests, mode=mode or "raw_logprobs"))
    return judged(*verdicts)


def extremes():
    """Temperatures that float32 cannot hold, or whose inverse it cannot."""
    filters = [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.5, 0.0), (0, 1.0, 0.1), (0, 1.0, 1.0), (40, 0.9, 0.01)]
    rows = [
        SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=m, seed=seed)
        for temperature in (1e308, 1e39, 1e30, 1e-58)
        for seed, (k, p, m) in enumerate(filters)
    ]
    row = torch.from_numpy(np.random.default_rng(7).normal(0, 2, 1100))
    row[::3] = float("-inf")
    result = judged(
        *(
            judge(sampler(gumbel_dtype=noise), row.to(dtype).expand(len(rows), -1), rows, dtype=noise)
            for dtype in DTYPES
            for noise in ("fp32", "fp64")
        )
    )
    # A difference of two logits that float32 cannot hold.
    metadata = SamplingMetadata.from_params(rows, positions=range(len(rows)))
    output = sampler().sample(torch.tensor([3e38, -3e38]).expand(len(rows), -1), metadata)
    fine = output.valid & (output.token_ids <= 1)
    result["wrong"] += [
        f"a difference above float32's range: {rows[i]}" for i in (~fine).nonzero().flatten().tolist()
    ]
    return result


def described():
    """Log-probabilities where sums and searches are at their limits.

    Rows of one token and of nearly all, which have to stay at 0; N from comparisons to sorts; NaN, signed zeros, ties,
    subnormal numbers and huge ones; the only finite logit of a tile; temperatures as low as the logits are close.
    """
    rng, verdicts = np.random.default_rng(7), []
    narrow = [
        {},
        {"top_k": 1},
        {"top_k": 2, "temperature": 0.7},
        {"top_p": 0.5, "filter_order": "joint"},
        {"top_p": 0.999, "temperature": 3.0},
        {"min_p": 1.0},
        {"min_p": 1e-6, "top_p": 0.9999999},
        {"min_p": 1e-30},
    ]
    for size, n, mode, dtype in (
        (2, 1, "processed_logprobs", torch.float32),
        (50, 70, "raw_logprobs", torch.float32),
        (1300, 256, "temperature_logprobs", torch.bfloat16),
        (9001, 1000, "processed_logprobs", torch.float32),
        (9001, 1025, "raw_logits", torch.float16),
        (33_000, 5, "processed_logits", torch.float32),
    ):
        rows = rng.normal(0, rng.choice([0.0, 1e-3, 0.3, 4.0], (len(narrow), 1)), (len(narrow), size))
        rows[:, 0] += rng.uniform(0, 20, len(narrow))
        requests = [SamplingParams(seed=i, logprobs=n, **fields) for i, fields in enumerate(narrow)]
        logits = torch.from_numpy(rows.astype(np.float32)).to(dtype)
        verdicts.append(judge(sampler(mode), logits, requests, mode=mode))
    size = 2100
    special = torch.from_numpy(rng.normal(0, 1, (10, size))).float()
    special[0, ::3], special[1], special[2, 5:] = torch.nan, torch.nan, -torch.inf
    special[3] = torch.where(special[3] > 1.9, 0.0 * special[4].sign(), -1.0)
    special[4] = (special[4] * 2).round()
    special[5] *= 1e38
    special[6] *= 1e-40
    special[7, 1024:2048], special[8, 1024:2048] = -torch.inf, -torch.inf
    special[7, 1500], special[8, 1500] = torch.nan, 3.0
    special[9] = torch.where(torch.arange(size) % 1024 < 16, special[9] + 30, special[9] * 1e-3)
    for mode, n in (("processed_logprobs", 5), ("raw_logprobs", 70)):
        requests = [SamplingParams(seed=i, top_p=0.9, logprobs=n) for i in range(len(special))]
        verdicts.append(judge(sampler(mode), special, requests, mode=mode))
    degrees = [1e-40, 1e-39, 3e-38, 2e-37, 1e-44]
    for fields in ({}, {"top_k": 7}, {"top_p": 0.8}):
        rows = np.stack([rng.normal(0, 3, 60) * degree for degree in degrees]).astype(np.float32)
        requests = [
            SamplingParams(temperature=t, seed=i, logprobs=2, **fields) for i, t in enumerate(degrees)
        ]
        logits, mode = torch.from_numpy(rows), "temperature_logprobs"
        verdicts.append(judge(sampler(mode), logits, requests, mode=mode))
    return judged(*verdicts)


def slots():
    """Rows of shared slots have the log-probabilities and scores of rows with parameters of their own."""
    rng, wrong = np.random.default_rng(4), []
    logits = torch.from_numpy(rng.normal(0, 3, (6, 1500))).float()
    index, positions = torch.tensor([2, 0, 0, 1, 2, 1]), torch.arange(6)
    params = [
        SamplingParams(temperature=0.5, top_k=4, logprobs=7, logprob_token_ids=[1, 3], seed=1),
        SamplingParams(temperature=0.0, logprobs=2, logprob_token_ids=[1], seed=2),
        SamplingParams(filters={"top_n_sigma": 1.0}, xtc_probability=1.0, logprobs=0, seed=3),
    ]
    shared = SamplingMetadata.from_params(params, row_index=index, positions=positions)
    own = SamplingMetadata.from_params([params[i] for i in index.tolist()], positions=positions)
    for mode in ("raw_logprobs", "processed_logprobs"):
        for name, call in (
            ("sample", lambda backend, metadata: backend.sample(logits, metadata)),
            ("score", lambda backend, metadata: backend.score(logits, torch.arange(6), metadata)),
        ):
            found, expected = (call(sampler(mode), metadata) for metadata in (shared, own))
            for field in ("token_ids", "logprobs", "ranks", "given_token_ids", "given_logprobs"):
                pair = [getattr(output.logprobs, field) for output in (found, expected)]
                if not torch.equal(*pair):
                    wrong.append([name, mode, field])
    facts = BatchFacts(max_logprobs=3)
    empty = sampler("raw_logits").sample(logits[:0], SamplingMetadata(facts=facts))
    unfiltered = sampler("raw_logprobs").score(logits, torch.arange(6), SamplingMetadata())
    if empty.logprobs.logprobs.shape[0] or not (unfiltered.threshold == -torch.inf).all():
        wrong.append("calls without rows, or without filters")
    return wrong


def appends():
    """Return the edits of requests whose tokens were appended by the launch, and by torch, beyond their limit."""
    rng, edited = np.random.default_rng(0), []
    ids = [0, 1, 2, 11, 12, 50, -1, -7, 2**31 - 1]
    for index_dtype, dtype, width in ((torch.int64, torch.int32, None), (torch.int32, torch.int64, 4)):
        by_launch, by_torch = pair = [RequestSlots(5, 9, 12) for _ in range(2)]
        for slots in pair:
            slots.add(0, SamplingParams(bad_words=[[3, 1]], frequency_penalty=0.5), [1, 1])
            slots.add(1, SamplingParams(min_tokens=2, stop_token_ids=[0], presence_penalty=0.5), [], [2])
            slots.add(3, SamplingParams(repetition_penalty=1.5), [5] * 8)
        processor = TritonLogitsProcessor(CPU)
        for _ in range(6):
            rows = torch.tensor(rng.permutation([-1, 0, 1, 2, 3, 5]), dtype=index_dtype)
            tokens = torch.tensor(rng.choice(ids, 6 if width is None else (6, width)), dtype=dtype)
            processor.append(by_launch.tables, rows, tokens)
            by_torch._histories.append(rows, tokens)
            edited.append(
                [processor.process(torch.ones(5, 12), slots, torch.arange(5)).tolist() for slots in pair]
            )
    return edited


def full_slots():
    """Edit by penalties and lists in slots that are full: no access may lie outside of their tensors."""
    rng, size, vocab_size = np.random.default_rng(11), 40, 300
    shared = {"repetition_penalty": 1.2, "logit_bias": {3: 1.0}, "bad_words": [[5, 6]], "stop_token_ids": [7]}
    requests = [
        SamplingParams(**shared, min_tokens=50),
        SamplingParams(**shared, allowed_token_ids=[*range(250)]),
        SamplingParams(frequency_penalty=0.5),
    ]
    slots = RequestSlots(len(requests), size, vocab_size, device=CPU)
    for slot, params in enumerate(requests):
        tokens = torch.from_numpy(rng.integers(0, vocab_size, size))
        slots.add(slot, params, tokens[:10], tokens[10:])
    for dtype in DTYPES:
        logits = torch.randn(len(requests), vocab_size).to(dtype)
        TritonLogitsProcessor(CPU).process(logits, slots, torch.arange(len(requests)))
    return len(DTYPES)
