"""Pairs of target and draft whose verification is held against the target's distribution."""

import numpy as np

from speculation_trials import Case
from tokendraw import SamplingParams

RNG = np.random.default_rng(1)
SIXTEEN = RNG.normal(size=16)
EIGHT, NEAR_EIGHT = RNG.normal(size=8) * 1.5, RNG.normal(size=8)
FEW, FEWER = np.log([0.10, 0.60, 0.30]), np.log([0.50, 0.20, 0.30])
MARKOV = {"target": RNG.normal(size=(5, 4)) * 1.5, "draft": RNG.normal(size=(5, 4)), "drafts": 2}
CASES = {
    "opposite, K = 1": Case(target=SIXTEEN, draft=-SIXTEEN, drafts=1),
    "opposite, K = 3": Case(target=SIXTEEN, draft=-SIXTEEN, drafts=3),
    "opposite, K = 4": Case(target=SIXTEEN, draft=-SIXTEEN, drafts=4, q="probs"),
    "three tokens": Case(target=FEW, draft=FEWER, drafts=2, q="probs"),
    "three tokens, one-hot": Case(target=FEW, draft=FEWER, drafts=2, q="one-hot"),
    "one-hot": Case(target=EIGHT, draft=NEAR_EIGHT, drafts=3, q="one-hot"),
    "one-hot, filtered": Case(
        target=EIGHT, draft=NEAR_EIGHT, q="one-hot", params=SamplingParams(top_k=4, temperature=0.8)
    ),
    "temperature": Case(target=EIGHT, draft=NEAR_EIGHT, q="probs", params=SamplingParams(temperature=1.7)),
    "top_k": Case(target=EIGHT, draft=NEAR_EIGHT, drafts=2, params=SamplingParams(top_k=3)),
    "top_p": Case(target=EIGHT, draft=NEAR_EIGHT, drafts=2, params=SamplingParams(top_p=0.7)),
    "min_p": Case(target=EIGHT, draft=NEAR_EIGHT, drafts=2, params=SamplingParams(min_p=0.2)),
    "filters, of the target alone": Case(
        target=EIGHT, draft=NEAR_EIGHT, q="one-hot", params=SamplingParams(top_k=5, top_p=0.8, min_p=0.02)
    ),
    "all filters": Case(
        target=EIGHT,
        draft=NEAR_EIGHT,
        params=SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05, filter_order="joint"),
    ),
    "Markov": Case(**MARKOV),
    "Markov, further verifications": Case(**MARKOV, rest="verify"),
    "Markov, one-hot": Case(**MARKOV, q="one-hot"),
    "Markov, a placeholder first": Case(**MARKOV, placeholders=(0,)),
    "Markov, a placeholder second": Case(**MARKOV, placeholders=(1,)),
    "coupled": Case(**MARKOV, mode="coupled"),
    "without seeds": Case(**MARKOV, seeded=False),
}
