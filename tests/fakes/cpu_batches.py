"""Random batches of every kind of row, by which the compiled sampler is compared with native."""

import torch

from tokendraw import SamplingParams
from tokendraw.plugin import FILTER_ORDERS

ROWS = 48
VALUES = {
    "temperature": (1.0, 0.8, 0.3, 2.0, 0.0, 1e-20),
    "top_k": (0, 0, 0, 1, 7, 50, 900, 6000),
    "top_p": (1.0, 1.0, 0.05, 0.5, 0.9, 0.99, 0.9999),
    "min_p": (0.0, 0.0, 0.0, 0.001, 0.05, 0.5),
    "xtc_probability": (0.0, 0.0, 0.0, 0.7),
    "xtc_threshold": (0.001, 0.02, 0.1),
    "filters": (None, None, None, {"top_n_sigma": 1.0}, {"eta_cutoff": 1e-4}, {"p_less": 1}),
    "filter_order": FILTER_ORDERS,
    "logprobs": (None, 0, 3, 20),
    "logprob_token_ids": (None, None, [0, 5]),
}
DESIGNS = {
    "bell": lambda noise: noise,
    "wide bell": lambda noise: 5 * noise,
    "ties": lambda noise: (2 * noise).round(),
    "all alike": torch.zeros_like,
    "nearly flat, far from 0": lambda noise: 0.01 * noise - 4000,
    "masked": lambda noise: noise.masked_fill(noise < 0.5, -torch.inf),
}


def requests_of(rng, rows=ROWS, **fields):
    rows = [{name: rng.choice(values) for name, values in VALUES.items()} | fields for _ in range(rows)]
    for row in rows:
        if row["logprobs"] is None:
            row["logprob_token_ids"] = None
    return [SamplingParams(seed=rng.getrandbits(64), **row) for row in rows]


def logits_of(size, dtype, seed, rows=ROWS):
    """Make rows of all designs, five of them with special values; at least 16 rows."""
    noise = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))
    logits = torch.stack([[*DESIGNS.values()][row % len(DESIGNS)](noise[row]) for row in range(rows)])
    logits[7, size // 2] = logits[9, -1] = torch.nan
    logits[11, : size // 3 + 1] = torch.inf
    logits[13] = -torch.inf
    logits[14] = torch.nan
    return logits.to(dtype)


def assert_alike(found, wanted):
    """Compare outputs: ids, ranks and bounds are equal, log-probabilities within the rounding of a sum."""
    for name in ("token_ids", "num_accepted", "valid", "threshold", "ceiling"):
        _close(name, getattr(found, name, None), getattr(wanted, name, None), 0)
    _close("log_kept_mass", found.log_kept_mass, wanted.log_kept_mass, 2e-6)
    assert (found.logprobs is None) == (wanted.logprobs is None)
    if found.logprobs is not None:
        for name in ("token_ids", "ranks", "given_token_ids"):
            _close(name, getattr(found.logprobs, name), getattr(wanted.logprobs, name), 0)
        for name in ("logprobs", "given_logprobs"):
            _close(name, getattr(found.logprobs, name), getattr(wanted.logprobs, name), 2e-6)


def _close(name, found, wanted, tolerance):
    if found is None or wanted is None:
        assert found is wanted, name
        return
    torch.testing.assert_close(
        found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )
