"""The conformance kit on triton-gumbel in Triton's interpreter, and rows for what it does not reach there.

Rows are judged by the float64 reference. Which branches of the kernels a run takes, ``coverage`` shows: the interpreter
runs their bodies as Python.
"""

from dataclasses import replace

import numpy as np
import torch
import triton.language as tl

from judged_rows import judge
from tokendraw import Need, RequestSlots, SamplingMetadata, SamplingParams
from tokendraw_testing import Effort, Subject, properties, run
from tokendraw_triton_gumbel import edit_launches, plugin
from tokendraw_triton_gumbel.kernels import large_set, large_set_passes, large_set_search
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler

CPU = torch.device("cpu")
DTYPES = torch.float32, torch.bfloat16, torch.float16


def kit(*names):
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
        effort=Effort.tiny(),
    )
    return {line.name: (str(line.status), line.detail) for line in run(subject, only=names).lines}


def kit_by_small_programs():
    """The lines of ``process_logits`` with several programs that share each row and take turns."""
    edit_launches.CONFIG = edit_launches.ProcessConfig(
        IDS=8, WORDS=4, TILE=32, REQUESTS=2, TOKENS=8, LANES=4, PLACES=2
    )
    edit_launches._PROGRAMS, edit_launches._MASK_PROGRAMS = 24, 16
    edit_launches._SEARCH_PROGRAMS = 20
    return kit(*(prop.name for prop in properties("process_logits")))


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


def flat():
    """Nuclei of small p of flat rows, whose mass is far above what a list of collected logits can hold.

    Of the last but one of these rows top-k decides.
    """
    rng, verdicts, apart = np.random.default_rng(11), [], []
    for size, draw, temperature, k, p, order in (
        (32_000, lambda size: rng.uniform(-0.005, 0.005, size), 1.0, 0, 0.003, "top_k_first"),
        (151_936, lambda size: rng.normal(0, 0.1, size), 1.0, 0, 0.002, "top_k_first"),
        (128_256, lambda size: rng.normal(0, 3, size), 10.0, 0, 0.01, "top_k_first"),
        (128_256, lambda size: rng.normal(0, 3, size), 10.0, 0, 0.01, "temperature_last"),
        (151_936, lambda size: rng.normal(0, 0.1, size), 1.0, 2000, 0.05, "joint"),
        (151_936, lambda size: rng.normal(0, 0.1, size), 1.0, 2000, 0.01, "joint"),
    ):
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


def large_sets(how):
    """Rows with more kept tokens than a program's registers hold: every kind of threshold, with ties.

    Lists hold few logits, so that passes over these short rows weigh them as they weigh long rows.

    :param how: ``all passes``; ``one pass``: one program searches the open bracket; ``few in a bracket``: likewise
        with few logits left in it.
    """
    rng, size, verdicts = np.random.default_rng(1), 4099, []
    large_set_passes.MOST_EXPECTED, large_set._MAX_SET = tl.constexpr(500), tl.constexpr(500)
    if how == "one pass":
        large_set.MOST_PASSES = tl.constexpr(1)
    elif how == "few in a bracket":
        large_set_search.MIN_PASSES = tl.constexpr(0)
    ranks = np.arange(size)
    families = {
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


def extremes():
    """Temperatures with an inverse beyond float32, and a difference of two logits beyond it."""
    filters = [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.5, 0.0), (0, 1.0, 0.1), (0, 1.0, 1.0), (40, 0.9, 0.01)]
    requests = [
        SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=m, seed=seed)
        for temperature in (1e308, 1e39, 1e30, 1e-58)
        for seed, (k, p, m) in enumerate(filters)
    ]
    row = torch.from_numpy(np.random.default_rng(7).normal(0, 2, 1100))
    row[::3] = float("-inf")
    verdicts = [
        judge(sampler(gumbel_dtype=noise), row.to(dtype).expand(len(requests), -1), requests, dtype=noise)
        for dtype in DTYPES
        for noise in ("fp32", "fp64")
    ]
    apart = torch.tensor([3e38, -3e38]).expand(len(requests), -1)
    output = sampler().sample(apart, SamplingMetadata.from_params(requests, positions=range(len(requests))))
    assert (output.valid & (output.token_ids <= 1)).all()
    return judged(*verdicts)


def appends():
    """Return the edits of requests whose tokens were appended by the launch, and by torch, beyond their limit."""
    rng, edited = np.random.default_rng(0), []
    ids = [0, 1, 2, 11, 12, 50, -1, -7, 2**31 - 1]
    for index_dtype, dtype, width in ((torch.int64, torch.int32, None), (torch.int32, torch.int64, 4)):
        by_launch, by_torch = pair = [RequestSlots(5, 9, 12) for _ in range(2)]
        for slots in pair:
            slots.add(0, SamplingParams(bad_words=[[3, 1]], frequency_penalty=0.5), [1, 1])
            slots.add(1, SamplingParams(min_tokens=2, stop_token_ids=[0], presence_penalty=0.5), [], [2])
            slots.add(3, SamplingParams(repetition_penalty=1.5, penalty_last_n=3), [5] * 8)
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
    """Edit by windows, DRY and lists in slots that are full: no access may lie outside of their tensors."""
    rng, size, vocab_size = np.random.default_rng(11), 40, 300
    shared = {"repetition_penalty": 1.2, "logit_bias": {3: 1.0}, "bad_words": [[5, 6]], "stop_token_ids": [7]}
    requests = [
        SamplingParams(**shared, penalty_last_n=39),
        SamplingParams(**shared, penalty_last_n=-1, dry_multiplier=1.0),
        SamplingParams(frequency_penalty=0.5, penalty_last_n=40, dry_multiplier=1.0),
    ]
    slots = RequestSlots(len(requests), size, vocab_size, device=CPU)
    for slot, params in enumerate(requests):
        tokens = torch.from_numpy(rng.integers(0, vocab_size, size))
        slots.add(slot, params, tokens[:10], tokens[10:])
    for dtype in DTYPES:
        logits = torch.randn(len(requests), vocab_size).to(dtype)
        TritonLogitsProcessor(CPU).process(logits, slots, torch.arange(len(requests)))
    return len(DTYPES)
