"""The subject and the lines of ``process_logits``: each edit by itself, random requests, drafts and foreign slots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from tokendraw import Drafts, RequestSlots, SamplingParams
from tokendraw.plugin import EDITS, Call, Edit, EditFacts
from tokendraw_testing import exact
from tokendraw_testing.kit.device import capture
from tokendraw_testing.kit.property import OperationKit, Properties, Refusal, offers
from tokendraw_testing.kit.subject import OperationSubject, require_unadvertised
from tokendraw_testing.kit.trial import Trial, bits
from tokendraw_testing.reference import Array
from tokendraw_testing.reference_edits import edit as reference_edit

properties = Properties("process_logits")

# Requests in slots with edits of their logits, as an engine adds, extends and removes them, and random ones.

MAX_TOKENS: Final = 64
PENALTIES: Final[tuple[Edit, ...]] = "repetition_penalty", "frequency_penalty", "presence_penalty"
_PLAIN_PARAMS: Final = SamplingParams()


@dataclass
class EditRequest:
    """Parameters, prompt and output of a request in a slot."""

    params: SamplingParams = _PLAIN_PARAMS
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)


class Engine:
    """Slots and their requests, which ask for nothing but ``edits``."""

    def __init__(
        self, num_slots: int, vocab_size: int, device: torch.device, edits: Collection[Edit] = EDITS
    ) -> None:
        self.slots = RequestSlots(num_slots, MAX_TOKENS, vocab_size, device=device)
        self.requests: dict[int, EditRequest] = {}
        self.edits = edits

    def add(self, requests: Mapping[int, EditRequest]) -> None:
        """Add requests to empty slots, and append their outputs token by token."""
        off: dict[str, Any] = {n: getattr(_PLAIN_PARAMS, n) for n in EDITS[1:] if n not in self.edits}
        for slot, request in requests.items():
            params = replace(request.params, **off)
            self.slots.add(slot, params, prompt_token_ids=request.prompt)
            self.requests[slot] = EditRequest(params, request.prompt)
        for tokens in itertools.zip_longest(*(request.output for request in requests.values())):
            pairs = zip(requests, tokens, strict=True)
            self.append({slot: token for slot, token in pairs if token is not None})

    def append(self, tokens: Mapping[int, int]) -> None:
        columns = torch.tensor([[*tokens], [*tokens.values()]], dtype=torch.int64, device=self.slots.device)
        self.slots.append(*columns)
        for slot, token in tokens.items():
            self.requests[slot].output.append(token)

    def remove(self, slot: int) -> None:
        self.slots.remove(slot)
        del self.requests[slot]


def random_request(rng: Generator, vocab_size: int, only: Edit | None = None) -> EditRequest:
    """Draw a request of some edits, with common or separate ids; its prompt ends with placeholders.

    :param only: the edit that it asks for, beside those that it shows in; None: none, some or all.
    """
    pool = rng.integers(0, vocab_size, int(rng.integers(1, 20)))

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    def ids(most: int, least: int = 0) -> list[int]:
        return rng.choice(pool, int(rng.integers(least, most + 1))).tolist()  # type: ignore[no-any-return]

    prompt, output = [*ids(MAX_TOKENS // 3), -1, vocab_size], ids(MAX_TOKENS // 3)
    start = output[(at := int(rng.integers(len(output) + 1))) : at + int(rng.integers(1, 3))] or ids(2, 1)
    num_tokens = int(one_of(len(output) - 1, len(output), len(output) + 1, rng.integers(30)))
    fields: dict[Edit, dict[str, Any]] = {
        "repetition_penalty": {"repetition_penalty": one_of(1e-3, 3e4, rng.uniform(0.3, 3.0))},
        "frequency_penalty": {"frequency_penalty": one_of(2.0, -2.0, rng.uniform(-2.0, 2.0))},
        "presence_penalty": {"presence_penalty": one_of(2.0, -2.0, rng.uniform(-2.0, 2.0))},
        "logit_bias": {
            "logit_bias": {x: float(one_of(100.0, -100.0, rng.normal(0.0, 5.0))) for x in ids(8, 1)}
        },
        "allowed_token_ids": {
            "allowed_token_ids": sorted({*ids(8, 1), *rng.integers(0, vocab_size, rng.integers(40)).tolist()})
        },
        "bad_words": {"bad_words": [[*output[-rng.integers(1, 4) :], *ids(1, 1)], ids(4, 1), ids(2, 1)]},
        "min_tokens": {"min_tokens": max(1, num_tokens), "stop_token_ids": sorted(set(ids(4, 1)))},
        "dry_multiplier": {
            "dry_multiplier": rng.uniform(0.1, 5.0),
            "dry_base": one_of(1.0, 1.75, rng.uniform(1.0, 4.0), 1e20),
            "dry_allowed_length": int(rng.integers(0, 4)),
            "dry_penalty_last_n": int(one_of(-1, -1, 0, 1, rng.integers(MAX_TOKENS))),
            "dry_sequence_breakers": ids(2),
        },
        "penalty_last_n": {"penalty_last_n": int(one_of(0, 1, 2, rng.integers(MAX_TOKENS)))},
        "thinking_budget": {"thinking_budget": (int(one_of(0, 1, 2, rng.integers(20))), start, ids(3, 1))},
    }
    shown = {"penalty_last_n": PENALTIES, "thinking_budget": ("logit_bias",)}
    chosen = {only, *shown.get(only or "", ())}
    if only is None:
        share = one_of(0.1, 0.5, 0.9)
        chosen = {name for name in fields if rng.random() < share / (3 if name == "thinking_budget" else 1)}
    asked = {name: value for edit in fields if edit in chosen for name, value in fields[edit].items()}
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in asked.items()}
    return EditRequest(SamplingParams(**plain), prompt, output)


def random_allowed(rng: Generator, rows: int, vocab_size: int) -> Array:
    """Draw bitmasks [rows, V] bool, of all ids, none, or a share of them."""
    return rng.random((rows, vocab_size)) < rng.choice([0.0, 0.01, 0.5, 0.99, 1.0, 1.0, 1.0], (rows, 1))


def pack_bitmask(allowed: Array) -> Any:
    """Pack [rows, V] bool into words [rows, ceil(V / 32)] int32; every second row sets the bits behind the last id."""
    rows, vocab_size = allowed.shape
    bits = np.zeros((rows, -(-vocab_size // 32) * 32), bool)
    bits[::2] = True
    bits[:, :vocab_size] = allowed
    return np.packbits(bits, axis=1, bitorder="little").view("<i4")


# Batches and their judge.

_VOCAB_SIZE: Final = 300
_EXTRA_ROWS: Final = 2
"""Rows of logits behind those of the last request."""


class ProcessSubject(OperationSubject):
    """A subject in the operation ``process_logits``."""

    operation = "process_logits"

    def vocab_size(self, size: int) -> int:
        return min(size, self.capabilities.max_vocab_size or size)

    def engine(self, requests: Mapping[int, EditRequest], num_slots: int, vocab_size: int) -> Engine:
        engine = Engine(num_slots, vocab_size, self.device, self.capabilities.edits)
        engine.add(requests)
        return engine

    @property
    def has_bitmask(self) -> bool:
        return "bitmask" in self.capabilities.edits


@dataclass(frozen=True, kw_only=True)
class _EditBatch(exact.Batch):
    """Edits of rows by their requests' slots, some with a bitmask or drafts."""

    subject: ProcessSubject
    engine: Engine
    order: Sequence[int]
    """The slot of each row, or request; one without a request asks for nothing."""
    rows: Tensor
    """Logits before the edits."""
    allowed: Array | None = None
    """[rows, V] bool, of the bitmask."""
    drafts: Sequence[Sequence[int]] | None = None
    """Of each request."""
    is_padded: bool = False
    """Whether drafts come padded, with counts that the device alone knows, integers are short, and rows lie behind."""

    method, edits = "process", True

    def __len__(self) -> int:
        return len(self.order)

    def __str__(self) -> str:
        words = "" if self.drafts is None else " with drafts"
        return f"{len(self.rows)} rows of {self.rows.shape[1]} ids in {self.rows.dtype}{words}"

    def select(self, order: Sequence[int]) -> _EditBatch:
        if self.drafts is not None:
            return self
        allowed = None if self.allowed is None else self.allowed[list(order)]
        slots, rows = [self.order[i] for i in order], self.rows[list(order)]
        return replace(self, order=slots, rows=rows, allowed=allowed)

    def arguments(self) -> dict[str, Any]:
        device, integers = self.subject.device, torch.int32 if self.is_padded else torch.int64
        words = None if self.allowed is None else torch.from_numpy(pack_bitmask(self.allowed)).to(device)
        drafts = None if self.drafts is None else Drafts.from_lists(self.drafts, device=device)
        if drafts is not None and self.drafts is not None and self.is_padded:
            width = max(map(len, self.drafts), default=0) + 1
            padded_ids = [[*ids, *[-1] * (width - len(ids))] for ids in self.drafts]
            drafts = Drafts(
                draft_token_ids=torch.tensor(padded_ids, dtype=integers, device=device),
                cu_num_logits=drafts.cu_num_logits.to(integers),
                max_drafts=width,
            )
        return {
            "logits": self.rows.clone(),
            "slots": self.engine.slots,
            "row_index": torch.tensor(list(self.order), dtype=integers, device=device),
            "bitmask": words,
            "drafts": drafts,
        }

    def state(self) -> dict[str, Any]:
        return {"tables": self.engine.slots.tables}

    def columns(self, output: Any) -> list[exact.Columns]:
        rows = bits(output).view(len(output), -1).cpu().numpy()
        return [{"bits": row} for row in rows]

    def judge(self, trial: Trial, what: str) -> None:
        arguments = self.arguments()
        self.subject.make(self.call(self.subject, arguments))
        self.require(trial, f"{what}, {self}", self.rows.cpu(), arguments["logits"].cpu())

    def require(self, trial: Trial, what: str, before: Tensor, result: Tensor) -> None:
        lists = self.drafts or [()] * len(self.order)
        requests = [self.engine.requests.get(slot, EditRequest()) for slot in self.order]
        expected = [
            (request, drafts[:j])
            for request, drafts in zip(requests, lists, strict=True)
            for j in range(len(drafts) + 1)
        ]
        expected += [(EditRequest(), ())] * (len(before) - len(expected))
        for row, (request, drafted) in enumerate(expected):
            mask = None if self.allowed is None else self.allowed[row]
            where = f"{what}: row {row}, after {len(drafted)} drafts"
            output = [*request.output, *drafted]
            require_edits(trial, where, before[row], result[row], request, output, mask)


