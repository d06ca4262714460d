"""Draws by the kernels of triton-gumbel on CPU tensors: the conformance kit, and the float64 reference."""

from dataclasses import replace

import numpy as np
import torch
import triton.language as tl

import tokendraw
from interval_requests import interval_logits, interval_requests
from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_bench import Cell, make_inputs, metadata_of
from tokendraw_testing import Effort, Subject, properties, reference, run
from tokendraw_testing.logits_families import FAMILIES
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.kernels import large_set, large_set_passes, large_set_search, row_draw
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler

REQUESTS = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, filter_order=order)
    for t in (1.0, 0.6)
    for k in (0, 1, 40, 200, 4500)
    for p in (1.0, 0.9, 0.3)
    for m in (0.0, 0.05)
    for order in ("top_k_first", "joint")
]


def kit(part, parts, *operations):
    """Status and detail of each line of some operations, of every ``parts``-th property from number ``part``."""
    described = plugin.tokendraw_describe().operations
    subject = Subject(
        "triton-gumbel",
        capabilities={
            operation: replace(described[operation], device_types=("cpu",), compute_capability=None)
            for operation in operations
        },
        device="cpu",
        build=lambda operation, need: plugin.tokendraw_build(operation, torch.device("cpu"), need),
        effort=Effort.tiny(),
    )
    names = [prop.name for prop in properties()[int(part) :: int(parts)]]
    return {line.name: (str(line.status), line.detail) for line in run(subject, only=names).lines}


def draws():
    """Every way through the filters: few candidates, many, more than fit, ties, and rows without a bound."""
    rng = np.random.default_rng(0)
    judged, wrong = 0, []
    for size, rows, dtype in (
        (1, 4, "fp32"),
        (31, 10, "fp64"),
        (1025, 10, "fp64"),
        (3008, 8, "fp32"),
        (9000, 4, "fp32"),
    ):
        sampler = TritonGumbelSampler(torch.device("cpu"), Need(gumbel_dtype=dtype))
        for name, family in FAMILIES.items():
            logits = np.stack([family(rng, size) for _ in range(rows)])
            picked = rng.integers(0, len(REQUESTS), rows)
            params = [replace(REQUESTS[i], seed=int(i)) for i in picked]
            metadata = SamplingMetadata.from_params(params, positions=range(rows))
            tokens = sampler.sample(torch.from_numpy(logits), metadata).token_ids.tolist()
            for i, (row, request, token) in enumerate(zip(logits, params, tokens, strict=True)):
                prepared = reference.prepare(row, request)
                expected, lead = reference.draw(prepared, request.seed, i, dtype)
                if prepared.certain and lead > reference.NEAR_TIE:
                    judged += 1
                    if token != expected:
                        wrong.append([size, name, str(request), token, expected])
    return {"judged": judged, "wrong": wrong}


def search():
    """Draw half of the rows with a single pass, so that one program searches the open bracket."""
    large_set.MOST_PASSES = tl.constexpr(1)
    return wide(torch.float32, halves=(0,))


def few():
    """Draw likewise with few logits left in the bracket of the searching program."""
    large_set_search.MIN_PASSES = tl.constexpr(0)
    return wide(torch.float32, halves=(0,))


def edge():
    """Draw the last kept token of a row: no program may search the row alone."""
    rng = np.random.default_rng(4)
    size, drawn = 40_000, 3000
    native = tokendraw.load_sampler("native", device="cpu")
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    judged, wrong, searches = 0, [], []
    find_threshold = large_set.find_threshold
    large_set.find_threshold = lambda *args: searches.append(args) or find_threshold(*args)
    for dtype, is_tied in ((torch.float32, False), (torch.float32, True), (torch.bfloat16, True)):
        for spread in (1.5, 3.0, 4.0):
            row = torch.from_numpy(rng.normal(0, spread, size).astype(np.float32))
            row = row.bfloat16().to(dtype) if is_tied else row
            params = [SamplingParams(temperature=0.8, top_p=0.9, seed=seed) for seed in range(drawn)]
            metadata = SamplingMetadata.from_params(params, positions=range(drawn))
            tokens = native.sample(row.expand(drawn, -1), metadata).token_ids
            seeds = row[tokens].argsort()[:2].tolist()
            metadata = SamplingMetadata.from_params([params[i] for i in seeds], positions=seeds)
            result = sampler.sample(row.expand(2, -1), metadata).token_ids
            judged += 2
            if result.tolist() != tokens[seeds].tolist():
                wrong.append([str(dtype), spread, result.tolist(), tokens[seeds].tolist()])
    return {"judged": judged, "wrong": wrong, "searches": len(searches)}


