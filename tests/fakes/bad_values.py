"""Values outside the ranges of ``SamplingParams``: the field, a bad value, and what the error says is needed."""

import math

NAN, INF = math.nan, math.inf

BAD_VALUES = [
    *[("temperature", bad, "a finite number >= 0") for bad in (-1e-9, -1.0, NAN, INF, -INF, "hot", None)],
    *[("min_p", bad, "a number in [0, 1] (0: off)") for bad in (-1e-9, 1.0000001, NAN, INF, "0.1")],
    *[("top_k", bad, "an integer >= -1 (0 and -1: off)") for bad in (-2, -(2**70), 2.5, NAN, INF, "5", None)],
    *[("top_p", bad, "a number in (0, 1] (1: off)") for bad in (0.0, -0.1, 1.0000001, NAN, INF, -INF, "0.9")],
    *[
        ("seed", bad, "an integer in [-2**63, 2**64) or None")
        for bad in (2**64, -(2**63) - 1, 10**30, 7.0, 2.5, NAN, "7")
    ],
    *[("logprobs", bad, "an integer >= -1 (-1: all) or None") for bad in (-2, 2.5, "all")],
    *[
        ("repetition_penalty", bad, "a finite float32 > 0 (1: off)")
        for bad in (0.0, -1.0, 1e-46, 3.5e38, NAN, INF, "1", None, True)
    ],
    *[
        (field, bad, "a number in [-2, 2] (0: off)")
        for field in ("frequency_penalty", "presence_penalty")
        for bad in (-2.0000001, 2.0000001, NAN, INF, "1", None, False)
    ],
    *[("min_tokens", bad, "an integer >= 0 (0: off)") for bad in (-1, 2.0, "1", None, False)],
    ("filter_order", "top_p_first", "one of top_k_first, joint"),
]
