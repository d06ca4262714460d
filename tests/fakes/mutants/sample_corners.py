"""Bugs of the native sampler in a single dtype, width, layout, value or batch, logprobs and ranks among them."""

from dataclasses import replace

import torch

from mutants.corner_calls import INF, CornerCall, descending_places, sortable
from mutants.corners import (
    WIDE,
    WIDER,
    Corner,
    best_repeated,
    draw,
    gumbel,
    keep,
    kept_mass,
    logprobs,
    noise,
    tokens,
)

PARAMETERS = ("temperature", "top_k", "top_p", "min_p")
TILE_STREAMS = (1, 4, 6)
OTHER_GENERATOR = torch.Generator()


def tiles(index):
    """Patch the noise of tiles by an index of another tile."""
    return gumbel(
        lambda self, at, stream: (
            self,
            index(at) if isinstance(stream, int) and stream in TILE_STREAMS else at,
        )
    )


def no_logprobs(call):
    return not call.shows_logprobs


def draws(call):
    """Select random rows of calls without logprobs."""
    return ~call.greedy & (not call.shows_logprobs)


def pairs(call):
    return call.row // 2 * 2


def least_logit(call):
    """Return the threshold of min-p relative to the maximum, in float32."""
    return call.temperature.unsqueeze(1) * call.min_p.clamp(min=1e-30).log().unsqueeze(1)


def min_p_from_zero(call):
    kept = call.kept_without("min_p") & (call.logits.float() >= least_logit(call))
    return call.keep(torch.where(kept.any(1, keepdim=True), kept, descending_places(call.logits) == 0))


def min_p_of_first_tokens(call):
    x = call.logits.float()
    least = x[:, :WIDE].nan_to_num(nan=-INF).amax(1, keepdim=True) + least_logit(call)
    least = torch.where(call.min_p.unsqueeze(1) > 0, least, -INF)
    return call.keep(call.kept_without("min_p") & (x >= least))


def nucleus_with(call, mass):
    """Keep the nucleus of ``p * mass(weights)``, for weights of the set that top-k and min-p keep."""
    weights = call.y().masked_fill(~call.kept_without("top_p"), -INF).exp()
    p = torch.where(call.has_top_p, call.top_p.double() * mass(weights), 1.0)
    return call.keep(call.with_params(top_p=p).kept())


def is_plain_batch(call):
    facts = call.metadata.facts
    plain = facts.max_top_k == 0 and not facts.any_top_p and not facts.any_min_p
    return plain and not call.shows_logprobs and bool(call.unseeded.all()) and ~call.greedy


def view(call, shape=None, strides=None, shift=0):
    """Read the logits with other strides, or from another element on."""
    x = call.logits
    return call.with_logits(x.as_strided(shape or x.shape, strides or x.stride(), x.storage_offset() + shift))


def dense(column):
    """Read a strided column as if dense."""
    if column is None or column.dim() != 1 or len(column) < 2 or column.stride(0) == 1:
        return column
    return column.as_strided(column.shape, (1,), column.storage_offset())


def first_parameters(metadata):
    """Restore the parameters of the first call with the same metadata."""
    columns = {name: getattr(metadata, name) for name in PARAMETERS}
    first = {name: None if c is None else c.clone() for name, c in columns.items()}
    return replace(metadata, **metadata.memo.setdefault("first_parameters", first))


def int32_positions(metadata):
    positions = metadata.positions
    if positions is None or positions.dtype != torch.int32 or len(positions) <= 2:
        return metadata
    return replace(metadata, positions=positions.roll(1))


def slots_in_7_bits(metadata):
    if metadata.row_index is None:
        return metadata
    return replace(metadata, row_index=metadata.row_index % 128, row_kinds=None)


def first_rows_of_slots(call):
    slots = call.slots.long()
    first = torch.zeros(int(slots.max()) + 1, dtype=torch.int64)
    return call.with_noise_of(first.scatter_reduce(0, slots, call.row, "amin", include_self=False)[slots])


