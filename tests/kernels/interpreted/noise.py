"""Draws by triton-gumbel on CPU tensors that tell float64 noise from float32, in Triton's interpreter.

``python noise.py draws`` and ``... verifications`` print, as JSON, how many were judged and those of the
wrong precision.
"""

import json
import sys

import fast_interpreter  # first: it has Triton interpret

fast_interpreter.hurry()

import torch  # noqa: E402

from tokendraw import Need, SamplingMetadata, SamplingParams  # noqa: E402
from tokendraw_testing import Effort, Subject, reference  # noqa: E402
from tokendraw_testing.rows.noise_precision import POSITION, telling_rows  # noqa: E402
from tokendraw_testing.verify.drafting import chains  # noqa: E402
from tokendraw_testing.verify.telling_drafts import DRAFT, SAMPLE, telling_batch  # noqa: E402
from tokendraw_testing.verify.verifying import Verifying  # noqa: E402
from tokendraw_triton_gumbel import plugin  # noqa: E402
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler  # noqa: E402

DTYPES = ("fp32", "fp64")


def draws():
    """Tokens and drafts of rows that keep few tokens, hundreds and thousands, with top-k and without."""
    wrong, judged = [], 0
    for dtype in DTYPES:
        sampler = TritonGumbelSampler(torch.device("cpu"), Need(gumbel_dtype=dtype))
        for streams in (SAMPLE, DRAFT):
            for row in telling_rows(*streams):
                for top_k in (0, row.kept):
                    params = SamplingParams(top_k=top_k, seed=row.seed)
                    metadata = SamplingMetadata.from_params([params], positions=[POSITION])
                    logits = torch.from_numpy(row.logits[None])
                    found = sampler.sample(logits, metadata, draft=streams == DRAFT).token_ids.item()
                    prepared = reference.prepare(row.logits, params)
                    expected, _ = reference.draw(prepared, row.seed, POSITION, dtype, streams)
                    judged += 1
                    if found != expected:
                        wrong.append([dtype, streams, row.kept, top_k, expected, found])
    return {"judged": judged, "wrong": wrong}


def verifications():
    """Chains of float64 noise that one variate decides: of the acceptance, the residual, or the bonus token."""
    capabilities = plugin.tokendraw_describe().operations["verify"]
    subject = Subject(
        "triton-gumbel",
        capabilities={"verify": capabilities},
        device="cpu",
        build=lambda operation, need: TritonGumbelSampler(torch.device("cpu"), need),
        effort=Effort.tiny(),
    )
    verifying, wrong, judged = Verifying(subject), [], 0
    for mode in ("rejection", "coupled"):
        for filtered in (False, True):
            batch = telling_batch(SamplingParams(), filtered=filtered)
            found = chains(batch.verify(verifying, mode, "chosen", gumbel_dtype="fp64"))
            expected = [batch.walk(i, mode, "chosen", "fp64").tokens for i in range(len(batch))]
            judged += len(batch)
            wrong += [
                [filtered, mode, i, expected[i], found[i]]
                for i in range(len(batch))
                if expected[i] != found[i]
            ]
    return {"judged": judged, "wrong": wrong}


PROGRAMS = {f.__name__: f for f in (draws, verifications)}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
