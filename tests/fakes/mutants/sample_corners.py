"""Bugs of the native sampler in a single dtype, width, layout, value or batch."""

from dataclasses import replace

import torch

from mutants.corner_calls import INF, CornerCall, descending_places, sortable
from mutants.corners import WIDE, WIDER, Corner, draw, gumbel, keep, noise, tokens
from tokendraw import philox

PARAMETERS = ("temperature", "top_k", "top_p", "min_p")
ZEROS = tokens(lambda call, ids: torch.zeros_like(ids))
TILE_STREAMS = (1, 4, 6)
OTHER_GENERATOR = torch.Generator()


def last_of_ties(call, ids=None):
    """Return the highest id of the maximum of each row."""
    x = sortable(call.logits)
    return torch.where(x.amax(1) > -INF, call.size - 1 - x.flip(1).argmax(1), 0)


LAST_OF_TIES = tokens(last_of_ties)


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


def min_p_in_half(call):
    x = call.logits.double()
    top = sortable(call.logits).double().amax(1, keepdim=True)
    least = top + (call.temperature.double() * call.min_p.double().log()).unsqueeze(1)
    return call.keep(call.kept_without("min_p") & (x >= least.half().double()))


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


def ties_behind_k(call):
    k = call.top_k.unsqueeze(1)
    behind = (descending_places(call.logits) > k) & (k > 0) & ~call.logits.isnan()
    return call.with_logits(call.logits.masked_fill(behind, -INF))


def k_is_above_ties(call):
    """Select rows of batches with top-k throughout, where the nucleus ends above the k-th token."""
    facts = call.metadata.facts
    is_known = facts.all_top_k and not call.shows_logprobs and not facts.any_joint
    kept = ties_behind_k(call).kept() & (descending_places(call.logits) >= call.top_k.unsqueeze(1) - 1)
    return is_known & (call.top_k > 0) & call.has_top_p & ~kept.any(1)


def is_plain_batch(call):
    facts = call.metadata.facts
    plain = facts.max_top_k == 0 and not facts.any_top_p and not facts.any_min_p
    return plain and not call.shows_logprobs and bool(call.unseeded.all()) and ~call.greedy


def padding_read(call):
    """Read the element behind the last id where V is odd and the rows of a buffer are wider."""
    x = call.logits
    if not x.stride(0) > call.size or call.size % 2 == 0:
        return call
    behind = x.as_strided((call.count, 1), x.stride(), x.storage_offset() + call.size).float()
    changed = x.float().clone()
    best = changed.nan_to_num(nan=-INF).amax(1, keepdim=True)
    changed[:, -1:] = torch.where(behind > best, behind, changed[:, -1:])
    return call.with_logits(changed)


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


def valid_of_last_call(call, output):
    before, call.memory["valid"] = call.memory.get("valid"), output.valid
    if before is None or len(before) != len(output.valid) or len(before) < 2:
        return output
    return replace(output, valid=output.valid | before)


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


def modulo(period, *names):
    """Give each row the parameters ``names`` of row ``index % period``."""
    return lambda call: call.with_params_of(call.row % period, *names)


def off(*names):
    return lambda call: call.with_params(**dict.fromkeys(names))


def quotient_overflows(call, limit):
    quotient = call.logits.float() / call.temperature.float().unsqueeze(1)
    return call.with_logits(torch.where(quotient > limit, INF, call.logits.float()))


def infinite(call):
    """Select logits of +inf."""
    return call.logits.float() == INF


def kept_at_one(call, *without):
    """Return the kept set at T = 1 with some filters off."""
    return call.kept_without("temperature", *without)


def negative_zeros_lower(call):
    x = call.logits.float()
    return call.with_logits(torch.where((x == 0) & x.signbit(), -1e-30, x))


