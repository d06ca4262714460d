"""Edits of logits by triton-gumbel on CPU tensors, in Triton's interpreter.

``python edits.py edits SEED`` prints, as JSON, how many elements of each batch have wrong bits,
``masks TILE`` how many of each alignment, ``warmup`` how many calls a warmup made, ``families`` how many elements
differ from native's and how many were edited, by requests with one list alone, ``twins`` how many elements are wrong in
the rows of a request without preemption, and with a preemption at every step.
"""

import json
import sys
from itertools import chain, islice

import fast_interpreter  # first: it has Triton interpret

fast_interpreter.hurry()

import numpy as np  # noqa: E402
import torch  # noqa: E402

import edit_model  # noqa: E402
from selections import loaded, selection_of  # noqa: E402
from tokendraw import RequestSlots, SamplingParams  # noqa: E402
from tokendraw.operations.process_logits.warmup import ProcessWarmup  # noqa: E402
from tokendraw.plugin import ProcessNeed  # noqa: E402
from tokendraw_native.logits_processing import NativeProcessor  # noqa: E402
from tokendraw_triton_gumbel.launches import logits_processing  # noqa: E402
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor  # noqa: E402

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_TOKENS = 40


def edits(seed):
    """Edit batches of all kinds by small programs, so that several share each row and take turns."""
    logits_processing.CONFIG = logits_processing.ProcessConfig(IDS=8, WORDS=4, TILE=32, REQUESTS=2)
    logits_processing._PROGRAMS, logits_processing._MASK_PROGRAMS = 24, 16
    rng, processor, found = np.random.default_rng(int(seed)), TritonLogitsProcessor(CPU), {}
    for dtype in DTYPES:
        for drafted in (None, "listed", "padded"):
            for listed in (True, False):
                vocab_size = int(rng.choice([1, 31, 32, 97, 300]))
                masked = bool(rng.random() < 0.5)
                requests = [
                    edit_model.random_request(rng, vocab_size, MOST_TOKENS, listed=listed) for _ in range(5)
                ]
                slots = edit_model.slots_of(requests, MOST_TOKENS, vocab_size, CPU)
                batch = edit_model.batch(
                    rng, requests, vocab_size, dtype, CPU, drafted=drafted, masked=masked
                )
                out = processor.process(batch.logits, slots, batch.row_index, batch.bitmask, batch.drafts)
                assert out is batch.logits
                name = f"{dtype}, V = {vocab_size}, drafts {drafted}, lists {listed}, masked {masked}"
                found[name] = batch.wrong()
    return found


def warmup():
    """Make every seventh call of a warmup, which are some of each form, and count them."""
    processor, found = TritonLogitsProcessor(CPU), 0
    plan = ProcessWarmup.of(
        40, dtypes=[torch.float32], batch_sizes=[2], index_dtypes=[torch.int64], max_drafts=1
    )
    (stage,) = plan.stages(selection_of(loaded("triton", processor), operation="process_logits"), CPU)
    for call in islice(chain.from_iterable(stage.groups), 0, None, 7):
        call.check(CPU, ProcessNeed())
        call.run(processor)
        found += 1
    return found


def families():
    """Edit by requests that ask for one list alone, beside native."""
    native, found = NativeProcessor(), {}
    for field, value in {
        "logit_bias": {3: 1.0},
        "allowed_token_ids": [1, 69],
        "bad_words": [[4]],
        "stop_token_ids": [5],
        "repetition_penalty": 1.5,
    }.items():
        slots = RequestSlots(3, 8, 70)
        slots.add(1, SamplingParams(**{field: value}, min_tokens=1), [2])
        needed, logits, rows = torch.ones(2, 70), torch.ones(2, 70), torch.tensor([1, 0])
        native.process(needed, slots, rows)
        TritonLogitsProcessor(CPU).process(logits, slots, rows)
        found[field] = [int((logits != needed).sum()), int((logits != 1).sum())]
    return found


def masks(tile):
    """Apply masks by small programs to rows of every alignment."""
    logits_processing.CONFIG = logits_processing.CONFIG._replace(TILE=int(tile))
    logits_processing._MASK_PROGRAMS = 6
    process, found = TritonLogitsProcessor(CPU).process, {}
    for dtype in DTYPES:
        for case in edit_model.cases(dtype, int(tile)):
            found[str(case)] = case.wrong(process, CPU)
    return found


def twins():
    """Compare a request without preemption, and with one at every step, with the plain model."""
    before, after = edit_model.rows_of_twins(TritonLogitsProcessor(CPU), CPU)
    needed = edit_model.expected(before).view(torch.int32)
    return [int((rows.view(torch.int32) != needed).sum()) for rows in after.unbind(1)]


PROGRAMS = {"edits": edits, "families": families, "masks": masks, "twins": twins, "warmup": warmup}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