_BITS: Final = {2: torch.int16, 4: torch.int32}
_DIGITS: Final = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
_LEAST: Final = {torch.float32: -149, torch.float16: -24, torch.bfloat16: -133}
_ULPS: Final = 4
"""Most that rounding costs: half an ulp each for the bias, the repetition penalty, the product of the frequency
penalty, the cost of DRY and the three subtractions, and that of the bias once more, as a repetition penalty may double
it in ulp."""


def require_edits(
    trial: Trial,
    where: str,
    before: Tensor,
    result: Tensor,
    request: EditRequest,
    output: list[int],
    mask: Array | None,
) -> None:
    """Judge a row by the formulas: float32 bit for bit, and float64 within a few units in the last place."""
    dtype, view = result.dtype, _BITS[result.element_size()]
    single = reference_edit(before.to(torch.float32).numpy(), request.params, request.prompt, output, mask)
    double = reference_edit(before.to(torch.float64).numpy(), request.params, request.prompt, output, mask)
    expected = torch.from_numpy(single.values).to(dtype)
    is_unedited, result64 = torch.from_numpy(~single.edited), result.to(torch.float64).numpy()
    is_unequal = torch.where(is_unedited, before.view(view), expected.view(view)) != result.view(view)
    is_unequal &= is_unedited | ~(expected.isnan() & result.isnan())
    with np.errstate(invalid="ignore"):
        is_far = np.abs(result64 - double.values) > _ULPS * _ulp(double.scale, dtype)
        is_far &= np.isfinite(double.values) & np.isfinite(result64)
    for (token,) in np.argwhere(is_unequal.numpy() | (is_far & single.edited))[:1].tolist():
        needed = float((before if is_unedited[token] else expected)[token])
        reason = "no edit" if is_unedited[token] else f"float64: {float(double.values[token]):.9g}"
        request_text = _edits_text(request.params) or "nothing"
        trial.require(
            False,
            f"{where}, id {token}: needs {needed:.9g} ({reason}), found {float(result[token]):.9g}, where a request "
            f"asks for {request_text}, its prompt is {request.prompt}, its output {output}, its bitmask "
            f"{'none' if mask is None else 'allows it' if mask[token] else 'forbids it'}",
        )


