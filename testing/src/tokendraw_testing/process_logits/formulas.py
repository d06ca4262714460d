"""Each edit by itself, and all of them in their order, in every dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from numpy.random import Generator

from tokendraw import RequestSlots, SamplingParams
from tokendraw.plugin import Call, Edit
from tokendraw_testing.kit.property import Check, Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.process_logits.subject import EditRequest, ProcessSubject

properties = Properties("process_logits")

_VOCAB_SIZE = 300
_PROMPT, _OUTPUT = [7, 3, 3, 299, 0], [5, 3, 5, 5, 298, 31, 32]


_EDIT_FIELDS: Final[dict[Edit, dict[str, Any]]] = {
    "allowed_token_ids": {"allowed_token_ids": [1]},
    "bad_words": {"bad_words": [[1]]},
    "min_tokens": {"min_tokens": 1, "stop_token_ids": [1]},
    "logit_bias": {"logit_bias": {1: 1.0}},
    "repetition_penalty": {"repetition_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "presence_penalty": {"presence_penalty": 1.0},
}
"""Fields of a request for each edit but the bitmask."""


def _register_edit(name: str, edit: Edit) -> Callable[[Check], Check]:
    """Register the check of an edit, refused by processors without the edit."""

    def call(subject: ProcessSubject) -> Call:
        slots = RequestSlots(1, 2, 8, device=subject.device)
        slots.add(0, SamplingParams(**_EDIT_FIELDS.get(edit, {})))
        logits = torch.zeros(1, 8, dtype=subject.dtypes[0], device=subject.device)
        row_index = torch.zeros(1, dtype=torch.int64, device=subject.device)
        words = torch.ones(1, 1, dtype=torch.int32, device=subject.device) if edit == "bitmask" else None
        return subject.new_call("process", logits, slots, row_index, words)

    return properties.advertised(name, lambda c: edit in c.edits, Refusal(call=call))


def _require_edits(subject: ProcessSubject, trial: Trial, *cases: dict[str, Any]) -> str:
    """Check requests with few edits each, in every dtype, beside a request without edits."""
    vocab_size = subject.vocab_size(_VOCAB_SIZE)
    fit = [[token for token in ids if token < vocab_size] for ids in (_PROMPT, _OUTPUT)]
    fields_by_slot = enumerate((*cases, {}))
    requests = {s: EditRequest(SamplingParams(**fields), *map(list, fit)) for s, fields in fields_by_slot}
    for dtype in subject.dtypes:
        engine = subject.engine(
            {s: EditRequest(r.params, list(r.prompt), list(r.output)) for s, r in requests.items()},
            len(requests),
            vocab_size,
        )
        logits = subject.logits(trial.generator(str(dtype)), len(requests), vocab_size, dtype)
        subject.check_edits(trial, str(dtype), engine, list(requests), logits)
    return f"{len(cases)} requests in {len(subject.dtypes)} dtypes"


@_register_edit("process repetition", "repetition_penalty")
def repetition(subject: ProcessSubject, trial: Trial) -> str:
    """Ids in prompt or output are divided by the penalty above 0, and multiplied by it below."""
    return _require_edits(subject, trial, *({"repetition_penalty": r} for r in (1.1, 2.0, 0.7, 1e-3, 3e4)))


@_register_edit("process frequency", "frequency_penalty")
def frequency(subject: ProcessSubject, trial: Trial) -> str:
    """The penalty is subtracted as often as an id is in the output, and not for the prompt."""
    return _require_edits(subject, trial, *({"frequency_penalty": f} for f in (0.1, 2.0, -2.0, 1.3)))


@_register_edit("process presence", "presence_penalty")
def presence(subject: ProcessSubject, trial: Trial) -> str:
    """The penalty is subtracted once from ids in the output, and not for the prompt."""
    return _require_edits(subject, trial, *({"presence_penalty": p} for p in (0.1, 2.0, -2.0, 1.3)))


@_register_edit("process bias", "logit_bias")
def bias(subject: ProcessSubject, trial: Trial) -> str:
    """Each bias is added to its id, whether that occurred or not."""
    top = subject.vocab_size(_VOCAB_SIZE) - 1
    return _require_edits(
        subject,
        trial,
        {"logit_bias": {0: 0.1, 5: -100.0, top: 7.7}},
        {"logit_bias": {t: t / 7 for t in range(100)}},
    )


@_register_edit("process allowed ids", "allowed_token_ids")
def allowed_ids(subject: ProcessSubject, trial: Trial) -> str:
    """All ids but the allowed ones get -inf, in the requests that name some."""
    top = subject.vocab_size(_VOCAB_SIZE) - 1
    cases = [top], [0, 31, 32, 63, top - 1]
    return _require_edits(subject, trial, *({"allowed_token_ids": ids} for ids in cases))


@_register_edit("process bad words", "bad_words")
def bad_words(subject: ProcessSubject, trial: Trial) -> str:
    """The last id of a sequence gets -inf where the ids before it end the output, and only there."""
    return _require_edits(
        subject,
        trial,
        {"bad_words": [[9]]},
        {"bad_words": [[31, 32, 8], [32, 10], [31, 10, 11], [5, 32, 12]]},
        {"bad_words": [[*_OUTPUT, 14], [0, *_OUTPUT, 15], [299, *_OUTPUT, 16]]},
        {"bad_words": [[32, 17], [17]]},
    )


@_register_edit("process min tokens", "min_tokens")
def min_tokens(subject: ProcessSubject, trial: Trial) -> str:
    """Stop ids get -inf until so many tokens are in the output; those of the prompt do not count."""
    least = (len(_OUTPUT) - 1, len(_OUTPUT), len(_OUTPUT) + 1, 40)
    return _require_edits(subject, trial, *({"min_tokens": n, "stop_token_ids": [2, 5, 250]} for n in least))


@_register_edit("process bitmask", "bitmask")
def bitmask(subject: ProcessSubject, trial: Trial) -> str:
    """Ids whose bit is not set get -inf, to the last bit of the last word."""
    sizes = [subject.vocab_size(size) for size in (1, 31, 32, 33, 300, 1025)]
    for vocab_size in sizes:
        for dtype in subject.dtypes:
            rng = trial.generator(f"{vocab_size}, {dtype}")
            engine = subject.engine({s: EditRequest(SamplingParams()) for s in range(4)}, 4, vocab_size)
            allowed = rng.random((4, vocab_size)) < 0.5
            allowed[0], allowed[1], allowed[2:, -1] = True, False, [True, False]
            logits = subject.logits(rng, 4, vocab_size, dtype)
            subject.check_edits(
                trial, f"{vocab_size} ids, {dtype}", engine, range(4), logits, allowed=allowed
            )
    return f"{len(sizes)} vocabularies in {len(subject.dtypes)} dtypes"


@properties.required("process order")
def order(subject: ProcessSubject, trial: Trial) -> str:
    """All edits at once are applied in their order, and rounded to the dtype once, at the end."""
    vocab_size, rows = subject.vocab_size(_VOCAB_SIZE), 12
    for dtype in subject.dtypes:
        rng = trial.generator(str(dtype))
        requests = {slot: random_edits(rng, vocab_size) for slot in range(rows)}
        engine = subject.engine(requests, rows, vocab_size)
        logits = subject.logits(rng, rows, vocab_size, dtype)
        allowed = rng.random((rows, vocab_size)) < 0.7
        subject.check_edits(trial, str(dtype), engine, range(rows), logits, allowed=allowed)
    return f"{rows} requests in {len(subject.dtypes)} dtypes"


def random_edits(rng: Generator, vocab_size: int) -> EditRequest:
    """Draw a request of several edits over few common ids; the prompt ends with placeholders."""
    token_pool = rng.permutation(vocab_size)[:12]

    def ids(count: int) -> list[int]:
        return [int(token) for token in rng.choice(token_pool, count)]

    fields: dict[str, Any] = {
        "repetition_penalty": float(rng.uniform(0.5, 2.0)),
        "frequency_penalty": float(rng.uniform(-2.0, 2.0)),
        "presence_penalty": float(rng.uniform(-2.0, 2.0)),
        "logit_bias": {token: float(rng.normal(0.0, 5.0)) for token in ids(5)},
        "allowed_token_ids": sorted({*ids(8), *rng.integers(0, vocab_size, vocab_size // 2).tolist()}),
        "bad_words": [ids(1), ids(2), ids(3), ids(2)],
        "min_tokens": int(rng.integers(0, 12)),
        "stop_token_ids": sorted(set(ids(2))),
    }
    chosen_fields = {name: value for name, value in fields.items() if rng.random() < 0.8}
    if "min_tokens" in chosen_fields:
        chosen_fields["stop_token_ids"] = fields["stop_token_ids"]
    prompt = [*ids(int(rng.integers(0, 8))), -1, vocab_size]
    return EditRequest(SamplingParams(**chosen_fields), prompt, ids(int(rng.integers(0, 12))))
