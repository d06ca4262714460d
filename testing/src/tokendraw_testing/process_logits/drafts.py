"""Rows of a verification: each row counts the request's history and the earlier drafts."""

from __future__ import annotations

import torch

from tokendraw import Drafts, SamplingParams
from tokendraw.plugin import Call
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.process_logits.formulas import random_edits
from tokendraw_testing.process_logits.subject import EditRequest, ProcessSubject

properties = Properties("process_logits")

_VOCAB_SIZE = 300


def _with_drafts(subject: ProcessSubject) -> Call:
    engine = subject.engine({0: EditRequest(SamplingParams(repetition_penalty=2.0), [1], [])}, 1, 8)
    logits = torch.zeros(2, 8, dtype=subject.dtypes[0], device=subject.device)
    row_index = torch.zeros(1, dtype=torch.int64, device=subject.device)
    return subject.new_call("process", logits, engine.slots, row_index, None, subject.drafts([[3]]))


_DRAFT_REFUSAL = Refusal(call=_with_drafts)


@properties.advertised("process drafts", lambda c: c.drafts, _DRAFT_REFUSAL)
def drafts(subject: ProcessSubject, trial: Trial) -> str:
    """Row j of a request counts its first j drafts as if they were in the output, in every edit, and no placeholder."""
    vocab_size, requests = subject.vocab_size(_VOCAB_SIZE), 12
    rows = 0
    for dtype in subject.dtypes:
        rng = trial.generator(str(dtype))
        requests_by_slot = {slot: random_edits(rng, vocab_size) for slot in range(requests)}
        for request in requests_by_slot.values():  # drafts that meet what is asked for
            request.output = (request.output or [1])[-4:]
        engine = subject.engine(requests_by_slot, requests + 2, vocab_size)
        order = rng.permutation(requests).tolist()
        draft_candidates = [
            [*requests_by_slot[slot].output, *requests_by_slot[slot].prompt, 1, 2, vocab_size - 1]
            for slot in order
        ]
        lists = [rng.choice(ids, int(rng.integers(0, 6))).tolist() for ids in draft_candidates]
        lists = [[*ids, *ids[:1]] if place % 2 else ids for place, ids in enumerate(lists)]  # drafted twice
        rows = sum(len(ids) + 1 for ids in lists)
        logits = subject.logits(rng, rows, vocab_size, dtype)
        allowed = rng.random((rows, vocab_size)) < 0.9
        subject.check_edits(trial, str(dtype), engine, order, logits, allowed=allowed, drafts=lists)
    return f"{rows} rows in {len(subject.dtypes)} dtypes"


@properties.advertised("process drafts on the device", lambda c: c.drafts, _DRAFT_REFUSAL)
def on_the_device(subject: ProcessSubject, trial: Trial) -> str:
    """Padded ids and counts that the device alone knows give the same rows; rows behind the last stay as they are."""
    vocab_size, device = subject.vocab_size(_VOCAB_SIZE), subject.device
    rng = trial.generator("requests")
    lists = [[5, 6], [], [7], [5, 5, 5]]
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, bad_words=[[5, 9]])
    engine = subject.engine({s: EditRequest(params, [6], [7]) for s in range(4)}, 4, vocab_size)
    rows = sum(len(ids) + 1 for ids in lists)
    logits = subject.logits(rng, rows + 2, vocab_size, subject.dtypes[0])
    ragged_logits, padded_logits = logits.clone(), logits
    row_index = torch.arange(4, device=device)
    drafts = subject.drafts(lists)
    subject.make(subject.new_call("process", ragged_logits[:rows], engine.slots, row_index, None, drafts))
    rows_of_ids = [[*ids, *[-1] * (4 - len(ids))] for ids in lists]
    padded_ids = torch.tensor(rows_of_ids, dtype=torch.int32, device=device)
    offsets = subject.drafts(lists).cu_num_logits.to(torch.int32)
    padded_drafts = Drafts(draft_token_ids=padded_ids, cu_num_logits=offsets, max_drafts=4)
    short_index = row_index.to(torch.int32)
    subject.make(subject.new_call("process", padded_logits, engine.slots, short_index, None, padded_drafts))
    num_unequal = int((ragged_logits.cpu() != padded_logits.cpu()).any(1).sum())
    trial.require(not num_unequal, f"padded drafts need the rows of ragged ones, found {num_unequal} others")
    return f"{rows + 2} rows"