def hundred():
    """Draw rows with a hundred tokens kept by top-p: few enough for candidates."""
    native = tokendraw.load_sampler("native", device="cpu")
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    judged, wrong, passes = 0, [], []
    announce = row_draw.announce_first_pass
    row_draw.announce_first_pass = lambda *args: passes.append(args) or announce(*args)
    for dtype in ("float32", "bfloat16"):
        cell = Cell(4, 151_936, dtype, "top-p", "peaked-100")
        (logits,) = make_inputs(cell, torch.device("cpu"), 1)
        metadata = metadata_of(cell, torch.device("cpu"))
        result, expected = (each.sample(logits, metadata).token_ids.tolist() for each in (sampler, native))
        judged += len(result)
        if result != expected:
            wrong.append([dtype, result, expected])
    return {"judged": judged, "wrong": wrong, "passes": len(passes)}


def collected():
    """Draw kept sets of some hundred tokens: scattered, side by side, and below the least logit that was collected."""
    rng = np.random.default_rng(7)
    size, wrong, weighed = 100_003, [], []
    native = tokendraw.load_sampler("native", device="cpu")
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    finish_pass, errors = large_set.finish_pass, large_set_passes._MORE_STANDARD_ERRORS
    large_set.finish_pass = lambda *args: weighed.append(args) or finish_pass(*args)
    requests = [
        SamplingParams(temperature=0.8, top_k=k, top_p=p, min_p=m, filter_order=order, seed=seed)
        for seed, (k, p, m, order) in enumerate(
            (
                (200, 0.95, 0.0, "top_k_first"),
                (300, 1.0, 0.0, "top_k_first"),
                (300, 0.5, 0.0, "joint"),
                (0, 0.9, 0.0, "top_k_first"),
                (0, 1.0, 1e-4, "top_k_first"),
                (0, 0.9, 1e-4, "top_k_first"),
            )
        )
    ]
    metadata = SamplingMetadata.from_params(requests, positions=range(len(requests)))
    scattered = np.where(rng.random(size) < 0.003, rng.normal(12, 1, size), rng.normal(0, 1, size))
    passes = {}
    for name, row, more in (
        ("scattered", scattered, errors),
        ("side by side", np.sort(scattered), errors),
        ("too few", scattered, tl.constexpr(-3.0)),
    ):
        large_set_passes._MORE_STANDARD_ERRORS = more
        weighed.clear()
        logits = torch.from_numpy(np.tile(row.astype(np.float32), (len(requests), 1)))
        logits = logits.bfloat16() if name == "scattered" else logits
        result, expected = (each.sample(logits, metadata).token_ids.tolist() for each in (sampler, native))
        if result != expected:
            wrong.append([name, result, expected])
        passes[name] = len(weighed)
    large_set.finish_pass, large_set_passes._MORE_STANDARD_ERRORS = finish_pass, errors
    return {"wrong": wrong, "passes": passes}


def intervals():
    """Draw rows of few and many tokens with XTC and ``temperature_last``, alone and beside all other filters.

    What a call wants beside tokens decides which thresholds are exact, and at which temperatures tiles are summed.
    """
    rng = np.random.default_rng(9)
    wrong, size, rows = [], 9000, 32
    for mode in (
        None,
        None,
        "raw_logprobs",
        "temperature_logprobs",
        "processed_logprobs",
        "processed_logits",
    ):
        need = Need() if mode is None else Need(threshold=True, logprobs_mode=mode)
        requests = interval_requests(rng, rows, is_described=mode is not None)
        logits = torch.from_numpy(interval_logits(rng, np.arange(rows), size))
        metadata = SamplingMetadata.from_params(requests, positions=range(rows))
        samplers = (
            TritonGumbelSampler(torch.device("cpu"), need),
            tokendraw.load_sampler("native", device="cpu", need=need),
        )
        result, expected = (each.sample(logits, metadata) for each in samplers)
        pairs = {"token_ids": (result.token_ids, expected.token_ids)}
        if mode is not None:
            for name in ("threshold", "ceiling", "log_kept_mass"):
                pairs[name] = getattr(result, name), getattr(expected, name)
            for name in ("token_ids", "logprobs", "ranks", "given_logprobs"):
                pairs[f"logprobs.{name}"] = getattr(result.logprobs, name), getattr(expected.logprobs, name)
        wrong += [
            [mode, name, int(row), str(requests[row])]
            for name, (found, needed) in pairs.items()
            for row in (~torch.isclose(found, needed, rtol=0, atol=4e-6).view(rows, -1).all(-1)).nonzero()
        ]
    return {"wrong": wrong}