def buffered(call, name, tensor):
    """Copy a tensor into the shared buffer of the shape."""
    buffer = call.memory.setdefault((name, tensor.shape), torch.empty_like(tensor))
    return buffer.copy_(tensor)


def logprobs_buffered(call, output):
    best = output.logprobs
    if best is None:
        return output
    return replace(output, logprobs=replace(best, logprobs=buffered(call, "logprobs", best.logprobs)))


def top_p_of_last_call(call):
    before, call.memory["top_p"] = call.memory.get("top_p"), (call.size, call.metadata.top_p.clone())
    if before is None or before[0] != call.size or len(before[1]) != call.count:
        return call
    return call.with_params(top_p=before[1])


def fresh_seeds(call):
    return call.with_fields(seed=torch.empty_like(call.metadata.seed).random_(-(2**63), None))


def clamped(name="temperature", **limits):
    """Clamp a parameter."""
    return lambda call: call.with_params(**{name: getattr(call, name).clamp(**limits)})


def fixed(**values):
    """Fill columns of parameters with a value."""
    return lambda call: call.with_params(
        **{name: torch.full_like(getattr(call, name), value) for name, value in values.items()}
    )


def k_above(least):
    """Select rows with a top-k above ``least``."""
    return lambda call: (call.top_k > least) & call.has_top_k


def p_above(least):
    """Select rows with a top-p above ``least``."""
    return lambda call: call.has_top_p & (call.top_p > least)


def shared_noise(distance):
    """Give rows without a seed the noise of the row ``distance`` before."""
    return lambda call: call.with_noise_of(call.row % distance)


def noise_of_pairs(call):
    return call.with_noise_of(pairs(call))


def off(*names):
    return lambda call: call.with_params(**dict.fromkeys(names))


def quotient_overflows(call, limit):
    quotient = call.logits.float() / call.temperature.float().unsqueeze(1)
    return call.with_logits(torch.where(quotient > limit, INF, call.logits.float()))


def kept_at_one(call, *without):
    """Return the kept set at T = 1 with some filters off."""
    return call.kept_without("temperature", *without)


def asks_for_more_than(most):
    """Select rows with N above ``most``."""

    def where(call):
        counts = call.metadata.logprobs
        return call.shows_logprobs and (True if counts is None else counts > most)

    return where


def nan_first(call, best):
    if best.token_ids.shape[1] < 2:
        return {}
    nan = call.logits.isnan()
    ids = torch.where(nan.any(1, keepdim=True), nan.int().argmax(1, keepdim=True), best.token_ids[:, 1:2])
    return {"token_ids": torch.cat((best.token_ids[:, :1], ids, best.token_ids[:, 2:]), 1)}


def later_half_on_a_tie(call, ids):
    x, half = sortable(call.logits), call.size // 2
    left, right = x[:, :half].max(1), x[:, half:].max(1)
    token = torch.where(right.values >= left.values, half + right.indices, left.indices)
    return torch.where(x.amax(1) > -INF, token, 0)


def mass_of_first_ids(call, mass):
    y = call.y().masked_fill(~call.kept(), -INF)
    lost = y[:, :WIDE].logsumexp(1) - y.logsumexp(1)
    return mass + torch.where(call.greedy | ~lost.isfinite(), 0.0, lost)


def mass_of_top_k(call, mass):
    """Take the mass relative to the mass after top-k."""
    y = call.y()
    left = y.masked_fill(~call.kept_without("top_p", "min_p"), -INF)
    return mass - (left.logsumexp(1) - y.logsumexp(1))