def _edits_text(params: SamplingParams) -> str:
    defaults = SamplingParams()
    values = {part.name: getattr(params, part.name) for part in fields(params)}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value != getattr(defaults, name))


def _ulp(scale: Array, dtype: torch.dtype) -> Array:
    """Compute the distance of neighbours in a dtype, at numbers as large as ``scale``."""
    magnitude = np.where(np.isfinite(scale), scale, 1.0)
    exponent = np.frexp(magnitude)[1] - 1
    return np.asarray(np.exp2(np.maximum(exponent - _DIGITS[dtype], _LEAST[dtype]).astype(np.float64)))


_SPECIAL_VALUES: Final = (float("-inf"), float("inf"), float("nan"), 0.0, -0.0)


def _logits(rng: Generator, engine: Engine, rows: int, dtype: torch.dtype) -> Tensor:
    """Draw logits, often with special values at ids that occurred and others."""
    size, device = engine.slots.vocab_size, engine.slots.device
    logits = torch.from_numpy(rng.normal(0.0, 4.0, (rows, size))).to(dtype).to(device)
    if rng.random() < 0.5:
        seen = [token for request in engine.requests.values() for token in request.output]
        top = torch.finfo(dtype).max
        values = [*_SPECIAL_VALUES, top, -top, torch.finfo(dtype).tiny]
        ids = rng.choice([*seen, *rng.integers(0, size, len(values))], len(values))
        logits[:, torch.from_numpy(ids).to(device)] = torch.tensor(values, dtype=dtype, device=device)
    return logits