def large_k():
    """Draw the k best of a large k: from a list of a guessed set; of a set that a pass bounds; and beyond any list.

    In the last row the k best are neighbours, of which the sample sees few or none: some guessed lists are too short.
    """
    rng = np.random.default_rng(8)
    wrong, weighed = [], []
    native = tokendraw.load_sampler("native", device="cpu")
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    finish_pass, number_in_row = large_set.finish_pass, large_set_passes.number_in_row
    large_set.finish_pass = lambda *args: weighed.append(args) or finish_pass(*args)
    requests = [
        SamplingParams(temperature=0.8, top_k=k, top_p=p, min_p=m, filter_order=order, seed=seed)
        for seed, (k, p, m, order) in enumerate(
            (
                (2500, 1.0, 0.0, "top_k_first"),
                (2500, 0.95, 0.0, "top_k_first"),
                (2500, 0.95, 0.0, "joint"),
                (20_000, 0.95, 0.0, "top_k_first"),
                (50, 0.99, 0.01, "top_k_first"),
            )
        )
    ]
    metadata = SamplingMetadata.from_params(requests, positions=range(len(requests)))
    rows = rng.normal(0, 2, (len(requests), 100_003)).astype(np.float32)
    rows[4:] = np.sort(rows[4:])[:, ::-1]
    passes = {}
    for name, bound in (("guessed", number_in_row), ("bounded", lambda *args: tl.full((), 1e9, tl.float32))):
        large_set_passes.number_in_row = bound
        for logits in (torch.from_numpy(rows), torch.from_numpy(rows).bfloat16()):
            weighed.clear()
            result, expected = (
                each.sample(logits, metadata).token_ids.tolist() for each in (sampler, native)
            )
            if result != expected:
                wrong.append([name, str(logits.dtype), result, expected])
            numbers = [int(args[1]) for args in weighed]
            passes[name] = [numbers.count(row) for row in range(len(requests))]
    large_set.finish_pass, large_set_passes.number_in_row = finish_pass, number_in_row
    return {"wrong": wrong, **passes}


def guesses():
    """Require thresholds of nuclei of several widths between the pivots of the first pass."""
    rng = np.random.default_rng(5)
    shape, missed, snap = (4, 151_936), [], large_set_passes._snap_pivots
    kinds = {
        "most tokens hidden by others": (0.97, rng.exponential(size=shape)),
        "a thousand tokens": (0.9, rng.normal(0, 3, shape)),
        "five thousand tokens": (0.9, rng.normal(0, 2.5, shape)),
        "most of the vocabulary": (0.9, rng.normal(0, 0.01, shape)),
    }
    for name, (p, rows) in kinds.items():
        for dtype in (torch.float32, torch.bfloat16):
            pivots = []
            large_set_passes._snap_pivots = lambda *args, to=pivots: to.append(snap(*args)) or to[-1]
            logits = torch.from_numpy(rows.astype(np.float32)).to(dtype)
            params = [SamplingParams(temperature=0.8, top_p=p, seed=seed) for seed in range(len(rows))]
            metadata = SamplingMetadata.from_params(params, positions=range(len(rows)))
            TritonGumbelSampler(torch.device("cpu"), Need()).sample(logits, metadata)
            for row, result in zip(logits.double(), pivots, strict=True):
                ranked = row.sort(descending=True).values
                mass = ((ranked - ranked[0]) / 0.8).exp().cumsum(0)
                threshold = ranked[torch.searchsorted(mass, p * mass[-1])].item()
                highest, lowest = (float(pivot.handle.data.item()) for pivot in (result.p0, result.p3))
                if not lowest <= threshold < highest:
                    missed.append([name, str(dtype), threshold, highest, lowest])
    large_set_passes._snap_pivots = snap
    return {"missed": missed, "rows": 2 * len(kinds) * shape[0]}


