"""What a rank says before the draw, by triton-gumbel and by native: its largest values, ties, masses and histograms."""

from dataclasses import replace

import torch

from shard_cases import INF, NAN
from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw.plugin import MOMENTS
from tokendraw.row_parameters import RowParameters
from tokendraw.vocab_parallel import Digits, Layout, Span, Weighing, keys, required_sums
from tokendraw_native.shards import LocalColumns
from tokendraw_triton_gumbel.host.device import LaunchDevice
from tokendraw_triton_gumbel.host.params_layout import contiguous_params
from tokendraw_triton_gumbel.host.variant import Target
from tokendraw_triton_gumbel.ranks.sampler import ShardSampler

SIZE, START = 2900, 700
CLOSE = 2e-6
"""How far float32 weights may lie from float64 ones, relative to the largest of a row."""

CLOSE_SQUARES = 2e-4
"""The same of squares: those around the largest logit of a tile cancel where it lies far above all others."""


def families():
    """Rows with ties of every kind, by name."""
    normal = torch.randn(SIZE, generator=torch.Generator().manual_seed(3))
    return {
        "gaussian": normal,
        "all equal": torch.full((SIZE,), 3.5),
        "few values": (normal * 2).round() / 2,
        "two values": (normal > 1.5).float(),
        "few finite": normal.where(normal > 1.9, -INF),
        "NaN": normal.where(normal > -1, NAN),
        "infinities": normal.where(normal < 2, INF),
        "nothing": torch.full((SIZE,), -INF),
        "close": 1 + normal * 1e-6,
        "wide": normal.sign() * (3 * normal).exp(),
    }


class Comparison:
    """Counts the compared rows, and lists the differing rows."""

    def __init__(self):
        self.judged, self.wrong = 0, []

    def add(self, what, result, expected, tolerance=0.0):
        for name, own, other in zip(families(), result.double().cpu(), expected.double().cpu(), strict=True):
            self.judged += 1
            size = other.abs().max().item() if tolerance else 0.0
            if not torch.allclose(own, other, rtol=tolerance, atol=tolerance * size):
                self.wrong.append([what, name, own.tolist()[:8], other.tolist()[:8]])


def compared(dtype, device):
    """Survey columns of a shard that begins inside a tile, and add them up by digits."""
    layout = Layout.of([Span(0, START), Span(START, START + SIZE)], 1, START + SIZE, device)
    logits = torch.stack(list(families().values())).to(dtype).to(device)
    params = [SamplingParams(temperature=0.3 + 0.2 * i, top_p=0.9) for i in range(len(logits))]
    metadata = SamplingMetadata.from_params(params, device=device)
    here, need = LaunchDevice.of(device), Need()
    sampler = ShardSampler(here, Target(here.family, here.processors, fp64=False), need)

    def columns():
        return sampler._columns(logits, metadata.facts, layout, *contiguous_params(metadata))

    native = LocalColumns(logits, RowParameters.of(metadata, len(logits), device), layout, "fp32")
    result = Comparison()
    filters = {"top_n_sigma": 1.0, "eta_cutoff": 0.01, "p_less": 1.0}
    with_filters = SamplingMetadata.from_params([replace(p, filters=filters) for p in params], device=device)
    _sums(
        result,
        sampler._columns(logits, with_filters.facts, layout, *contiguous_params(with_filters)),
        native,
    )
    _largest(result, columns(), native, len(logits), device)
    _by_digits(result, columns(), native, logits)
    return {"judged": result.judged, "wrong": result.wrong}


def _largest(result, columns, native, rows, device):
    fresh = torch.arange(rows, device=device).unsqueeze(-1) - (1 << 40)
    for count in (1, 5, 64, 65, 300, 1024):
        own, other = columns.largest(count, 1, fresh), native.largest(count, 1, None)
        some, last = other.x[:, :1] > -INF, other.x[:, -1:] > -INF
        result.add(f"values {count}", own.x, other.x)
        result.add(f"ties {count}", own.ties * last, other.ties * last)  # those with -inf do not count
        result.add(f"seeds {count}", own.fresh, fresh)
        result.add(f"mass {count}", own.mass * some, other.mass * some, CLOSE)


def _sums(result, columns, native):
    """Compare sums behind moments where there are any, but for rows with +inf."""
    sums = required_sums(MOMENTS)
    own, other = columns.largest(1, 0, None, sums), native.largest(1, 0, None, sums)
    some = other.x.abs() < INF
    for i, name in enumerate(sums):
        pair = (torch.where(some, each.sums[:, i : i + 1], 0.0) for each in (own, other))
        result.add(f"sum {name}", *pair, CLOSE_SQUARES if name == "squares" else CLOSE)


def _by_digits(result, columns, native, logits):
    own, other = columns.largest(1, 256, None), native.largest(1, 256, None)
    top, some = other.x, other.x > -INF
    result.add("mass by digit", own.mass * some, other.mass * some, CLOSE)
    middle = logits.float().nan_to_num(nan=-INF, posinf=INF).median(-1, keepdim=True)[0]
    weighing = Weighing(top, torch.where(top > 3, top - 1, -INF), 40)
    for shift in (24, 16, 8, 0):
        for value in (top, middle):
            digits = Digits(None if shift == 24 else keys(value) >> (shift + 8), shift)
            result.add(f"counts {shift}", columns.histogram(digits, None), native.histogram(digits, None))
            weights = columns.histogram(digits, weighing), native.histogram(digits, weighing)
            result.add(f"weights {shift}", *(each * some for each in weights), CLOSE)