def _random_batch(
    subject: ProcessSubject,
    rng: Generator,
    engine: Engine,
    order: Sequence[int],
    dtype: torch.dtype,
    *,
    is_masked: bool,
    drafts: Sequence[Sequence[int]] | None = None,
    is_padded: bool = False,
) -> _EditBatch:
    """Make edits of random logits, with a random bitmask where it is masked and bitmasks are served."""
    count = len(order) + sum(map(len, drafts or ()))
    is_masked = is_masked and subject.has_bitmask
    allowed = random_allowed(rng, count, engine.slots.vocab_size) if is_masked else None
    behind = _EXTRA_ROWS if is_padded and drafts is not None and allowed is None else 0
    rows = _logits(rng, engine, count + behind, dtype)
    given: dict[str, Any] = {"allowed": allowed, "drafts": drafts, "is_padded": is_padded}
    return _EditBatch(subject=subject, engine=engine, order=order, rows=rows, **given)


def _refusal(edit: Edit | None = None) -> Refusal:
    """Make the refusal of a row with an edit, or of drafts."""

    def call(subject: ProcessSubject) -> Call:
        edits = [*subject.capabilities.edits, *([edit] if edit else [])]
        engine, drafts = Engine(1, 8, subject.device, edits), None if edit else [[3]]
        request = random_request(np.random.default_rng(1), 8, edit) if edit else EditRequest()
        engine.add({0: EditRequest(request.params)})  # which have an effect
        rows = torch.zeros(1 if edit else 2, 8, device=subject.device, dtype=subject.dtypes[0])
        allowed = np.ones((1, 8), bool) if edit == "bitmask" else None
        given: dict[str, Any] = {"rows": rows, "allowed": allowed, "drafts": drafts}
        return _EditBatch(subject=subject, engine=engine, order=[0], **given).call(subject)

    return Refusal(call=call)