def flat():
    """Keep the nuclei of small p of flat rows, whose mass is far beyond what a list of collected logits can hold.

    Returns (kept, needed) of each row whose kept set is none that float32 may give, and the rows whose token is not
    native's.
    """
    rng = np.random.default_rng(11)
    rows = (
        (32_000, lambda size: rng.uniform(-0.005, 0.005, size), 1.0, (0, 0.003, "top_k_first")),
        (151_936, lambda size: rng.normal(0, 0.1, size), 1.0, (0, 0.002, "top_k_first")),
        (128_256, lambda size: rng.normal(0, 3, size), 10.0, (0, 0.01, "top_k_first")),
        (128_256, lambda size: rng.normal(0, 3, size), 10.0, (0, 0.01, "temperature_last")),
        (151_936, lambda size: rng.normal(0, 0.1, size), 1.0, (2000, 0.05, "joint")),
        (151_936, lambda size: rng.normal(0, 0.1, size), 1.0, (2000, 0.01, "joint")),
    )
    native = tokendraw.load_sampler("native", device="cpu")
    plain, exact = (TritonGumbelSampler(torch.device("cpu"), need) for need in (Need(), Need(threshold=True)))
    wrong, tokens = [], []
    for number, (size, draw, temperature, (k, p, order)) in enumerate(rows):
        logits = torch.from_numpy(draw(size).astype(np.float32))[None]
        request = SamplingParams(temperature=temperature, top_k=k, top_p=p, filter_order=order, seed=number)
        metadata = SamplingMetadata.from_params([request], positions=[3])
        found = [each.sample(logits, metadata).token_ids.item() for each in (native, plain, exact)]
        if len(set(found)) > 1:
            tokens.append([number, *found])
        ranked = np.sort(logits[0].double().numpy())[::-1]
        filter_temperature = 1.0 if order == "temperature_last" else temperature
        mass = np.exp((ranked - ranked[0]) / filter_temperature).cumsum()
        least, most = (np.searchsorted(mass, p * share * mass[-1]) + 1 for share in (1 - 2e-6, 1 + 2e-6))
        if k:
            least, most = min(least, k), min(most, k)
        kept = int((logits >= exact.sample(logits, metadata).threshold).sum())
        if not least <= kept <= most:
            wrong.append([number, kept, int(least)])
    return {"judged": len(rows), "wrong": wrong, "tokens": tokens}


def wide32():
    """Draw the odd half of the rows in float32."""
    return wide(torch.float32, halves=(1,))