# fmt: off
DTYPES = (
    draw("bfloat16: y is rounded to bfloat16 before the draw", "near ties", dtype="bfloat16",
         where=no_logprobs, change=lambda call: call.drawn_from(call.y().bfloat16())),
    keep("bfloat16: top-p sees the probabilities at T = 1", "crossed requests", dtype="bfloat16",
         where=lambda call: call.has_top_p & (call.temperature != 1), change=lambda call: call.keep(kept_at_one(call))),
    draw("bfloat16: the noise has 24 bits", "noise precision", dtype="bfloat16", patch=noise(bits=24)),
    draw("float16, rows without a seed: the noise has 16 bits, so that no token 11 below another is drawn in its tile",
         "tails", dtype="float16", unseeded=True, patch=noise(bits=16)),
    draw("float16: x / T is formed in float16 before the maximum is taken off, so that large ones tie at infinity",
         "far NaN and infinities", dtype="float16", where=draws, change=lambda call: quotient_overflows(call, 65504)),
    draw("float32: logits lose the lower 13 bits of their mantissa, as tensor cores do", "near ties", dtype="float32",
         change=lambda call: call.with_logits(
             (call.logits.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32))),
    keep("bfloat16: the mass that top-p counts against is summed in bfloat16, which stalls at 256",
         "crossed logprobs", dtype="bfloat16", where=lambda call: call.has_top_p,
         change=lambda call: nucleus_with(call, lambda weights: (256.0 / weights.sum(1)).clamp(max=1.0))),
)