def _offers_edit(edit: Edit) -> Callable[[Any], bool]:
    """Make the predicate of capabilities with an edit; a window is part of the penalties where there are none."""
    if edit != "penalty_last_n":
        return offers("edits", edit)
    return lambda capabilities: edit in capabilities.edits or not {*PENALTIES} & {*capabilities.edits}


_REFUSALS: Final = (
    *((_offers_edit(edit), _refusal(edit)) for edit in EDITS),
    (lambda c: c.drafts, _refusal()),
)
_REPLAYS: Final = 5
_EACH_EDIT: Final = 24
"""Requests of an edit by itself."""


@properties.required("process edits")
def single_edits(subject: ProcessSubject, trial: Trial) -> str:
    """Each advertised edit by itself changes logits by its formula, and no more; unadvertised edits are refused."""
    sizes, num_rows = dict.fromkeys(map(subject.vocab_size, (_VOCAB_SIZE, 1, 31, 32, 33, 1025))), 0
    for size, (turn, dtype) in ((size, each) for size in sizes for each in enumerate(subject.dtypes)):
        rng = trial.generator(f"{size}, {dtype}")
        copies = subject.effort.rows(_EACH_EDIT, least=8) if size == subject.vocab_size(_VOCAB_SIZE) else 1
        own = [edit for edit in EDITS if edit in subject.capabilities.edits] * copies
        requests = dict(enumerate(random_request(rng, size, edit) for edit in own or EDITS[:1]))
        engine, order = subject.engine(requests, len(requests), size), range(len(requests))
        batch = _random_batch(subject, rng, engine, order, dtype, is_masked=turn % 3 != 1)
        batch.judge(trial, "single edits")
        num_rows += len(order)
    text = f"{num_rows} requests in {len(sizes)} vocabularies and {len(subject.dtypes)} dtypes"
    return text + require_unadvertised(subject, _REFUSALS)


_CASES: Final = 36
_VOCAB_SIZES: Final = (1, 2, 31, 33, 300, 1024, 1025, 5003, 50_257, 65_543, 131_113, 262_147)
_WEIGHTS: Final = np.array((1, 1, 2, 2, 8, 3, 3, 4, 2, 1, 1, 1))


@properties.required("process crossing", is_long=True)
def crossing(subject: ProcessSubject, trial: Trial) -> str:
    """Edits of random requests, drafts and slots, some of no request, are applied in order, rounded once, at any V."""
    rows = 0
    for number in range(subject.effort.rows(_CASES, least=12)):
        rng = trial.generator(f"case {number}")
        dtype = subject.dtypes[number % len(subject.dtypes)]
        size = _VOCAB_SIZE if number % 2 else int(rng.choice(_VOCAB_SIZES[:8]))
        rows += _steps(subject, rng, trial, dtype, subject.vocab_size(size))
    return f"{rows} rows of random requests in {len(subject.dtypes)} dtypes"


def fuzz(subject: ProcessSubject, rng: Generator, trial: Trial) -> str:
    """Edit the rows of some of the slots, at several steps of an engine."""
    dtype = subject.dtypes[rng.integers(len(subject.dtypes))]
    size = subject.vocab_size(int(rng.choice(_VOCAB_SIZES, p=_WEIGHTS / _WEIGHTS.sum())))
    rows = _steps(subject, rng, trial, dtype, size)
    return f"{rows} rows of {size} ids in {str(dtype).removeprefix('torch.')}"


