"""Logprobs of triton-gumbel on CPU tensors beside the native sampler's, in Triton's interpreter."""

import itertools
from dataclasses import replace

import numpy as np
import torch

from interval_requests import LIKELY, interval_logits, interval_requests
from tokendraw import BatchFacts, Drafts, LogprobsTensors, Need, SamplingMetadata, SamplingParams
from tokendraw.backends.description.capabilities import LOGPROBS_MODES
from tokendraw_native.sampler import NativeSampler
from tokendraw_testing import reference
from tokendraw_testing.logits_families import FAMILIES
from tokendraw_triton_gumbel.kernels import large_set
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler

INF = float("inf")
REQUESTS = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
    for t, k, p, m in (
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (0.8, 50, 0.9, 0.0),
        (1.3, 3, 1.0, 0.0),
        (0.9, 0, 0.5, 0.0),
        (1.0, 0, 1.0, 0.1),
        (0.6, 100, 1.0, 0.0),
        (0.0, 0, 1.0, 0.0),
        (2.0, 0, 0.999, 0.0),
    )
]


def described(logits, metadata, mode):
    """Return the logprobs of triton-gumbel and of native for the same draw."""
    outputs = []
    for kind in (TritonGumbelSampler, NativeSampler):
        torch.manual_seed(0)
        outputs.append(kind(logits.device, Need(logprobs_mode=mode)).sample(logits, metadata).logprobs)
    return outputs


def faults(answer: LogprobsTensors, expected: LogprobsTensors):
    """Return (row, difference) of each wrong row."""
    wrong = []
    for name in ("token_ids", "logprobs", "ranks"):
        one, other = getattr(answer, name), getattr(expected, name)
        if one.shape != other.shape or one.dtype != other.dtype:
            return [[-1, f"{name} {list(one.shape)} {one.dtype}, not {list(other.shape)} {other.dtype}"]]
    for i in range(len(expected.ranks)):
        if answer.ranks[i] != expected.ranks[i]:
            wrong.append([i, f"rank {answer.ranks[i]}, not {expected.ranks[i]}"])
        ids, right = answer.token_ids[i], expected.token_ids[i]
        if not torch.equal(ids, right):
            at = int((ids != right).nonzero()[0])
            wrong.append([i, f"place {at}: token {ids[at]}, not {right[at]}"])
        values, true = answer.logprobs[i], expected.logprobs[i]
        if not torch.allclose(values, true, rtol=1e-6, atol=1e-5):
            wrong.append([i, f"values {values[:6].tolist()}, not {true[:6].tolist()}"])
    return wrong


class Tally:
    """Counts the judged rows, and lists the wrong rows."""

    def __init__(self):
        self.judged, self.wrong = 0, []

    def look(self, label, logits, m, mode):
        answer, expected = described(logits, m, mode)
        self.judged += len(logits)
        self.wrong += [f"{label} {mode} row {i}: {what}" for i, what in faults(answer, expected)]


def batch(rng, size, dtype, requests, n):
    """Make a row of each family with a gap behind each row, and a random request with N up to n."""
    rows = torch.from_numpy(np.stack([family(rng, size) for family in FAMILIES.values()])).to(dtype)
    stride = size + int(rng.integers(0, 20))
    storage = torch.full((len(rows), stride), torch.nan, dtype=dtype)
    logits = storage[:, :size]
    logits.copy_(rows)
    picked = [requests[i] for i in rng.integers(0, len(requests), len(rows))]
    wanted = [n if rng.random() < 0.6 else int(rng.choice([0, 1, 3, n])) for _ in picked]
    params = [replace(p, logprobs=w, seed=i) for i, (p, w) in enumerate(zip(picked, wanted, strict=True))]
    return logits, SamplingMetadata.from_params(params, positions=range(len(rows)))


def families():
    """Compare every mode, family, size and dtype, with N below, at and beyond the limit of comparing."""
    rng, tally = np.random.default_rng(1), Tally()
    for size in (1, 31, 1025, 3000, 9000):
        for number, mode in enumerate(LOGPROBS_MODES):
            both = (torch.float32, torch.bfloat16)
            for dtype in both if size > 2000 else both[number % 2 :][:1]:
                n = int(rng.choice([0, 1, 5, 20, 64] if size > 31 else [0, 1, 64]))
                logits, m = batch(rng, size, dtype, REQUESTS, n)
                tally.look(f"V = {size} {dtype} N = {n}", logits, m, mode)
        for n in (65, -1):
            logits, m = batch(rng, size, dtype, REQUESTS, n)
            tally.look(f"V = {size} {dtype} N = {n}", logits, m, str(rng.choice(LOGPROBS_MODES)))
    return tally