WIDTHS = (
    draw("V > 65,536: the noise has 20 bits", "noise precision", above=WIDE, patch=noise(bits=20)),
    draw("V > 65,536: the ids behind the last full vector of 8 are never drawn", "last ids", above=WIDE,
         where=lambda call: call.size % 8 > 0, change=lambda call: call.without_ids(call.size // 8 * 8)),
    draw("V > 65,536: a NaN at an id above 65,535 leaves valid True", "far NaN and infinities", above=WIDE,
         change=lambda call: call.without_nan(start=WIDE)),
    draw("V > 131,072: the number of a tile is kept in 7 bits, so that tiles 128 apart share noise", "tails",
         above=WIDER, patch=tiles(lambda index: index % 128)),
    keep("V > 131,072: top-p counts the mass of the first 131,072 ids alone", "crossed requests", above=WIDER,
         where=lambda call: call.has_top_p, change=lambda call: nucleus_with(
             call, lambda weights: (weights[:, :WIDER].sum(1) / weights.sum(1)).clamp(min=1e-9))),
    keep("V > 65,536: min-p is relative to the likeliest of the first 65,536 ids", "crossed requests", above=WIDE,
         where=lambda call: call.min_p > 0, change=min_p_of_first_tokens),
)

VALUES = (
    keep("k > 1024: top-k keeps no more than a table of 1024 candidates, and those tied with the last",
         "crossed requests", sizes=(5003,), where=k_above(1024), change=clamped("top_k", max=1024)),
    keep("k of 64, 128, 256 ...: top-k keeps one token too few, since a tile of candidates is full", "crossed logprobs",
         where=lambda call: (call.top_k >= 64) & (call.top_k.long() & (call.top_k.long() - 1) == 0) & call.has_top_k,
         change=lambda call: call.with_params(top_k=call.top_k - 1)),
    draw("T < 0.01 counts as greedy", "crossed requests", where=lambda call: draws(call) & (call.temperature < 0.01),
         change=fixed(temperature=0)),
    draw("T > 10 counts as 10", "crossed requests", where=lambda call: call.temperature > 10, change=clamped(max=10)),
    keep("Rows of negative logits: the maximum begins at 0, so that min-p is relative to a token that is not there",
         "crossed requests", where=lambda call: (call.min_p > 0) & (sortable(call.logits).amax(1) < 0),
         change=min_p_from_zero),
    draw("float32: x / T is formed before the maximum is taken off, so that quotients above 3e38 tie at infinity",
         "far NaN and infinities", dtype="float32", where=draws,
         change=lambda call: quotient_overflows(call, torch.finfo(torch.float32).max)),
)

FILTERS = (
    keep("float16, all three filters in one row: min-p is left out", "crossed requests", dtype="float16",
         where=lambda call: call.has_top_k & call.has_top_p & (call.min_p > 0), change=off("min_p")),
)

LAYOUTS = (
    draw("bfloat16: a view that begins at an odd element is read from the even one before", "strides", dtype="bfloat16",
         where=lambda call: call.logits.storage_offset() % 2 == 1, change=lambda call: view(call, shift=-1)),
    draw("float16: rows that share their memory share their noise, too", "noise of distant rows", sizes=(5003,),
         dtype="float16", where=lambda call: call.logits.stride(0) == 0 and call.count > 1,
         change=lambda call: call.with_noise_of(torch.zeros_like(call.row))),
    draw("bfloat16: rows whose stride is larger than V + 1024 are read as if they lay side by side", "strides",
         dtype="bfloat16", where=lambda call: call.logits.stride(0) > call.size + 1024,
         change=lambda call: view(call, strides=(call.size, 1))),
    draw("row_index: slots are kept in 7 bits", "crossed requests", metadata=slots_in_7_bits),
    draw("Ready tensors: a temperature that is NaN or negative counts as 1", "ready tensors",
         where=lambda call: call.temperature.isnan() | (call.temperature < 0), change=fixed(temperature=1)),
    draw("Ready tensors: a p of 0 or less counts as off", "ready tensors", where=lambda call: call.top_p <= 0,
         change=off("top_p")),
    draw("Ready tensors: parameters that are every other entry of a buffer are read one behind another",
         "strides",
         metadata=lambda metadata: replace(metadata, **{n: dense(getattr(metadata, n)) for n in PARAMETERS})),
    draw("Ready tensors: positions in int32 are read as int64, so those of rows from 2 on are others", "ready tensors",
         metadata=int32_positions),
)

PATHS = (
    draw("bfloat16, batches without any filter and seed: y is rounded to steps of 1/4", "crossed distributions",
         dtype="bfloat16", unseeded=True, where=is_plain_batch,
         change=lambda call: call.drawn_from((call.y() * 4).round() / 4)),
    draw("bfloat16, B of 2 to 8: the noise has 16 bits", "near ties", dtype="bfloat16",
         where=lambda call: 2 <= call.count <= 8, patch=noise(bits=16)),
    draw("A row that begins 2**31 elements or more behind the first is read from where that wraps to",
         "strides", where=lambda call: call.row * call.logits.stride(0) >= 1 << 31,
         change=lambda call: call.with_logits(
             call.logits[call.row % max((1 << 31) // max(call.logits.stride(0), 1), 1)])),
    draw("A row with a filter and the seed 0 or -1 counts as one without a seed", "seeds at the edges", unseeded=False,
         where=lambda call: ((call.top_k > 0) | call.has_top_p | (call.min_p > 0))
         & ((call.metadata.seed == 0) | (call.metadata.seed == -1)), change=fresh_seeds),
)

BATCHES = (
    draw("bfloat16: rows without a seed 96 apart share their noise", "noise of distant rows", sizes=(5003,),
         unseeded=True, dtype="bfloat16", change=shared_noise(96)),
    draw("B > 64: a row is invalid if row - 64 is", "far NaN and infinities", where=lambda call: call.row >= 64,
         output=lambda call, output: replace(output, valid=output.valid & output.valid[(call.row - 64).clamp(min=0)])),
    draw("top-p of a call of 5 rows or fewer is that of the call before, where V is the same", "crossed requests",
         where=lambda call: call.count <= 5 and call.metadata.top_p is not None, change=top_p_of_last_call),
    draw("Logprobs are returned in a buffer that the next call of the same shape writes to", "outputs outlive calls",
         output=logprobs_buffered),
    draw("valid is returned in a buffer that the next call of the same size writes to", "outputs outlive calls",
         output=lambda call, output: replace(output, valid=buffered(call, "valid", output.valid))),
    draw("Parameters are read at the first call with a batch's metadata, and not again where they change in place",
         "ready tensors", metadata=first_parameters),
    draw("Rows 2i and 2i + 1 without a seed share their noise in calls that show logprobs", "noise of distant rows",
         sizes=(1025, 5003), unseeded=True, where=lambda call: call.shows_logprobs, change=noise_of_pairs),
    draw("Rows of one slot without a seed share their noise", "noise of distant rows", sizes=(1025, 5003),
         unseeded=True, where=lambda call: call.slots is not None, change=first_rows_of_slots),
    draw("V > 1024, rows without a seed: every 32nd id is never drawn", "distribution", above=1024, unseeded=True,
         change=lambda call: call.with_logits(
             call.logits.float().masked_fill(torch.arange(call.size) % 32 == 31, -INF))),
    draw("A row without a seed behind a row with NaN is drawn at T = 2", "distribution", unseeded=True,
         where=lambda call: ~call.greedy & call.logits.isnan().any(1).roll(1), change=clamped(min=2)),
    draw("Rows without a seed take their noise from another generator than torch's", "torch.manual_seed", unseeded=True,
         change=lambda call: call.with_fields(seed=torch.randint(
             2**63 - 1, call.metadata.seed.shape, generator=OTHER_GENERATOR))),
    draw("Rows without a seed: a tile has the noise of the token of its number", "independent draws", unseeded=True,
         patch=noise(stream=lambda stream: 0 if isinstance(stream, int) and stream == 1 else stream)),
    draw("B = 1: a row without a seed has the same noise in every call", "independent draws", unseeded=True,
         where=lambda call: call.count == 1,
         change=lambda call: call.with_fields(seed=torch.zeros_like(call.metadata.seed))),
)

PAIRS = (
    keep("float16 and no seed: top-p drops the tokens that cross p, where others are left", "crossed distributions",
         dtype="float16", unseeded=True, where=lambda call: call.has_top_p, change=CornerCall.without_crossing),
)

CROSSED = (
    draw("bfloat16, V > 65,536, rows without a seed: the noise has 16 bits", "", dtype="bfloat16", above=WIDE,
         unseeded=True, patch=noise(bits=16),
         reason="16 bits show in one of thousands of draws, too many of a wide row"),
    keep("bfloat16, no top-k beside rows with one: k counts as 4096", "crossed requests", sizes=(65_543,),
         dtype="bfloat16", where=lambda call: (call.top_k <= 0) & call.has_top_k.any() & (call.size > 4096),
         change=fixed(top_k=4096)),
    draw("float16 and fp64 noise: the noise has the 32 bits of fp32", "noise precision", dtype="float16", noise="fp64",
         patch=noise(bits=32)),
    draw("bfloat16, V <= 2, rows without a seed: token 0 is drawn where both are alike", "crossed distributions",
         dtype="bfloat16", unseeded=True, where=lambda call: call.size <= 2,
         output=tokens(lambda call, ids: torch.where((call.logits[:, :1] == call.logits).all(1), 0, ids))),
)

SINGLE = (
    draw("V > 65,536: of two greedy maxima in different halves of the vocabulary the last one wins", "last ids",
         above=WIDE, where=lambda call: call.greedy, output=tokens(later_half_on_a_tie)),
    draw("V > 65,536: log_kept_mass leaves out what is kept above id 65,535", "crossed logprobs", above=WIDE,
         output=kept_mass(mass_of_first_ids)),
    draw("N > 20: behind the 20 best stands the 20th again", "crossed logprobs", where=asks_for_more_than(20),
         output=best_repeated(20)),
    draw("A NaN is the first of the N best, as torch.topk has it", "far NaN and infinities",
         output=logprobs(nan_first)),
)

CROSSED_LOGPROBS = (
    draw("float16, order joint: log_kept_mass is relative to what top-k leaves", "crossed logprobs", dtype="float16",
         where=lambda call: call.joint & call.has_top_k & ~call.greedy, output=kept_mass(mass_of_top_k)),
)

# fmt: on

MUTANTS: dict[str, tuple[Corner, ...]] = {
    "Draws in one dtype": DTYPES,
    "Draws in some widths": WIDTHS,
    "Draws at some values of parameters or logits": VALUES,
    "Several filters, or the middle of their ranges": FILTERS,
    "Layouts of logits and parameters": LAYOUTS,
    "Paths of uniform, small or large batches": PATHS,
    "Rows of a batch, and calls one after another": BATCHES,
    "Two corners of a draw": PAIRS,
    "Further crossings of a draw": CROSSED,
    "Greedy rows, ranks and logprobs": SINGLE,
    "Crossings of greedy rows, ranks and logprobs": CROSSED_LOGPROBS,
}