def wide(dtype=torch.bfloat16, halves=(0, 1)):
    """Draw rows with more kept tokens than a program's registers hold: every kind of threshold, with ties.

    Lists hold few logits, so that passes over these short rows weigh them as they weigh long rows.

    :param halves: which requests: of each family the even ones, the odd ones, or all, the next family the others.
    """
    rng = np.random.default_rng(1)
    size, judged, wrong = 4099, 0, []
    large_set_passes.MOST_EXPECTED, large_set._MAX_SET = tl.constexpr(500), tl.constexpr(500)
    sampler = TritonGumbelSampler(torch.device("cpu"), Need(logprobs_mode="processed_logprobs"))
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
    requests = [
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
    for number, (name, family) in enumerate(families.items()):
        params = [
            replace(request, seed=100 + i) for i, request in enumerate(requests) if (i + number) % 2 in halves
        ]
        logits = torch.from_numpy(np.tile(family, (len(params), 1))).to(dtype)
        metadata = SamplingMetadata.from_params(params, positions=range(len(params)))
        tokens = sampler.sample(logits, metadata).token_ids.tolist()
        described = [replace(request, logprobs=0) for request in params]
        exactly = sampler.sample(
            logits, SamplingMetadata.from_params(described, positions=range(len(params)))
        )
        masses = exactly.log_kept_mass.tolist()
        rows = zip(logits.float().numpy(), params, tokens, exactly.token_ids.tolist(), masses, strict=True)
        for position, (row, request, token, same, mass) in enumerate(rows):
            prepared = reference.prepare(row, request)
            expected, lead = reference.draw(prepared, request.seed, position, "fp32")
            if prepared.certain and lead > reference.NEAR_TIE:
                judged += 1
                if (token, same) != (expected, expected):
                    wrong.append([str(dtype), name, str(request), token, same, expected])
                weights = np.exp(prepared.y)
                if abs(mass - np.log(weights[prepared.kept].sum() / weights.sum())) > 1e-5:
                    wrong.append([str(dtype), name, str(request), "kept mass", mass])
    # Where the floor of min-p is what top-p falls back to, and bfloat16 has no value there.
    edge = replace(requests[4], filter_order="joint")
    assert (edge.top_p, edge.min_p) == (0.99, 0.49)
    logits = torch.from_numpy(np.tile(families["heavy below the floor"], (8, 1))).to(torch.bfloat16)
    params = [replace(edge, seed=i) for i in range(8)]
    tokens = sampler.sample(logits, SamplingMetadata.from_params(params, positions=[1] * 8)).token_ids
    for seed, token in enumerate(tokens.tolist()):
        expected, _ = reference.draw(reference.prepare(logits[0].float().numpy(), edge), seed, 1, "fp32")
        if token != expected:
            wrong.append(["the floor of min-p in bfloat16", seed, token, expected])
    return {"judged": judged, "wrong": wrong}


def words():
    """Draw rows of bfloat16 at multiples of 16 bytes and at other addresses, with NaN behind each row."""
    rng = np.random.default_rng(6)
    size, result, aligned = 9193, [], []  # an odd number, and more than a program reads at once
    row = torch.from_numpy(rng.normal(-10, 1.5, size)).to(torch.bfloat16)
    row[-1] = -3.0  # a heavy one in the half of a word; 0 in the other half would be still heavier
    requests = [
        SamplingParams(temperature=0.7, top_k=k, top_p=p, min_p=m, seed=seed)
        for k, p, m in ((0, 0.9, 0.0), (3000, 0.9, 0.0), (0, 0.95, 0.001))
        for seed in range(2)
    ]
    metadata = SamplingMetadata.from_params(
        [replace(request, logprobs=0) for request in requests], positions=range(len(requests))
    )
    for stride in (size + 7, size + 1, size + 2):
        sampler = TritonGumbelSampler(torch.device("cpu"), Need(logprobs_mode="processed_logprobs"))
        logits = torch.full((len(requests), stride), float("nan"), dtype=torch.bfloat16)[:, :size]
        logits.copy_(row)
        out = sampler.sample(logits, metadata)
        result.append([out.token_ids.tolist(), out.valid.tolist(), out.log_kept_mass.tolist()])
        aligned += [call.variant.is_aligned for call in sampler._cache.by_variant.values()]
    expected, lead = reference.draw(reference.prepare(row.float().numpy(), requests[0]), 0, 0, "fp32")
    return {"aligned": aligned, "found": result, "expected": expected, "certain": lead > reference.NEAR_TIE}


def lonely():
    """Draw rows with NaN in a tile of -inf: at the last id, and in the middle."""
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    judged, wrong, requests = 0, [], REQUESTS[::11]
    for size, place in ((1025, 1024), (3000, 1500)):
        for value in (0.0, float("nan")):
            logits = torch.zeros(len(requests), size)
            logits[:, place // 1024 * 1024 : (place // 1024 + 1) * 1024] = float("-inf")
            logits[:, place] = value
            valid = sampler.sample(logits, SamplingMetadata.from_params(requests)).valid.tolist()
            judged += len(valid)
            wrong += [
                [size, value != value, i] for i, result in enumerate(valid) if result != (value == value)
            ]
    return {"judged": judged, "wrong": wrong}


def extremes():
    """Draw at temperatures in ready tensors that are infinite, or whose inverse float32 cannot hold, as native does."""
    temperatures = [float("inf"), 1e308, 1e39, 1e30, 1e-58, float("nan"), -1.0]
    filters = [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.5, 0.0), (0, 1.0, 0.1), (0, 1.0, 1.0), (40, 0.9, 0.01)]
    rows = [(temperature, *each) for temperature in temperatures for each in filters]
    columns = dict(zip(("temperature", "top_k", "top_p", "min_p"), zip(*rows, strict=True), strict=True))
    real = {
        name: torch.tensor(columns[name], dtype=torch.float64) for name in ("temperature", "top_p", "min_p")
    }
    numbers = torch.arange(len(rows))
    metadata = SamplingMetadata(**real, top_k=torch.tensor(columns["top_k"]), seed=numbers, positions=numbers)
    row = torch.from_numpy(np.random.default_rng(7).normal(0, 2, 1100))
    row[::3] = float("-inf")
    wrong = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits = row.to(dtype).expand(len(rows), -1)
        for precision in ("fp32", "fp64"):
            need = Need(gumbel_dtype=precision)
            expected = tokendraw.load_sampler("native", device="cpu", need=need).sample(logits, metadata)
            out = TritonGumbelSampler(torch.device("cpu"), need).sample(logits, metadata)
            same = (out.token_ids == expected.token_ids) & out.valid
            wrong += [[str(dtype), precision, rows[i]] for i in (~same).nonzero().flatten().tolist()]
    # A difference of two logits that float32 cannot hold.
    logits = torch.tensor([3e38, -3e38]).repeat(len(rows), 1)
    out = TritonGumbelSampler(torch.device("cpu"), Need()).sample(logits, metadata)
    wrong += [rows[i] for i in (~out.valid | (out.token_ids > 1)).nonzero().flatten().tolist()]
    return {"judged": 6 * len(rows), "wrong": wrong}
