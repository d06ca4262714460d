"""Verifications by triton-gumbel on CPU tensors, beside native's, in Triton's interpreter."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from interval_requests import interval_logits, interval_requests
from tokendraw import Drafts, Need, SamplingMetadata, SamplingParams, speculative
from tokendraw.row_parameters import RowParameters
from tokendraw_native.ceilings import decide_xtc
from tokendraw_native.distributions import ProcessedLogits
from tokendraw_native.row_stats import row_stats
from tokendraw_native.sampler import NativeSampler
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from verifying import Batch, gaussian, native, row_metadata, softmax, verify

NAN, INF = float("nan"), float("inf")
PLAIN = SamplingParams()
MODES = ("processed_logprobs", "raw_logprobs", "temperature_logprobs", "processed_logits", "raw_logits")


def build(gumbel_dtype="fp32", logprobs_mode="raw_logprobs", processors=1):
    """Build both samplers, with ``processors`` programs for a request."""
    need = Need(gumbel_dtype=gumbel_dtype, logprobs_mode=logprobs_mode)
    sampler = TritonGumbelSampler(torch.device("cpu"), need)
    sampler._target = sampler._target._replace(processors=processors)
    return sampler, native("cpu", gumbel_dtype, logprobs_mode)


def tensors(output):
    best = output.logprobs
    rest = [] if best is None else [best.token_ids, best.ranks]
    return [output.token_ids, output.num_accepted, output.valid, *rest]


def differences(samplers, call):
    """Return the differences between the two outputs of a call."""
    result, expected = (call(sampler) for sampler in samplers)
    wrong = [
        [mine.tolist(), reference.tolist()]
        for mine, reference in zip(tensors(result), tensors(expected), strict=True)
        if mine.dtype != reference.dtype or not torch.equal(mine, reference)
    ]
    for name in ("logprobs", "given_logprobs") if result.logprobs is not None else ():
        found, needed = getattr(result.logprobs, name), getattr(expected.logprobs, name)
        if needed is not None and not torch.allclose(found, needed, atol=1e-5):
            wrong.append([name, (found - needed).tolist()])
    for name in ("log_kept_mass", "threshold", "ceiling"):
        found, needed = getattr(result, name), getattr(expected, name)
        if (found is None) != (needed is None) or (
            found is not None and not torch.allclose(found, needed, atol=1e-5, equal_nan=True)
        ):
            wrong.append([name, str(found), str(needed)])
    return wrong


def faults(cases):
    """Return the names of all cases, and the differing cases."""
    wrong = {
        name: result for name, (samplers, call) in cases.items() if (result := differences(samplers, call))
    }
    return {"judged": list(cases), "wrong": wrong}


def batch_of(requests, size, seed, *, params=None, scale=1.0, unlikely=False):
    """A batch; if ``unlikely``, every request has a draft, and most often the first of them is rejected."""
    batch = Batch(requests, size, seed=seed)
    for i, ids in enumerate(batch.lists if unlikely else []):
        if not ids:
            ids.append(0)
            batch.counts[i] = 1
            batch.target[i] = np.repeat(batch.target[i], 2, 0)
            batch.draft[i] = batch.target[i][:1] + np.float32(0.5) * gaussian(1, size, seed)
        ids[0] = (7919 * (i + 1)) % size
    if params is not None:
        batch.params = [replace(params, seed=own.seed) for own in batch.params]
    for rows in (batch.target, batch.draft):
        rows[:] = [x * np.float32(scale) for x in rows]
    return batch


def batches(most_usual="rejection"):
    """Verify requests of every kind in one batch, by kind of drafts, and alone; with many kept tokens, and few."""
    cases = {}

    def case(name, batch, kind, samplers=None, mode=most_usual):
        cases[name] = (samplers or build(), lambda sampler: batch.verify(sampler, kind, mode=mode))

    every = ("logits", "probs", None)
    for size, kinds in ((1, every), (9, every), (100, every), (1024, every[1:2]), (1025, every[:1])):
        batch = batch_of(5 if size > 1 else 3, size, seed=size)
        for kind in kinds:
            case(f"every kind of request, V = {size}, {kind}", batch, kind)
    tall = batch_of(3, 8193, seed=8193, unlikely=True)
    case("many tiles", tall, "logits")
    for kind in ("logits", "probs", None):
        case(f"fp64 noise, {kind}", batch_of(3, 1100, seed=3, unlikely=True), kind, build("fp64"))
        plain = batch_of(3, 2500, seed=5, params=PLAIN, unlikely=True)
        case(f"no filters, {kind}", plain, kind, build(processors=2))
    case("coupled", batch_of(5, 1100, seed=6), "logits", mode="coupled")
    case("coupled, fp64 noise", batch_of(5, 300, seed=7), None, build("fp64"), mode="coupled")
    case("greedy", batch_of(5, 300, seed=8, params=SamplingParams(temperature=0.0)), "logits")
    floors = batch_of(5, 1100, seed=11, unlikely=True)
    rules = ({"top_n_sigma": 1.5}, {}, {"eta_cutoff": 0.02, "p_less": 1.0}, {"epsilon_cutoff": 0.001}, {})
    floors.params = [replace(own, filters=rule) for own, rule in zip(floors.params, rules, strict=True)]
    for kind in every:
        case(f"filters from moments, {kind}", floors, kind)
    some = SamplingParams(top_k=300)
    few = batch_of(2, 1000, seed=9, params=some, scale=0.2, unlikely=True)
    for kind in ("logits", None):
        case(f"hundreds of tokens kept, {kind}", few, kind)
    many = SamplingParams(temperature=0.7, top_p=0.9)
    wide = batch_of(1, 4099, seed=10, params=many, scale=0.02, unlikely=True)
    case("thousands of tokens kept", wide, "logits", build(processors=3))
    case("one request", batch_of(1, 5000, seed=12, params=PLAIN), "logits", build(processors=2))
    return faults(cases)


def intervals(mode):
    """Verify drafts of rows with XTC and ``temperature_last``, alone and beside all other filters.

    Most drafts are drawn as ``draft`` draws them, so that many are accepted, in blocks too; some are any token.
    """
    rng, cases, rows = np.random.default_rng(13), {}, 0
    accepted, recovered = 0, 0
    for number, (dtype, kind) in enumerate(
        (dtype, kind)
        for dtype in (torch.float32, torch.bfloat16)
        for kind in (("logits", "probs", None) if mode != "coupled" else ("logits", None))
    ):
        for is_described in (False, True):
            size = 5003 if is_described else 3000
            counts = [int(count) for count in rng.integers(0, 4, 16)]
            requests = interval_requests(rng, len(counts), is_described=is_described)
            kept = np.concatenate([np.arange(count + 1) < count for count in counts])
            logits = interval_logits(rng, np.repeat(np.arange(len(counts)), np.add(counts, 1)), size)
            nearby = logits[kept] + rng.normal(0, 0.2, (int(kept.sum()), size)).astype(np.float32)
            target, draft = (torch.from_numpy(each).to(dtype) for each in (logits, nearby))
            offsets = speculative.cu_num_logits(torch.tensor(counts))
            empty = Drafts.from_counts(torch.zeros(len(draft), dtype=torch.int64), counts)
            metadata = row_metadata(empty, requests, [int(first) for first in rng.integers(0, 1000, 16)])
            rows += len(target)
            of_drafts = replace(
                metadata,
                row_index=metadata.row_index[kept],
                positions=metadata.positions[kept],
                row_kinds=None,
            )
            ids = native("cpu").sample(draft, of_drafts, draft=True).token_ids
            if kind is None or mode == "coupled":
                drawn = native("cpu").sample(target, metadata).token_ids[kept]
                ids = torch.where(torch.from_numpy(rng.random(len(ids))) < 0.7, drawn, ids)
            any_ids = torch.from_numpy(rng.integers(-1, size, len(ids)))
            ids = torch.where(torch.from_numpy(rng.random(len(ids))) < 0.1, any_ids, ids)
            q = {}
            if kind == "logits":
                q = {"draft_logits": draft}
            elif kind == "probs":
                params = decide_xtc(RowParameters.of(of_drafts, len(draft), draft.device), None, "fp32")
                stats = row_stats(draft, params, masses=False)
                q = {
                    "draft_probs": ProcessedLogits(draft, stats, params)
                    .probs(torch.arange(len(draft)))
                    .float()
                }
            drafts = Drafts.from_counts(ids, counts, **q)
            assert torch.equal(drafts.cu_num_logits, offsets)
            logprobs_mode = MODES[number % len(MODES)] if is_described else "raw_logprobs"
            need = Need(
                logprobs_mode=logprobs_mode,
                threshold=is_described,
                gumbel_dtype="fp64" if number == 1 and not is_described else "fp32",
            )
            mine = TritonGumbelSampler(torch.device("cpu"), need)
            mine._target = mine._target._replace(processors=1 + 3 * (number % 2))
            samplers = mine, NativeSampler(torch.device("cpu"), need)
            call = lambda sampler, args=(target, drafts, metadata): sampler.verify(*args, mode=mode)  # noqa: E731
            name = f"{dtype}, {kind}, {logprobs_mode if is_described else None}"
            cases[name] = samplers, call
            numbers = call(samplers[1]).num_accepted
            accepted += int(numbers.sum())
            recovered += int((numbers < torch.tensor(counts)).sum())
    return faults(cases) | {"rows": rows, "accepted": accepted, "recovered": recovered}


def layouts():
    """Verify the same requests in several layouts."""
    samplers, cases = build(), {}
    batch = batch_of(3, 1030, seed=21)
    counts = batch.counts
    target = torch.from_numpy(np.concatenate(batch.target))
    logits = torch.from_numpy(np.concatenate(batch.draft))
    metadata = row_metadata(Drafts.from_lists(batch.lists), batch.params, batch.first)
    padded = torch.full((3, 5), -1)
    for ids, row in zip(batch.lists, padded, strict=True):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.int64)
    ragged = torch.tensor([token for ids in batch.lists for token in ids])
    inside = torch.where((ragged >= 0) & (ragged < 1030), ragged, -1)
    offsets = speculative.cu_num_logits(torch.tensor(counts))

    def case(name, drafts, target=target, metadata=metadata):
        cases[name] = (samplers, lambda sampler: sampler.verify(target, drafts, metadata))

    case("padded ids", Drafts.from_counts(padded, counts, draft_logits=logits))
    case("ids with every other element", Drafts.from_counts(torch.stack((ragged, ragged), 1)[:, 0], counts))
    narrow = {"draft_token_ids": inside.to(torch.int32), "cu_num_logits": offsets.to(torch.int32)}
    case("small integers, no numbers on the host", Drafts(**narrow, draft_logits=logits, max_drafts=7))
    half = {"draft_logits": logits.to(torch.bfloat16)}
    case("drafts of another dtype", Drafts.from_counts(ragged, counts, **half))
    case("bfloat16", Drafts.from_counts(ragged, counts, **half), target.to(torch.bfloat16))
    every_other = {"draft_logits": logits.repeat_interleave(2, 1)[:, ::2]}
    strided = target.repeat_interleave(2, 0)[::2]
    case("strides", Drafts.from_counts(ragged, counts, **every_other), strided)
    for dtype in (torch.float64, torch.bfloat16):
        probs = torch.softmax(logits.double(), -1).to(dtype)
        case(f"probabilities of {dtype}", Drafts.from_counts(ragged, counts, draft_probs=probs))
    shared = {"draft_probs": torch.full((1, 1030), 1 / 1030).expand(len(logits), 1030)}
    case("one row of probabilities", Drafts.from_counts(ragged, counts, **shared))
    # A graph that is captured for more rows than there are: those behind the last request are nobody's.
    more = {"row_index": torch.cat((metadata.row_index, torch.tensor([2, 2]))), "row_kinds": None}
    more["positions"] = torch.cat((metadata.positions, torch.tensor([0, 0])))
    behind = Drafts(
        draft_token_ids=torch.cat((ragged, torch.tensor([3, 3]))),
        cu_num_logits=offsets,
        draft_logits=torch.cat((logits, torch.full((2, 1030), NAN))),
        max_drafts=4,
    )
    beyond = torch.cat((target, torch.full((2, 1030), NAN)))
    case("rows of nobody", behind, beyond, replace(metadata, **more))
    for mode, most in (("raw_logprobs", 2), ("processed_logprobs", 2), ("raw_logprobs", 200)):
        described = [replace(params, logprobs=i % 3 * most // 2) for i, params in enumerate(batch.params)]
        own = row_metadata(Drafts.from_lists(batch.lists), described, batch.first)
        drafts = Drafts.from_counts(ragged, counts, draft_logits=logits)
        call = lambda sampler, drafts=drafts, own=own: sampler.verify(target, drafts, own)  # noqa: E731
        cases[f"with {mode}, {most}"] = (build(logprobs_mode=mode), call)
        coupled = lambda sampler, drafts=drafts, own=own: sampler.verify(  # noqa: E731
            target, drafts, own, mode="coupled"
        )
        cases[f"with {mode}, {most}, coupled"] = (build(logprobs_mode=mode), coupled)

    def unseeded(sampler):
        torch.manual_seed(4)
        return sampler.verify(target, Drafts.from_counts(ragged, counts), SamplingMetadata())

    cases["without seeds"] = (samplers, unseeded)
    return faults(cases)


def edges(most_usual="rejection"):
    """Verify placeholders, rows of special values, and empty residuals."""
    samplers, cases = build(), {}

    def case(name, target, lists, params=PLAIN, mode=most_usual, samplers=samplers, **q):
        if isinstance(params, SamplingParams):
            params = [replace(params, seed=i) for i in range(len(lists))]
        cases[name] = (samplers, lambda sampler: verify(sampler, target, lists, params, mode=mode, **q))

    kinds = [PLAIN, SamplingParams(top_k=5), SamplingParams(top_p=0.6), SamplingParams(temperature=0.0)]
    kinds = [replace(kind, seed=i) for i, kind in enumerate(kinds)]
    for mode in (most_usual, "coupled"):
        case(f"no drafts, {mode}", gaussian(4), [[]] * 4, kinds, mode)
        for size in (7, 3000):
            nothing = np.empty((0, size), np.float32)
            case(f"no requests, {mode}, V = {size}", nothing, [], [], mode)
            case(f"no requests but logits, {mode}, V = {size}", nothing, [], [], mode, draft_logits=nothing)
    described = build(logprobs_mode="processed_logprobs")
    asked = [replace(kind, logprobs=1) for kind in kinds]
    case("no drafts, described", gaussian(4), [[]] * 4, asked, samplers=described)
    counts = [3, 0, 1, 20]
    sure = gaussian(28)
    best_ids = np.random.default_rng(1).integers(0, 300, 28)
    sure[np.arange(28), best_ids] = 40.0
    lists = [best_ids[first : first + n].tolist() for first, n in zip((0, 4, 5, 7), counts, strict=True)]
    rows = np.concatenate([sure[first : first + n] for first, n in zip((0, 4, 5, 7), counts, strict=True)])
    case("very different lengths", sure, lists, kinds, draft_logits=rows)
    stopped = [*lists[:3], [*lists[3][:11], -1, *lists[3][12:]]]
    case("very different lengths, a placeholder", sure, stopped, kinds, draft_probs=softmax(rows))
    for outside in (-1, 300, -(2**63)):
        q = {"draft_logits": np.full((8, 300), NAN, np.float32)} if outside == -1 else {}
        case(f"id {outside}", gaussian(12), [[outside, 5]] * 4, kinds, **q)
    # A row of logits of each kind in the place of the target's and the draft's.
    special = gaussian(6)
    special[0], special[1], special[2, ::3], special[3, [4, 9, 22]] = NAN, -INF, NAN, INF
    special[4, 1:], special[5] = -INF, 3e38
    filters = SamplingParams(top_k=50, top_p=0.95)
    for params in (PLAIN, filters):
        kind_name = "plain" if params is PLAIN else "filtered"
        for token in (0, 9):
            case(
                f"special targets, {kind_name}, draft {token}",
                np.repeat(special, 2, 0),
                [[token]] * 6,
                params,
            )
        q = {"draft_logits": special}
        case(f"special drafts, {kind_name}", gaussian(12), [[9]] * 6, params, **q)
        both = np.repeat(special, 2, 0)
        case(f"the same special rows, {kind_name}", both, [[0]] * 6, params, draft_logits=special)
    for value in (NAN, 0.0, -0.5, INF, 8.0):
        probs = np.full((3, 300), value, np.float32)
        case(f"probabilities of {value}", gaussian(6), [[1], [2], [-1]], draft_probs=probs)
    probs = softmax(gaussian(3)).astype(np.float32)
    probs[0, 299], probs[1, 0], probs[2, 7] = NAN, -1e-3, INF
    case("one bad probability", gaussian(6), [[1], [2], [7]], draft_probs=probs)
    # q is all on the draft, as p: nothing is rejected, and nothing would be left.
    one_hot = np.full((16, 40), -INF, np.float32)
    one_hot[np.arange(16), np.arange(16)] = 0.0
    for name, q in (("chosen", {}), ("probs", {"draft_probs": softmax(one_hot[::2].copy())})):
        case(f"sure of the draft, {name}", one_hot, [[2 * i] for i in range(8)], **q)
    # p and q are all on one token, in float32 p nearly: nothing is left of a residual, and the share of p has to be 1.
    peaks = gaussian(24, 50) + np.float32(3)
    best = peaks.argmax(-1).reshape(8, 3)
    sure_q = np.eye(50)[best[:, :2].reshape(-1)]
    lists = [[int(first), int(second + 1) % 50] for first, second, _ in best]
    case("one token kept", peaks, lists, SamplingParams(top_k=1), draft_probs=sure_q)
    case(
        "one token above min-p", peaks, lists, SamplingParams(temperature=150, min_p=1.0), draft_probs=sure_q
    )
    result = faults(cases)
    equal = gaussian(24, 50)
    ids = [[int(row.argmax())] for row in equal[::2]]
    for params in (PLAIN, SamplingParams(temperature=0.7, top_k=5), SamplingParams(top_p=0.9, min_p=0.01)):
        output = verify(samplers[0], equal, ids, replace(params, seed=1), draft_logits=equal[::2].copy())
        if output.num_accepted.tolist() != [1] * 12:
            result["wrong"][f"equal distributions, {params}"] = output.num_accepted.tolist()
    return result


@contextmanager
def dirty():
    """Fill allocated memory with garbage."""
    own = torch.empty

    def filled(*size, **how):
        tensor = own(*size, **how)
        return tensor.fill_(0xA7 if tensor.dtype == torch.uint8 else 1) if tensor.numel() else tensor

    torch.empty = filled
    try:
        yield
    finally:
        torch.empty = own


def again():
    """Verify the same requests from dirty buffers, alone, by several programs, and in reverse order."""
    wrong = {}
    for name, batch in {
        "filtered": batch_of(2, 1500, seed=31, unlikely=True),
        "plain": batch_of(2, 1500, seed=32, params=PLAIN, unlikely=True),
    }.items():
        for kind in ("logits", "probs"):
            expected = batch.verify(build()[1], kind)
            everything = range(len(batch.lists))
            with dirty():
                sampler = build(processors=2)[0]
                at_once = batch.verify(sampler, kind)
                backwards = batch.verify(sampler, kind, requests=everything[::-1])
                alone = batch.verify(sampler, kind, requests=[1])
            fine = [torch.equal(*pair) for pair in zip(tensors(at_once), tensors(expected), strict=True)]
            counts = expected.num_accepted
            for request, count in enumerate(counts.tolist()):
                tokens = expected.token_ids[request, : count + 1]
                fine.append(torch.equal(backwards.token_ids[-1 - request, : count + 1], tokens))
            fine.append(
                torch.equal(alone.token_ids[0, : counts[1] + 1], expected.token_ids[1, : counts[1] + 1])
            )
            if not all(fine):
                wrong[f"{name}, {kind}"] = fine
    return {"wrong": wrong}


def drafts():
    """Tokens of ``draft``, beside native's."""
    wrong = {}
    for gumbel_dtype in ("fp32", "fp64"):
        for name, params in {
            "plain": PLAIN,
            **({"wide": SamplingParams(top_p=0.9)} if gumbel_dtype == "fp32" else {}),
            "filtered": SamplingParams(top_k=40, top_p=0.9),
            "greedy": SamplingParams(temperature=0.0),
        }.items():
            logits = torch.from_numpy(gaussian(3, 2500) * np.float32(0.2))
            metadata = SamplingMetadata.from_params(
                [replace(params, seed=i) for i in range(3)], positions=range(3)
            )
            mine, reference = build(gumbel_dtype)
            result, expected = (sampler.sample(logits, metadata, draft=True) for sampler in (mine, reference))
            plain = mine.sample(logits, metadata).token_ids.tolist()
            if result.token_ids.tolist() != expected.token_ids.tolist() or not result.valid.all():
                wrong[f"{name}, {gumbel_dtype}"] = [result.token_ids.tolist(), expected.token_ids.tolist()]
            if params.temperature and result.token_ids.tolist() == plain:
                wrong[f"{name}, {gumbel_dtype}: shared noise"] = plain
    return {"wrong": wrong}