def _steps(subject: ProcessSubject, rng: Generator, trial: Trial, dtype: torch.dtype, size: int) -> int:
    """Edit rows at some steps of an engine, whose requests come and go in any order; return their number."""
    most = min(subject.effort.rows(40, least=8), max(1, subject.effort.elements // (8 * size)))
    engine, num_rows = subject.engine({}, int(rng.integers(1, most + 1)), size), 0
    for step in range(int(rng.integers(1, 4))):
        for slot in [slot for slot in engine.requests if rng.random() < 0.5]:
            engine.remove(slot)
        slots = rng.permutation(engine.slots.num_slots).tolist()
        empty = [slot for slot in slots if slot not in engine.requests and rng.random() < 0.8]
        engine.add({slot: random_request(rng, size) for slot in empty})
        order = slots[: int(rng.integers(1, 2 * len(slots)))]
        if rng.random() < 0.5:  # slots that there are not
            order += [-1, len(slots), 2**31 - 1, -(2**31)]
        order = rng.permutation(order).tolist()
        drafts = None
        if subject.capabilities.drafts and rng.random() < 0.5:
            drafts = [_random_drafts(rng, engine.requests.get(slot, EditRequest()), size) for slot in order]
        is_padded, is_masked = rng.random() < 0.5, rng.random() < 0.5
        how: dict[str, Any] = {"is_masked": is_masked, "drafts": drafts, "is_padded": is_padded}
        _random_batch(subject, rng, engine, order, dtype, **how).judge(trial, f"step {step}")
        engine.append({slot: int(rng.integers(size)) for slot in order if slot in engine.requests})
        num_rows += len(order) + sum(map(len, drafts or ()))
    return num_rows


def _random_drafts(rng: Generator, request: EditRequest, vocab_size: int) -> list[int]:
    """Draw drafts from the request's ids, placeholders and bad words, or any id."""
    words = [token for word in request.params.bad_words or () for token in word]
    candidates = [*request.output, *request.prompt, *words, int(rng.integers(vocab_size))]
    return rng.choice(candidates, int(rng.choice([0, 1, 2, 5, 8, 12]))).tolist()  # type: ignore[no-any-return]


@properties.promised("process graph replay", "graph_safe")
def graph_replay(subject: ProcessSubject, trial: Trial) -> str:
    """A graph captured with empty slots follows requests that come, grow and go, and logits that change."""
    rng, rows, size = trial.generator("steps"), 16, subject.vocab_size(2000)
    engine = subject.engine({0: random_request(rng, size)}, rows, size)
    engine.slots.captured_edits = EditFacts.of(subject.capabilities.edits)
    logits = _logits(rng, engine, rows, subject.dtypes[0])
    row_index, processor = torch.arange(rows, device=subject.device), subject.built()
    processor.process(logits, engine.slots, row_index)  # compiles: a capture is no place for that
    engine.remove(0)
    replay, _ = capture(lambda: processor.process(logits, engine.slots, row_index))
    engine.add({slot: random_request(rng, size) for slot in range(rows)})
    batch = _EditBatch(subject=subject, engine=engine, order=range(rows), rows=logits)
    for step in range(_REPLAYS):
        logits.copy_(_logits(rng, engine, rows, subject.dtypes[0]))
        before = logits.cpu().clone()
        replay()
        batch.require(trial, f"replay {step + 1}", before, logits.cpu())
        engine.append({slot: int(rng.integers(0, size)) for slot in range(rows)})
        engine.remove(step)
        engine.add({step: random_request(rng, size)})
    return f"{_REPLAYS} replays"


def _examples(subject: ProcessSubject, rng: Generator, rows: int, size: int) -> Iterator[_EditBatch]:
    """Make batches of random requests in every dtype, with a bitmask, and one with drafts."""
    size = subject.vocab_size(size)
    engine = subject.engine({slot: random_request(rng, size) for slot in range(rows)}, rows, size)
    for turn, dtype in enumerate(subject.dtypes):
        order = rng.permutation(rows).tolist()
        yield _random_batch(subject, rng, engine, order, dtype, is_masked=turn % 3 != 1)
    if subject.capabilities.drafts and rows <= exact.MANY:
        drafts, dtype = [[1, 2][: slot % 3] for slot in range(rows)], subject.dtypes[0]
        yield _random_batch(subject, rng, engine, range(rows), dtype, is_masked=False, drafts=drafts)


KIT = OperationKit(
    view=ProcessSubject,
    properties=(
        *properties.all,
        *exact.lines("process_logits", "process ", _examples, device_shape=(16, 2000), graph=False),
    ),
    fuzz=fuzz,
)