def large():
    """Compare rows with enough tiles for bounds by maxima, and more granules than one list."""
    rng, tally = np.random.default_rng(2), Tally()
    for size, dtype, n, mode in (
        (33000, torch.float32, 5, "processed_logits"),
        (141000, torch.bfloat16, 20, "raw_logprobs"),
        (132096, torch.float16, 64, "processed_logprobs"),
    ):
        logits, m = batch(rng, size, dtype, REQUESTS, n)
        tally.look(f"V = {size} {dtype} N = {n}", logits, m, mode)
    return tally


def special_rows(size, dtype):
    """Rows with NaN, infinities, nothing at all, signed zeros, ties across the tiles, and few values."""
    rng = np.random.default_rng(size)
    rows = torch.from_numpy(rng.standard_normal((14, size)).astype(np.float32))
    rows[0] = -INF
    rows[1] = torch.nan
    rows[2, ::3] = torch.nan
    rows[3, size // 2] = INF
    rows[4, 1::2] = INF
    rows[5, 3:] = -INF
    rows[6, : size - 2] = -INF
    rows[7] = torch.where(rows[7] > 1.9, 0.0 * rows[8].sign(), -1.0)
    rows[8] = (rows[8] * 2).round()
    rows[9] = rows[9].abs().floor()
    rows[10] *= 1e38
    rows[11] *= 1e-40 if dtype == torch.float32 else 1e-30  # the interpreter gets denormal bfloat16 wrong
    rows[12] = torch.where(rows[12] > 1, 5.0, torch.nan)
    rows[13] = torch.where(torch.arange(size) >= size - 200, 1.0 + torch.arange(size) / size, 0.0)
    return rows.to(dtype)


def special():
    """Each special row in each mode, under a request of its own."""
    rng, tally = np.random.default_rng(3), Tally()
    for size, n, dtype in ((2100, 5, torch.float32), (2100, 64, torch.bfloat16), (300, 20, torch.float32)):
        rows = special_rows(size, dtype)
        for mode in LOGPROBS_MODES[:: 1 if size > 2000 else 2]:
            picked = [REQUESTS[i] for i in rng.integers(0, len(REQUESTS), len(rows))]
            params = [replace(request, logprobs=n, seed=3) for request in picked]
            m = SamplingMetadata.from_params(params, positions=range(len(rows)))
            tally.look(f"V = {size} N = {n}", rows, m, mode)
        params = [replace(request, logprobs=-1) for request in params]
        m = SamplingMetadata.from_params(params, positions=range(len(rows)))
        tally.look(f"V = {size} N = -1", rows, m, "processed_logprobs")
    return tally


def wide_rows(size, dtype):
    """Special rows; all but one logit of each granule low; equal logits but for the last; the best side by side."""
    rng = np.random.default_rng(size)
    rows = torch.from_numpy(rng.standard_normal((3, size)).astype(np.float32))
    rows[0] = torch.where(torch.arange(size) % 1024 < 16, rows[0] + 30, rows[0] * 1e-3)
    rows[1] = torch.where(torch.arange(size) == size - 1, 2.0, 1.0)
    rows[2] -= torch.arange(size) * 1e-3
    return torch.cat([special_rows(size, dtype), rows.to(dtype)])


def wide():
    """Compare wide rows with N around the limits, a part of them with fewer, and V below N, odd, and large."""
    rng, tally = np.random.default_rng(8), Tally()
    for size, n, dtype in (
        (2100, 65, torch.float32),
        (2101, 100, torch.bfloat16),
        (9001, 256, torch.float32),
        (300, 1000, torch.float16),
        (4096, 1000, torch.float32),
        (9001, 1025, torch.bfloat16),
        (70_001, 1000, torch.float32),
    ):
        rows = wide_rows(size, dtype)
        picked = [REQUESTS[i] for i in rng.integers(0, len(REQUESTS), len(rows))]
        picked[-3:] = REQUESTS[:3]
        params = [replace(p, logprobs=n // 2 if i % 4 == 1 else n, seed=3) for i, p in enumerate(picked)]
        m = SamplingMetadata.from_params(params, positions=range(len(rows)))
        tally.look(f"V = {size} N = {n} {dtype}", rows, m, str(rng.choice(LOGPROBS_MODES)))
    return tally


def scores():
    """Score random tokens and padding in wide rows, with N of every search, up to what PyTorch sorts."""
    rng, tally = np.random.default_rng(9), Tally()
    for size, n, dtype, modes in (
        (300, 1000, torch.float16, LOGPROBS_MODES),
        (9001, 0, torch.bfloat16, ("processed_logprobs",)),
        (9001, 1025, torch.bfloat16, ("raw_logits", "processed_logprobs")),
    ):
        rows = wide_rows(size, dtype)
        for mode in modes:
            picked = [REQUESTS[i] for i in rng.integers(0, len(REQUESTS), len(rows))]
            params = [replace(p, logprobs=n // 2 if i % 4 == 1 else n) for i, p in enumerate(picked)]
            m = SamplingMetadata.from_params(params)
            ids = torch.from_numpy(rng.integers(-1, size + 1, len(rows)))
            need = Need(logprobs_mode=mode, threshold=True)
            answer, expected = (
                kind(rows.device, need).score(rows, ids, m) for kind in (TritonGumbelSampler, NativeSampler)
            )
            tally.judged += len(rows)
            label = f"V = {size} N = {n} {mode}"
            tally.wrong += [
                f"{label} row {i}: {what}" for i, what in faults(answer.logprobs, expected.logprobs)
            ]
            tally.wrong += [
                f"{label}: {name}"
                for name in ("entropy", "log_kept_mass", "threshold")
                if not torch.allclose(getattr(answer, name), getattr(expected, name), 0, 3e-6, equal_nan=True)
            ]
    return tally


def interval_scores():
    """Score tokens of rows with XTC and ``temperature_last``; of rows without a seed XTC drops nothing."""
    rng, tally = np.random.default_rng(10), Tally()
    for size, dtype in ((3000, torch.float32), (5003, torch.bfloat16)):
        for number, mode in enumerate(LOGPROBS_MODES):
            rows = np.arange(24)
            logits = torch.from_numpy(interval_logits(rng, rows, size)).to(dtype)
            requests = interval_requests(rng, len(rows), is_described=True)
            unseeded = [replace(p, seed=p.seed if i % 3 else None) for i, p in enumerate(requests)]
            hot = [replace(p, temperature=1.0) for p in requests]  # without a tensor of temperatures
            params = hot if number == 4 and dtype == torch.float32 else unseeded
            m = SamplingMetadata.from_params(params, positions=rows.tolist())
            need = Need(logprobs_mode=mode, threshold=True)
            samplers = [kind(logits.device, need) for kind in (TritonGumbelSampler, NativeSampler)]
            drawn = samplers[1].sample(logits, m).token_ids
            others = torch.from_numpy(rng.choice([*LIKELY, -1, size, 7], len(rows)))
            ids = torch.where(torch.from_numpy(rng.random(len(rows)) < 0.5), drawn, others)
            answer, expected = (sampler.score(logits, ids, m) for sampler in samplers)
            tally.judged += len(rows)
            label = f"V = {size} {dtype} {mode}"
            tally.wrong += [
                f"{label} row {i}, {params[i]}: {what}"
                for i, what in faults(answer.logprobs, expected.logprobs)
            ]
            pairs = {
                name: (getattr(answer, name), getattr(expected, name))
                for name in ("entropy", "log_kept_mass", "threshold", "ceiling")
            }
            pairs["given_logprobs"] = answer.logprobs.given_logprobs, expected.logprobs.given_logprobs
            for name, (found, needed) in pairs.items():
                is_close = torch.isclose(found, needed, 0, 4e-6, equal_nan=True).view(len(rows), -1).all(-1)
                tally.wrong += [
                    f"{label} row {i}, {params[i]}: {name} {found[i].tolist()}, not {needed[i].tolist()}"
                    for i in (~is_close).nonzero().flatten().tolist()
                ]
    return tally


def ceilings():
    """Compare rows that keep tokens below a ceiling at temperatures near 0, and greedy rows of equal tokens."""
    tally = Tally()
    logits = torch.zeros(6, 30)
    logits[:, :4] = torch.tensor([9.0, 8.0, 8.0, 8.0])
    logits[3:, 1] = 8.5
    temperatures = [1e-6, 1e-20, 1e-40, 1e-9, 1e-38, 0.0]
    logits[5, :4] = 9.0
    for mode, n in itertools.product(LOGPROBS_MODES, (0, 3)):
        params = [
            SamplingParams(
                temperature=t, xtc_probability=1.0, filter_order="temperature_last", seed=i, logprobs=n
            )
            for i, t in enumerate(temperatures)
        ]
        m = SamplingMetadata.from_params(params, positions=range(6))
        tally.look(f"N = {n}", logits, m, mode)
        samplers = [
            kind(logits.device, Need(logprobs_mode=mode)) for kind in (TritonGumbelSampler, NativeSampler)
        ]
        for token in (0, 1):
            ids = torch.full((6,), token)
            scores = [sampler.score(logits, ids, m).logprobs for sampler in samplers]
            tally.wrong += [f"scores N = {n} {mode} row {i}: {what}" for i, what in faults(*scores)]
    return tally


def tensors():
    """Compare parameters by slot, of unusual dtypes, absent, or beyond the facts."""
    rng, tally = np.random.default_rng(4), Tally()
    logits = torch.from_numpy(np.stack([FAMILIES["tied"](rng, 1500) for _ in range(6)]))
    facts = BatchFacts(max_logprobs=7)
    index = torch.tensor([2, 0, 0, 1, 2, 1])
    for mode in LOGPROBS_MODES:
        tally.look("no tensor", logits, SamplingMetadata(facts=facts), mode)
        by_slot = SamplingMetadata(
            temperature=torch.tensor([0.5, 0.0, torch.nan], dtype=torch.float32),
            top_k=torch.tensor([4, 0, 9], dtype=torch.int32),
            row_index=index if mode != "raw_logits" else index.to(torch.int32),
            logprobs=torch.tensor([-1, 2, 99], dtype=torch.int32),
            facts=facts,
        )
        tally.look("by slot", logits, by_slot, mode)
        tally.look("by slot, many", logits, replace(by_slot, facts=replace(facts, max_logprobs=-1)), mode)
    hot = SamplingMetadata(
        temperature=torch.tensor([torch.inf, 1e-320, 1e-30, 1e30, -1.0, 1e-3]).double(), facts=facts
    )
    tally.look("temperatures", logits, hot, "temperature_logprobs")
    tally.look("nothing", logits[:0], SamplingMetadata(facts=facts), "raw_logits")
    return tally


def order():
    """Compare rows with -inf from rounding instead of logits, ordered by value and id."""
    rng, tally = np.random.default_rng(5), Tally()
    for size, n in ((40, 20), (2100, 70)):
        beside = rng.standard_normal((3, size)).astype(np.float32)
        beside[0, 5] = INF
        beside[1] *= 1e38
        beside[2, ::3] = np.nan
        logits = torch.from_numpy(beside)
        for mode in ("raw_logprobs", "temperature_logprobs"):
            params = [SamplingParams(temperature=1e-3, seed=i, logprobs=n) for i in range(3)]
            m = SamplingMetadata.from_params(params, positions=range(3))
            answers = described(logits, m, mode)
            for who, result in zip(("triton-gumbel", "native"), answers, strict=True):
                for i in range(3):
                    tally.judged += 1
                    ids, values = result.token_ids[i, 1:].numpy(), result.logprobs[i, 1:].numpy()
                    hidden = ids[(values == -INF) & (ids >= 0)]
                    if not (np.diff(hidden) > 0).all():
                        tally.wrong.append(f"{who} V = {size} {mode} row {i}: {hidden[:8].tolist()}")
            tally.wrong += [f"V = {size} {mode} row {i}: {what}" for i, what in faults(*answers)]
    return tally


def tiny():
    """Logits as close as the temperature is low: the draw of sample against the oracle, all three against native."""
    rng, tally = np.random.default_rng(6), Tally()
    device, need = torch.device("cpu"), Need(logprobs_mode="temperature_logprobs")
    sampler, native = TritonGumbelSampler(device, need), NativeSampler(device, need)
    degrees = [1e-40, 1e-39, 3e-38, 2e-37, 1e-44, 1e-320]
    for size, extra in (
        (50, {}),
        (60, {"top_k": 7}),
        (70, {"top_p": 0.8}),
        (80, {"filters": {"top_n_sigma": 1.0}}),
    ):
        rows = np.stack([rng.standard_normal(size) * 3 * max(t, 1e-44) for t in degrees]).astype(np.float32)
        logits = torch.from_numpy(rows)
        params = [SamplingParams(temperature=t, seed=i, logprobs=0, **extra) for i, t in enumerate(degrees)]
        m = SamplingMetadata.from_params(params, positions=range(len(params)))
        ours, theirs = sampler.sample(logits, m), native.sample(logits, m)
        for i, (row, request) in enumerate(zip(rows, params, strict=True)):
            prepared = reference.prepare(row, request)
            expected, lead = reference.draw(prepared, request.seed, i)
            if prepared.certain and lead > reference.NEAR_TIE:
                tally.judged += 1
                if [int(ours.token_ids[i]), int(theirs.token_ids[i])] != [expected, expected]:
                    tally.wrong.append(
                        f"V = {size} {request}: {ours.token_ids[i]}, {theirs.token_ids[i]}, not {expected}"
                    )
        tally.wrong += [
            f"V = {size} {extra} row {i}: {what}" for i, what in faults(ours.logprobs, theirs.logprobs)
        ]
        drafted, same = (
            sampler.sample(logits, m, draft=True).token_ids,
            native.sample(logits, m, draft=True).token_ids,
        )
        tally.judged += len(rows)
        if not torch.equal(drafted, same):
            tally.wrong.append(f"V = {size} {extra}: drafts {drafted.tolist()}, not {same.tolist()}")
        if size == 50:
            offsets = torch.tensor([0, 2, 4, 6])
            drafts = Drafts(
                draft_token_ids=drafted[::2], cu_num_logits=offsets, max_drafts=1, draft_logits=logits[::2]
            )
            result, right = (s.verify(logits, drafts, m) for s in (sampler, native))
            tally.judged += 3
            if not torch.equal(result.token_ids, right.token_ids):
                tally.wrong.append(
                    f"{extra}: verified {result.token_ids.tolist()}, not {right.token_ids.tolist()}"
                )
    return tally


def calls():
    """Compare logits that require grad, and calls without ranks, with ordinary calls."""
    tally = Tally()
    logits = torch.randn(3, 70, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for kind, filters in itertools.product((TritonGumbelSampler, NativeSampler), ({}, {"top_p": 0.9})):
        for n in (0, 5, 70):
            params = [SamplingParams(seed=i, logprobs=n, **filters) for i in range(3)]
            m = SamplingMetadata.from_params(params, positions=range(3))
            ranked, without = (
                kind(torch.device("cpu"), Need(logprob_ranks=ranks)).sample(logits, m)
                for ranks in (True, False)
            )
            tally.judged += 1
            shown = [ranked.logprobs.logprobs, without.logprobs.logprobs, ranked.log_kept_mass]
            if any(tensor.requires_grad for tensor in shown):
                tally.wrong.append(f"{kind.__name__} {filters} N = {n}: requires grad")
            if ranked.logprobs.ranks is None or without.logprobs.ranks is not None:
                tally.wrong.append(f"{kind.__name__} {filters} N = {n}: ranks")
            if not torch.equal(shown[0], shown[1]) or not torch.equal(ranked.token_ids, without.token_ids):
                tally.wrong.append(f"{kind.__name__} {filters} N = {n}: other values without ranks")
    return tally


def collected():
    """Compare rows with thousands of kept tokens: the bracket of the threshold is collected, no row searched."""
    tally, fits, searched = Tally(), [], []
    keep, find = large_set.find_bracket_edge, large_set.find_threshold

    def kept(*args):
        fit = keep(*args)
        fits.append(int(fit.handle.data.item()))
        return fit

    large_set.find_bracket_edge = kept
    large_set.find_threshold = lambda *args: searched.append(args) or find(*args)
    need = Need(logprobs_mode="processed_logprobs")
    samplers = [kind(torch.device("cpu"), need) for kind in (TritonGumbelSampler, NativeSampler)]
    generator = torch.Generator().manual_seed(1)
    params = [SamplingParams(temperature=0.8, top_p=0.9, seed=i, logprobs=3) for i in range(3)]
    m = SamplingMetadata.from_params(params, positions=range(3))
    for dtype, (vocab_size, spread) in itertools.product(
        (torch.float32, torch.bfloat16), ((20_000, 1.0), (40_000, 2.5), (9000, 0.02))
    ):
        logits = (torch.randn(3, vocab_size, generator=generator) * spread).to(dtype)
        result, expected = (sampler.sample(logits, m) for sampler in samplers)
        tally.judged += 3
        values = [output.logprobs.logprobs for output in (result, expected)]
        if not torch.equal(result.token_ids, expected.token_ids) or not torch.allclose(*values, atol=1e-5):
            tally.wrong.append(f"{dtype} {vocab_size} {spread}")
    if sum(fits) < tally.judged // 2 or searched:
        tally.wrong.append(f"{sum(fits)} collected, {len(searched)} searched")
    return tally


NARROW = [
    {},
    {"top_k": 1},
    {"top_k": 2, "temperature": 0.7},
    {"top_p": 0.5},
    {"top_p": 0.5, "filter_order": "joint"},
    {"top_p": 0.999, "temperature": 3.0},
    {"min_p": 1.0},
    {"min_p": 1e-6, "top_p": 0.9999999},
]
"""Requests that keep one token, few tokens, or all."""


def bounds():
    """Require log-probabilities and kept masses of at most 0, close to native's, in rows near 0."""
    tally, rng = Tally(), np.random.default_rng(7)
    for size, mode, n in itertools.product(
        (2, 50, 1300), ("raw_logprobs", "temperature_logprobs", "processed_logprobs"), (1, 70)
    ):
        samplers = [
            kind(torch.device("cpu"), Need(logprobs_mode=mode))
            for kind in (TritonGumbelSampler, NativeSampler)
        ]
        params = [SamplingParams(seed=i, logprobs=n, **request) for i, request in enumerate(NARROW)]
        m = SamplingMetadata.from_params(params, positions=range(len(params)))
        uniform, led = (np.zeros((len(params), size), np.float32) for _ in range(2))
        led += rng.choice([0.0, 1e-3, 0.3], (len(params), 1)) * rng.standard_normal(led.shape)
        led[:, 0] += rng.uniform(0, 20, len(params))
        for rows in (uniform, led):
            result, expected = (sampler.sample(torch.from_numpy(rows), m) for sampler in samplers)
            tally.judged += len(rows)
            label = f"V = {size} {mode} N = {n}"
            for name in ("logprobs", "log_kept_mass"):
                one, other = (
                    getattr(output.logprobs if name == "logprobs" else output, name)
                    for output in (result, expected)
                )
                if (one > 0).any() or (other > 0).any():
                    tally.wrong.append(f"{label} {name}: {float(one.max())}, {float(other.max())}")
                if not torch.allclose(one, other, atol=1e-5):
                    tally.wrong.append(f"{label} {name}: {one.tolist()}, not {other.tolist()}")
    return tally


def few_bounds():
    """As :func:`bounds`, fewer rows: filters that drop next to nothing of small and large sets, and one kept token."""
    tally, rng = Tally(), np.random.default_rng(8)
    sampler = TritonGumbelSampler(torch.device("cpu"), Need(logprobs_mode="processed_logprobs"))
    all_kept, nearly_all, one_kept = {"min_p": 1e-30}, {"top_p": 0.9999999}, {"top_k": 1}
    for rows, size, request in (
        (6, 100, all_kept),
        (6, 9000, all_kept),
        (4, 3000, nearly_all),
        (12, 50, one_kept),
    ):
        params = [SamplingParams(seed=i, logprobs=0, **request) for i in range(rows)]
        m = SamplingMetadata.from_params(params, positions=range(rows))
        logits = torch.from_numpy(rng.standard_normal((rows, size)).astype(np.float32) / 2)
        output = sampler.sample(logits, m)
        tally.judged += rows
        for values in (output.logprobs.logprobs, output.log_kept_mass):
            if not (values <= 0).all():
                tally.wrong.append(f"V = {size} {request}: {values.tolist()}")
    return tally