# fmt: off
DTYPES = (
    draw("bfloat16: y is rounded to bfloat16 before the draw", "near ties", dtype="bfloat16",
         where=no_logprobs, change=lambda call: call.drawn_from(call.y().bfloat16())),
    keep("bfloat16: top-p sees the probabilities at T = 1", "crossed requests", dtype="bfloat16",
         where=lambda call: call.has_top_p & (call.temperature != 1), change=lambda call: call.keep(kept_at_one(call))),
    keep("float16: min-p sees the probabilities at T = 1", "crossed requests", dtype="float16",
         where=lambda call: (call.min_p > 0) & (call.temperature != 1),
         change=lambda call: call.keep(call.kept_without("min_p") & kept_at_one(call, "top_k", "top_p"))),
    draw("bfloat16: the noise has 24 bits", "noise precision", dtype="bfloat16", patch=noise(bits=24)),
    draw("float16, rows without a seed: the noise has 16 bits, so that no token 11 below another is drawn in its tile",
         "tails", dtype="float16", unseeded=True, patch=noise(bits=16)),
    keep("bfloat16: log(min_p) is rounded to bfloat16", "crossed requests", dtype="bfloat16",
         where=lambda call: call.min_p > 0,
         change=lambda call: call.with_params(min_p=call.min_p.double().log().bfloat16().double().exp())),
    keep("bfloat16: p is rounded to bfloat16, so that 0.999 is off", "crossed logprobs", dtype="bfloat16",
         where=lambda call: call.has_top_p, change=lambda call: call.with_params(top_p=call.top_p.bfloat16().double())),
    draw("bfloat16: the temperature is rounded to bfloat16", "near ties", dtype="bfloat16",
         change=lambda call: call.with_params(temperature=call.temperature.bfloat16().double())),
    draw("float16: x / T is formed in float16 before the maximum is taken off, so that large ones tie at infinity",
         "far NaN and infinities", dtype="float16", where=draws, change=lambda call: quotient_overflows(call, 65504)),
    draw("float16: -inf is loaded as -65504, so that a row of nothing draws among all tokens, and is valid",
         "far NaN and infinities", dtype="float16", where=lambda call: call.logits.amax(1) == -INF,
         change=lambda call: call.with_logits(call.logits.float().clamp(min=-65504.0))),
    keep("float16: top-k orders bit patterns, by which -0.0 lies below 0.0", "crossed logprobs", dtype="float16",
         where=lambda call: call.top_k > 0, change=lambda call: call.keep(negative_zeros_lower(call).kept())),
    draw("float16: subnormal logits are flushed to zero", "crossed requests", dtype="float16",
         change=lambda call: call.with_logits(
             torch.where(call.logits.float().abs() < 2.0**-14, 0.0, call.logits.float()))),
    draw("bfloat16: a NaN with its sign bit set is the least of all keys, and leaves valid True",
         "far NaN and infinities", dtype="bfloat16", change=lambda call: call.with_logits(torch.where(
             call.logits.isnan() & (call.logits.view(torch.int16) < 0), -INF, call.logits.float()))),
    draw("float32: logits lose the lower 13 bits of their mantissa, as tensor cores do", "near ties", dtype="float32",
         change=lambda call: call.with_logits(
             (call.logits.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32))),
    keep("bfloat16: the mass that top-p counts against is summed in bfloat16, which stalls at 256",
         "crossed logprobs", dtype="bfloat16", where=lambda call: call.has_top_p,
         change=lambda call: nucleus_with(call, lambda weights: (256.0 / weights.sum(1)).clamp(max=1.0))),
)


WIDTHS = (
    keep("bfloat16, V > 65,536: top-k keeps exactly k, the lowest ids of those that tie", "crossed requests",
         dtype="bfloat16", above=WIDE, where=lambda call: call.has_top_k, change=CornerCall.exact_k),
    draw("V > 65,536: the noise has 20 bits", "noise precision", above=WIDE, patch=noise(bits=20)),
    draw("V > 65,536: the ids behind the last full vector of 8 are never drawn", "last ids", above=WIDE,
         where=lambda call: call.size % 8 > 0, change=lambda call: call.without_ids(call.size // 8 * 8)),
    draw("bfloat16, V > 65,536 and odd: the last id is never drawn", "last ids", dtype="bfloat16", above=WIDE,
         where=lambda call: call.size % 2 > 0, change=lambda call: call.without_ids(-1)),
    draw("V > 65,536 and a multiple of 1024: the last tile is never drawn from", "last ids", above=WIDE,
         where=lambda call: call.size % 1024 == 0, change=lambda call: call.without_ids(-1024)),
    draw("V = 65,536 alone: V is kept in 16 bits, so that nothing is drawn but token 0", "last ids", above=WIDE - 1,
         where=lambda call: call.size == WIDE, output=ZEROS),
    draw("V > 65,536: a NaN at an id above 65,535 leaves valid True", "far NaN and infinities", above=WIDE,
         change=lambda call: call.without_nan(start=WIDE)),
    draw("V > 131,072: the number of a tile is kept in 7 bits, so that tiles 128 apart share noise", "tails",
         above=WIDER, patch=tiles(lambda index: index % 128)),
    draw("V > 131,072, rows without a seed: tiles 128 apart share noise", "tails", above=WIDER, unseeded=True,
         patch=tiles(lambda index: index % 128)),
    keep("V > 131,072: top-p counts the mass of the first 131,072 ids alone", "crossed requests", above=WIDER,
         where=lambda call: call.has_top_p, change=lambda call: nucleus_with(
             call, lambda weights: (weights[:, :WIDER].sum(1) / weights.sum(1)).clamp(min=1e-9))),
    keep("V > 65,536: min-p is relative to the likeliest of the first 65,536 ids", "crossed requests", above=WIDE,
         where=lambda call: call.min_p > 0, change=min_p_of_first_tokens),
    draw("V > 131,072: +inf at an id above 131,071 counts as the largest finite number", "far NaN and infinities",
         above=WIDER, change=lambda call: call.with_logits(torch.cat((call.logits[:, :WIDER].float(),
         call.logits[:, WIDER:].float().clamp(max=torch.finfo(torch.float32).max)), 1))),
    draw("float16, V of 33 to 63: the ids from 32 on are never drawn", "last ids", dtype="float16",
         where=lambda call: 32 < call.size < 64, change=lambda call: call.without_ids(32)),
)

VALUES = (
    keep("k > 1024: top-k keeps no more than a table of 1024 candidates, and those tied with the last",
         "crossed requests", sizes=(5003,), where=k_above(1024), change=clamped("top_k", max=1024)),
    keep("k > 2048: top-k is off", "crossed requests", sizes=(5003,), where=k_above(2048), change=off("top_k")),
    keep("k = V - 1: top-k is off", "crossed requests",
         where=lambda call: (call.top_k == call.size - 1) & (call.top_k > 0), change=off("top_k")),
    keep("k of 64, 128, 256 ...: top-k keeps one token too few, since a tile of candidates is full", "crossed logprobs",
         where=lambda call: (call.top_k >= 64) & (call.top_k.long() & (call.top_k.long() - 1) == 0) & call.has_top_k,
         change=lambda call: call.with_params(top_k=call.top_k - 1)),
    keep("Seeded rows, p >= 0.999: top-p is off", "crossed logprobs", unseeded=False,
         where=p_above(0.99899), change=off("top_p")),
    keep("Rows without a seed, p >= 0.999: top-p is off", "crossed logprobs", unseeded=True,
         where=p_above(0.99899), change=off("top_p")),
    keep("p < 0.001: only the first of the likeliest tokens is kept, its ties are dropped", "crossed requests",
         where=lambda call: call.top_p < 0.001, change=lambda call: call.keep(descending_places(call.logits) == 0)),
    draw("T < 0.01 counts as greedy", "crossed requests", where=lambda call: draws(call) & (call.temperature < 0.01),
         change=fixed(temperature=0)),
    draw("T < 0.00001 counts as greedy", "crossed requests", where=lambda call: draws(call) & (call.temperature < 1e-5),
         change=fixed(temperature=0)),
    draw("T > 10 counts as 10", "crossed requests", where=lambda call: call.temperature > 10, change=clamped(max=10)),
    draw("T > 100 counts as 100", "crossed requests", where=lambda call: call.temperature > 100,
         change=clamped(max=100)),
    keep("min_p < 0.00005: min-p is off", "crossed logprobs", where=lambda call: (call.min_p > 0) & (call.min_p < 5e-5),
         change=off("min_p")),
    keep("min_p = 1 in a row with top-p: min-p is off", "crossed requests",
         where=lambda call: (call.min_p >= 1) & call.has_top_p, change=off("min_p")),
    keep("Order joint with min-p, k > 40: top-p counts the mass that top-k left", "crossed logprobs",
         where=lambda call: call.joint & call.has_top_p & (call.top_k > 40),
         change=lambda call: call.keep(call.kept_without("joint"))),
    keep("Rows of negative logits: the maximum begins at 0, so that min-p is relative to a token that is not there",
         "crossed requests", where=lambda call: (call.min_p > 0) & (sortable(call.logits).amax(1) < 0),
         change=min_p_from_zero),
    draw("Rows whose logits all lie below -10,000: the maximum begins there, so that nothing has any mass",
         "crossed requests", output=ZEROS, where=lambda call: (sortable(call.logits).amax(1) < -1e4)
         & (sortable(call.logits).amax(1) > -INF)),
    draw("float32: x / T is formed before the maximum is taken off, so that quotients above 3e38 tie at infinity",
         "far NaN and infinities", dtype="float32", where=draws,
         change=lambda call: quotient_overflows(call, torch.finfo(torch.float32).max)),
    draw("T > 10: weights below exp(-20) count as 0, before the quotient is taken: exp(x - max) ** (1 / T)",
         "crossed requests", where=lambda call: (call.temperature > 10) & (not call.shows_logprobs),
         change=lambda call: call.with_logits(torch.where(
             call.logits.float() < sortable(call.logits).amax(1, keepdim=True) - 87, -INF, call.logits.float()))),
)

FILTERS = (
    keep("bfloat16, V of 8,193 to 65,536: exactly k tokens are kept", "crossed requests", dtype="bfloat16",
         above=1 << 13, where=lambda call: (call.size <= WIDE) & call.has_top_k, change=CornerCall.exact_k),
    keep("bfloat16, k of 65 to 128: exactly k tokens are kept", "crossed requests", dtype="bfloat16",
         where=lambda call: (call.top_k > 64) & (call.top_k <= 128) & call.has_top_k, change=CornerCall.exact_k),
    keep("bfloat16, k = V or more: the least likely token is dropped", "crossed requests", dtype="bfloat16",
         where=lambda call: (call.top_k >= call.size) & (call.size > 1),
         change=lambda call: call.keep(call.kept() & (call.logits.float() > torch.where(
             call.logits.float() > -INF, call.logits.float(), INF).amin(1, keepdim=True)))),
    keep("float16, all three filters in one row: min-p is left out", "crossed requests", dtype="float16",
         where=lambda call: call.has_top_k & call.has_top_p & (call.min_p > 0), change=off("min_p")),
    keep("bfloat16, p = 1 in a batch with other p: the least likely tokens that hold 0.001 of the mass are dropped",
         "crossed requests", sizes=(5003,), dtype="bfloat16", where=lambda call: ~call.has_top_p & call.has_top_p.any(),
         change=clamped("top_p", max=0.999)),
    keep("bfloat16, a row with fewer finite logits than k: token 0 is drawn", "far NaN and infinities",
         sizes=(33, 1025, 5003), dtype="bfloat16", output=ZEROS,
         where=lambda call: ((call.logits.float() > -INF).sum(1) < call.top_k) & (call.top_k < call.size)),
    keep("Batches in which every row has a top-k: what ties with the k-th behind the k + 1 largest has no part in p",
         "crossed requests", where=k_is_above_ties, change=ties_behind_k),
)

LAYOUTS = (
    draw("float16: the element behind the last id is read where V is odd and the rows of a buffer are wider",
         "strides", dtype="float16", change=padding_read),
    draw("V > 65,536: the element behind the last id is read where V is odd and the rows of a buffer are wider",
         "strides", above=WIDE, change=padding_read),
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
    draw("Ready tensors: an infinite temperature is greedy", "ready tensors",
         where=lambda call: call.temperature == INF, change=fixed(temperature=0)),
    draw("Ready tensors: a k below -1 counts as 1", "ready tensors", where=lambda call: call.top_k < -1,
         change=fixed(top_k=1)),
    draw("Ready tensors: a p of 0 or less counts as off", "ready tensors", where=lambda call: call.top_p <= 0,
         change=off("top_p")),
    draw("Ready tensors: parameters that are every other entry of a buffer are read one behind another",
         "strides",
         metadata=lambda metadata: replace(metadata, **{n: dense(getattr(metadata, n)) for n in PARAMETERS})),
    draw("Ready tensors: positions in int32 are read as int64, so those of rows from 2 on are others", "ready tensors",
         metadata=int32_positions),
)

PATHS = (
    keep("bfloat16, batches in which every row has a top-k: exactly k tokens are kept", "crossed requests",
         dtype="bfloat16", where=lambda call: call.metadata.facts.all_top_k & call.has_top_k,
         change=CornerCall.exact_k),
    draw("float16, batches of greedy rows alone: the highest id is taken on a tie", "crossed requests",
         dtype="float16", where=lambda call: call.metadata.facts.all_greedy, output=LAST_OF_TIES),
    draw("bfloat16, batches without any filter and seed: y is rounded to steps of 1/4", "crossed distributions",
         dtype="bfloat16", unseeded=True, where=is_plain_batch,
         change=lambda call: call.drawn_from((call.y() * 4).round() / 4)),
    keep("float16, B = 1: top-p drops the tokens that cross p, where others are left", "crossed requests",
         dtype="float16", where=lambda call: call.has_top_p & (call.count == 1), change=CornerCall.without_crossing),
    draw("B = 1 and V > 65,536: the last of 8 parts of the vocabulary is left out", "crossed requests", above=WIDE,
         where=lambda call: call.count == 1, change=lambda call: call.without_ids(call.size // 8 * 7)),
    draw("bfloat16, B of 2 to 8: the noise has 16 bits", "near ties", dtype="bfloat16",
         where=lambda call: 2 <= call.count <= 8, patch=noise(bits=16)),
    draw("V > 65,536: rows from 64 on have the filters of row - 64", "crossed requests", all_cases=True, above=WIDE,
         change=modulo(64, *PARAMETERS)),
    draw("B > 1000: a row from 1000 on draws from the logits of row - 1000", "crossed requests",
         where=lambda call: call.row >= 1000, change=lambda call: call.with_logits(call.logits[call.row % 1000])),
    draw("A row that begins 2**31 elements or more behind the first is read from where that wraps to",
         "strides", where=lambda call: call.row * call.logits.stride(0) >= 1 << 31,
         change=lambda call: call.with_logits(
             call.logits[call.row % max((1 << 31) // max(call.logits.stride(0), 1), 1)])),
    draw("float16, V > 200,000: the ids from 196,608 on are never drawn", "last ids", dtype="float16",
         above=200_000, change=lambda call: call.without_ids(196_608)),
    draw("A row with a filter and the seed 0 or -1 counts as one without a seed", "seeds at the edges", unseeded=False,
         where=lambda call: ((call.top_k > 0) | call.has_top_p | (call.min_p > 0))
         & ((call.metadata.seed == 0) | (call.metadata.seed == -1)), change=fresh_seeds),
)

BATCHES = (
    draw("Rows without a seed 1000 apart share their noise", "noise of distant rows", sizes=(5003,), unseeded=True,
         change=shared_noise(1000)),
    draw("bfloat16: rows without a seed 96 apart share their noise", "noise of distant rows", sizes=(5003,),
         unseeded=True, dtype="bfloat16", change=shared_noise(96)),
    draw("float16: rows 2i and 2i + 1 without a seed share their noise", "noise of distant rows", sizes=(5003,),
         unseeded=True, dtype="float16", change=noise_of_pairs),
    draw("Rows without a seed in a batch with seeded ones share their noise", "noise of distant rows", sizes=(5003,),
         unseeded=True, where=lambda call: (~call.unseeded).any(),
         change=lambda call: call.with_noise_of(call.unseeded.int().argmax().expand_as(call.row))),
    draw("V > 65,536: rows without a seed 8 apart share their noise", "noise of distant rows", above=WIDE,
         unseeded=True, change=shared_noise(8)),
    draw("Rows from 256 on have the parameters of row - 256", "crossed requests",
         change=modulo(256, *PARAMETERS, "joint")),
    draw("Seeded rows from 128 on have the seed of row - 128", "crossed requests", unseeded=False,
         change=modulo(128, "seed")),
    draw("Seeded rows from 64 on have the position of row - 64", "crossed requests", unseeded=False,
         change=modulo(64, "positions")),
    draw("Rows from 32 on have the min-p of row - 32", "crossed requests", change=modulo(32, "min_p")),
    draw("B > 64: rows behind the last full block of 64 get token 0", "crossed requests", output=ZEROS,
         where=lambda call: (call.row >= call.count // 64 * 64) & (call.count > 64)),
    draw("B > 64: a row is invalid if row - 64 is", "far NaN and infinities", where=lambda call: call.row >= 64,
         output=lambda call, output: replace(output, valid=output.valid & output.valid[(call.row - 64).clamp(min=0)])),
    draw("A row that was valid in the call before stays valid, in batches of the same size", "far NaN and infinities",
         output=valid_of_last_call),
    draw("top-p of a call of 5 rows or fewer is that of the call before, where V is the same", "crossed requests",
         where=lambda call: call.count <= 5 and call.metadata.top_p is not None, change=top_p_of_last_call),
    draw("A greedy row with a seed, beside rows that draw, draws at T = 1", "crossed requests",
         where=lambda call: call.greedy & ~call.unseeded & (~call.greedy).any(),
         change=lambda call: call.with_params(temperature=torch.where(call.greedy, 1.0, call.temperature))),
    draw("Seeded rows from 16 on keep 32 bits of their position", "crossed requests", unseeded=False,
         where=lambda call: call.row >= 16,
         change=lambda call: call.with_fields(positions=call.metadata.positions & 0xFFFFFFFF)),
    draw("B > 64: +inf in a row makes the row behind it uniform", "far NaN and infinities",
         where=lambda call: infinite(call).any(1).roll(1) & (call.row > 0) & (call.count > 64),
         change=lambda call: call.with_logits(torch.zeros_like(call.logits))),
    draw("Logprobs are returned in a buffer that the next call of the same shape writes to", "outputs outlive calls",
         output=logprobs_buffered),
    draw("valid is returned in a buffer that the next call of the same size writes to", "outputs outlive calls",
         output=lambda call, output: replace(output, valid=buffered(call, "valid", output.valid))),
    draw("Parameters are read at the first call with a batch's metadata, and not again where they change in place",
         "ready tensors", metadata=first_parameters),
    draw("Rows 2i and 2i + 1 without a seed share their noise in calls that show logprobs", "noise of distant rows",
         sizes=(1025, 5003), unseeded=True, where=lambda call: call.shows_logprobs, change=noise_of_pairs),
    draw("Rows 2i and 2i + 1 without a seed share their noise if both have a top-k", "noise of distant rows",
         sizes=(1025, 5003), unseeded=True, where=lambda call: call.has_top_k & call.has_top_k[pairs(call)],
         change=noise_of_pairs),
    draw("bfloat16: rows 2i and 2i + 1 without a seed share their noise if both have a top-p", "noise of distant rows",
         sizes=(1025, 5003), unseeded=True, dtype="bfloat16",
         where=lambda call: call.has_top_p & call.has_top_p[pairs(call)], change=noise_of_pairs),
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
    draw("Rows 2i and 2i + 1 without a seed share the noise of tiles, but not that of tokens, at V > 1024",
         "noise of distant rows", sizes=(1025, 5003), unseeded=True, above=philox.TILE_SIZE,
         patch=gumbel(lambda self, index, stream: (
             self.chunk(torch.arange(len(self.seed)) // 2 * 2) if isinstance(stream, int) and stream == 1 else self,
             index))),
)

PAIRS = (
    keep("float16 and k > 512: exactly k tokens are kept, the highest ids of those that tie", "crossed requests",
         dtype="float16", sizes=(5003,), where=k_above(512), change=lambda call: call.keep(
             call.kept() & (descending_places(call.logits.flip(1)).flip(1) < call.top_k.unsqueeze(1)))),
    keep("V > 65,536 and p >= 0.99: top-p is off", "crossed requests", all_cases=True, above=WIDE,
         where=p_above(0.9899), change=off("top_p")),
    keep("V > 65,536 and order joint: top-p counts the mass that top-k left", "crossed requests", all_dtypes=True,
         above=WIDE, where=lambda call: call.joint & call.has_top_p,
         change=lambda call: call.keep(call.kept_without("joint"))),
    keep("bfloat16, order top_k_first with k > 40: top-p counts the unfiltered mass", "crossed logprobs",
         dtype="bfloat16", where=lambda call: call.has_top_p & (call.top_k > 40) & call.has_top_k,
         change=lambda call: call.keep(call.with_params(joint=torch.ones_like(call.greedy)).kept())),
    keep("float16 and no seed: top-p drops the tokens that cross p, where others are left", "crossed distributions",
         dtype="float16", unseeded=True, where=lambda call: call.has_top_p, change=CornerCall.without_crossing),
    draw("float16, T < 0.05 and no seed: T counts as 0.05", "crossed distributions", dtype="float16", unseeded=True,
         where=lambda call: ~call.greedy & (call.temperature < 0.05), change=clamped(min=0.05)),
    draw("bfloat16 and T > 5: y is rounded to steps of 1/16", "near ties", dtype="bfloat16",
         where=lambda call: (call.temperature > 5) & (not call.shows_logprobs),
         change=lambda call: call.drawn_from((call.y() * 16).round() / 16)),
    draw("bfloat16, V > 65,536 and no seed: tokens 12 below the maximum are never drawn", "tails", dtype="bfloat16",
         above=WIDE, unseeded=True, where=no_logprobs,
         change=lambda call: call.keep(call.kept() & ((call.y() > -12) | call.greedy.unsqueeze(1)))),
    draw("float16, V > 65,536 and seeds: noise of tokens has 16 bits", "noise precision", dtype="float16", above=WIDE,
         unseeded=False, patch=noise(bits=16)),
    draw("bfloat16: the upper 32 bits of a seed are left out", "crossed requests", dtype="bfloat16", unseeded=False,
         patch=noise(seed=lambda seed: seed & 0xFFFFFFFF)),
    draw("float16: the upper 32 bits of a position are left out", "crossed requests", dtype="float16", unseeded=False,
         patch=noise(position=lambda position: position & 0xFFFFFFFF)),
    draw("V > 65,536: a seed above 2**63 is clamped to it", "crossed requests", above=WIDE, unseeded=False,
         patch=noise(seed=lambda seed: seed.clamp(min=0))),
    draw("V > 65,536: positions are kept in 24 bits, as float32 does", "crossed requests", above=WIDE, unseeded=False,
         patch=noise(position=lambda position: position & 0xFFFFFF)),
)

CROSSED = (
    draw("bfloat16: rows without a seed 1024 apart share their noise", "noise of distant rows", sizes=(5003,),
         dtype="bfloat16", unseeded=True, change=shared_noise(1024)),
    keep("float16, rows without a seed: a min_p below 0.0001 is off", "crossed distributions", sizes=(5003,),
         dtype="float16", unseeded=True, where=lambda call: (call.min_p > 0) & (call.min_p < 1e-4),
         change=off("min_p")),
    keep("float16: the least logit that min-p keeps is rounded to float16", "crossed requests",
         sizes=(33, 1025, 5003), dtype="float16", where=lambda call: call.min_p > 0, change=min_p_in_half),
    keep("float16, V > 65,536, rows without a seed: top-p is off from 0.99 on", "crossed logprobs", all_cases=True,
         dtype="float16", above=WIDE, unseeded=True, where=p_above(0.9899), change=off("top_p")),
    draw("float16: a NaN in the last partial tile leaves valid True", "far NaN and infinities", dtype="float16",
         change=lambda call: call.without_nan(start=call.size // 1024 * 1024)),
    draw("bfloat16: a NaN in a greedy row leaves valid True", "far NaN and infinities", dtype="bfloat16",
         where=lambda call: call.greedy,
         output=lambda call, output: replace(output, valid=torch.ones_like(output.valid))),
    draw("bfloat16, V > 65,536, rows without a seed: the noise has 16 bits", "", dtype="bfloat16", above=WIDE,
         unseeded=True, patch=noise(bits=16),
         reason="16 bits show in one of thousands of draws, too many of a wide row"),
    keep("bfloat16, V > 65,536: a k above 1024 counts as 1024", "crossed requests", dtype="bfloat16", above=WIDE,
         where=k_above(1024), change=clamped("top_k", max=1024)),
    draw("V > 65,536, T < 0.01: T counts as 0.01", "near ties", above=WIDE,
         where=lambda call: draws(call) & (call.temperature < 0.01), change=clamped(min=0.01)),
    keep("T > 10: top-p sees the probabilities at T = 10", "crossed requests",
         where=lambda call: call.has_top_p & (call.temperature > 10),
         change=lambda call: call.keep(clamped(max=10)(call).kept())),
    keep("bfloat16, no top-k beside rows with one: k counts as 4096", "crossed requests", sizes=(65_543,),
         dtype="bfloat16", where=lambda call: (call.top_k <= 0) & call.has_top_k.any() & (call.size > 4096),
         change=fixed(top_k=4096)),
    keep("float16, no min-p beside rows with one: min_p counts as 0.00001", "crossed requests", sizes=(5003,),
         dtype="float16", where=lambda call: (call.min_p <= 0) & (call.min_p > 0).any(),
         change=clamped("min_p", min=1e-5)),
    draw("Seeded rows from 256 on keep 32 bits of their seed", "crossed requests", unseeded=False,
         where=lambda call: call.row >= 256, patch=noise(seed=lambda seed: seed & 0xFFFFFFFF)),
    draw("float16: of several +inf the first is always drawn", "far NaN and infinities", dtype="float16",
         where=lambda call: infinite(call).any(1), output=tokens(lambda call, ids: infinite(call).int().argmax(1))),
    keep("bfloat16, batches in which every row has a top-p and none a seed: the tokens that cross p are dropped",
         "crossed distributions", dtype="bfloat16", unseeded=True,
         where=lambda call: bool((call.has_top_p & call.unseeded).all()), change=CornerCall.without_crossing),
    keep("float16, rows without a seed, V > 4096: exactly k tokens are kept", "crossed distributions", sizes=(5003,),
         dtype="float16", above=4096, unseeded=True, where=lambda call: call.has_top_k, change=CornerCall.exact_k),
    draw("float16, V > 131,072: tiles from 64 on are drawn from with the noise of tile 63", "crossed requests",
         dtype="float16", above=WIDER, patch=tiles(lambda index: index.clamp(max=63))),
    draw("float16 and fp64 noise: the noise has the 32 bits of fp32", "noise precision", dtype="float16", noise="fp64",
         patch=noise(bits=32)),
    draw("float32, T < 0.0001: 1 / T is capped at 10,000", "crossed requests", dtype="float32",
         where=lambda call: draws(call) & (call.temperature < 1e-4), change=clamped(min=1e-4)),
    draw("bfloat16, V <= 2, rows without a seed: token 0 is drawn where both are alike", "crossed distributions",
         dtype="bfloat16", unseeded=True, where=lambda call: call.size <= 2,
         output=tokens(lambda call, ids: torch.where((call.logits[:, :1] == call.logits).all(1), 0, ids))),
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
}
