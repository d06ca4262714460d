"""Edits of logits in the V2 runner: the tokens that tokendraw draws for the same requests without vLLM."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import tokendraw
import tokendraw_vllm
from tokendraw_vllm import _v2_edits
from vllm_stand_in import V2Engine, request

V, STEPS = 40, 12
EDITS = {
    "repetition": {"repetition_penalty": 1.7},
    "frequency": {"frequency_penalty": 1.1},
    "presence": {"presence_penalty": 2.0},
    "bias": {"logit_bias": {3: 2.5, 9: -4.0}},
    "allowed": {"allowed_token_ids": [1, 4, 9, 17, 30]},
    "bad words": {"bad_words": [[5], [9, 4], [30, 30]]},
    "least length": {"min_tokens": 6, "stop_token_ids": [4, 9, 17]},
    "all": {
        "repetition_penalty": 0.6,
        "frequency_penalty": -0.5,
        "presence_penalty": 0.3,
        "logit_bias": {7: 3.0},
        "bad_words": [[7, 7]],
        "min_tokens": 3,
        "stop_token_ids": [8],
    },
}
"""Edits by tokendraw's names."""
VLLMS_NAMES = {"bad_words": "bad_words_token_ids", "stop_token_ids": "all_stop_token_ids"}
PROMPT = [4, 9, 9, 2]


def vllms(edits):
    """The same edits by vLLM's names."""
    return {VLLMS_NAMES.get(name, name): value for name, value in edits.items()}


def step_logits(rows, step):
    """Logits [rows, V] of a step, the same in each row, so that a request's tokens do not depend on its row."""
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(V, generator=generator) * 2.0).to(torch.bfloat16).repeat(rows, 1)


@pytest.fixture
def draws(vllm, monkeypatch):
    """Logits that were drawn from, by call: (dtype, rows)."""
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    calls, sample = [], tokendraw.Sampler.sample

    def noted(self, logits, metadata):
        calls.append((logits.dtype, logits.shape[0]))
        return sample(self, logits, metadata)

    monkeypatch.setattr(tokendraw.Sampler, "sample", noted)
    return calls


def tokendraws(params, prompt=PROMPT, output=(), steps=STEPS):
    """The tokens of a request that tokendraw edits and draws by itself, without vLLM."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    processor = tokendraw.load("process_logits", "native", device="cpu")
    slots = tokendraw.RequestSlots(1, 100, V)
    slots.add(0, params, prompt, output)
    row, tokens = torch.zeros(1, dtype=torch.int64), []
    for step in range(steps):
        logits = processor.process(step_logits(1, step).float(), slots, row)
        position = [len(prompt) + len(output) + step - 1]
        ids = sampler.sample(logits, slots.metadata(row, position)).token_ids
        slots.append(row, ids)
        tokens += ids.tolist()
    return tokens


KIND = {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "seed": 11}


@pytest.mark.parametrize("neighbours", [False, True], ids=["alone", "among others"])
@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_a_request_with_edits_draws_the_tokens_that_tokendraw_draws_for_it(draws, edits, neighbours):
    engine = V2Engine(V)
    engine.add(5, request(**KIND, **vllms(edits)), PROMPT)
    if neighbours:
        engine.add(0, request(top_p=0.8, seed=3), [1, 2])
        engine.add(1, request(temperature=0.0), [3])
        engine.add(7, request(seed=4, presence_penalty=0.5), [7, 7, 7])
    tokens = []
    for step in range(STEPS):
        slots = ([1, 5, 0, 7], [5, 7, 1], [0, 5])[step % 3] if neighbours else [5]
        tokens.append(engine.step(step_logits(len(slots), step), slots)[slots.index(5)])
    assert tokens == tokendraws(tokendraw.SamplingParams(**KIND, **edits), PROMPT)
    assert {dtype for dtype, _ in draws} == {torch.float32, torch.bfloat16} if neighbours else {torch.float32}


def test_rows_without_edits_draw_from_the_model_s_logits_in_any_company(draws):
    plain, texts = {"temperature": 0.8, "top_k": 9, "seed": 6}, []
    for edits in ({}, {"presence_penalty": 1.0}):
        engine = V2Engine(V)
        engine.add(2, request(**plain), PROMPT)
        engine.add(4, request(seed=1, **edits), PROMPT)
        texts.append([engine.step(step_logits(2, step), [4, 2])[1] for step in range(STEPS)])
    assert texts[0] == texts[1]
    assert draws == [(torch.bfloat16, 2)] * STEPS + [(torch.bfloat16, 2), (torch.float32, 1)] * STEPS


def test_greedy_rows_with_edits_get_the_argmax_of_the_edited_logits(draws):
    engine = V2Engine(V)
    engine.add(0, request(temperature=0.0, logit_bias={23: 100.0}), PROMPT)
    engine.add(1, request(temperature=0.0, presence_penalty=2.0), PROMPT)
    engine.add(2, request(seed=1))
    tokens = [engine.step(step_logits(3, step), [0, 1, 2])[:2] for step in range(6)]
    greedy = tokendraw.SamplingParams(temperature=0.0, presence_penalty=2.0)
    assert tokens == [[23, token] for token in tokendraws(greedy, steps=6)]


def test_a_request_that_comes_back_counts_what_it_had_drawn(draws):
    edits = {"frequency_penalty": 1.5, "min_tokens": 8, "stop_token_ids": [4, 9], "logit_bias": {4: 9.0}}
    engine = V2Engine(V)
    engine.add(3, request(**KIND, **vllms(edits)), PROMPT, [4, 4, 17])
    tokens = [engine.step(step_logits(1, step), [3])[0] for step in range(STEPS)]
    assert tokens == tokendraws(tokendraw.SamplingParams(**KIND, **edits), PROMPT, [4, 4, 17])


def test_a_prompt_that_is_computed_in_parts_is_counted_once(draws):
    engine = V2Engine(V)
    engine.add(3, request(**KIND, frequency_penalty=1.5), PROMPT)
    engine.add(6, request(seed=1, frequency_penalty=1.5), PROMPT)
    for seen in (1, 3):  # beside a request that decodes; what these steps draw is dropped
        engine.step(step_logits(2, 77), [3, 6], {3: seen})
    tokens = [engine.step(step_logits(2, step), [6, 3])[1] for step in range(STEPS)]
    assert tokens == tokendraws(tokendraw.SamplingParams(**KIND, frequency_penalty=1.5))


def test_a_slot_edits_for_its_own_request_alone(draws):
    engine = V2Engine(V)
    engine.add(0, request(seed=1, logit_bias={7: 100.0}), PROMPT)
    assert engine.step(step_logits(1, 0), [0]) == [7]
    engine.add(0, request(seed=1, logit_bias={8: 100.0}), PROMPT)
    assert engine.step(step_logits(1, 0), [0]) == [8]
    engine.add(0, request(seed=1), PROMPT)
    plain = engine.step(step_logits(1, 0), [0])
    assert [dtype for dtype, _ in draws] == [torch.float32, torch.float32, torch.bfloat16]
    assert plain == tokendraws(tokendraw.SamplingParams(seed=1), steps=1)


@pytest.mark.parametrize(
    "edits",
    [
        {"biased": 3},
        {"min_tokens": 2, "all_stop_token_ids": {4}, "structured_outputs": "a grammar"},
        {"logit_bias": {3: float("inf")}},
        {"bad_words_token_ids": [[1] * 33]},
    ],
    ids=["another processor", "a grammar beside min_tokens", "an infinite bias", "a long bad word"],
)
def test_other_edits_are_vllms_and_so_is_their_batch(draws, edits):
    engine = V2Engine(V)
    engine.add(0, request(seed=1, **edits), PROMPT)
    engine.add(1, request(seed=1, presence_penalty=1.0), PROMPT)
    engine.step(step_logits(2, 0), [0, 1])
    engine.step(step_logits(1, 1), [1])
    assert draws == [(torch.float32, 2), (torch.float32, 1)]
    assert engine.sampler._tokendraw.may_draw_raw(np.array([1]))
    assert not engine.sampler._tokendraw.may_draw_raw(np.array([0, 1]))


def test_a_batch_that_vllm_edits_counts_for_the_later_ones(draws):
    engine = V2Engine(V)
    engine.add(2, request(**KIND, presence_penalty=2.0, repetition_penalty=1.3), PROMPT)
    engine.add(3, request(seed=1, biased=7), PROMPT)
    engine.add(4, request(temperature=0.0), PROMPT)
    for slots in ([2, 3], [3, 2]):
        engine.step(step_logits(2, 50), slots)
    engine.step(step_logits(1, 51), [4])
    assert len(engine.tokens[2]) == len(PROMPT) + 2
    output = engine.tokens[2][len(PROMPT) :]
    tokens = [engine.step(step_logits(1, step), [2])[0] for step in range(6)]
    params = tokendraw.SamplingParams(**KIND, presence_penalty=2.0, repetition_penalty=1.3)
    assert tokens == tokendraws(params, PROMPT, output, steps=6)


def test_missed_steps_leave_the_request_to_vllm(draws, log_lines):
    engine = V2Engine(V)
    engine.add(2, request(seed=1, presence_penalty=2.0), PROMPT)
    engine.step(step_logits(1, 0), [2])
    engine.tokens[2] += [3, 3]
    engine.step(step_logits(1, 1), [2])
    assert not engine.sampler._tokendraw.may_draw_raw(np.array([2]))
    assert log_lines()[-1] == (
        "WARNING",
        "tokendraw: V2 editing left alone: steps of a request were drawn elsewhere, so its tokens are unknown",
    )


def test_requests_that_ended_leave_their_room_to_others(draws, monkeypatch):
    """The limit of memory has room for two requests."""
    monkeypatch.setattr(_v2_edits, "MAX_MEMORY_BYTES", 2 * _v2_edits.request_bytes(128, V))
    engine = V2Engine(V)
    for slot in (0, 1, 2):
        engine.add(slot, request(seed=1, presence_penalty=1.0), PROMPT)
    may_draw_raw = engine.sampler._tokendraw.may_draw_raw
    assert [may_draw_raw(np.array([slot])) for slot in (0, 1, 2)] == [True, True, False]
    engine.remove(0)
    engine.add(2, request(seed=1, presence_penalty=1.0), PROMPT)
    assert [may_draw_raw(np.array([slot])) for slot in (1, 2)] == [True, True]


def test_vllms_flag_for_edits_is_unchanged(draws):
    engine = V2Engine(V)
    for slot, edits in enumerate(({}, *map(vllms, EDITS.values()))):
        engine.add(slot if slot < 8 else 0, request(temperature=0.0, **edits))
    assert engine.sampler.needs_logits_processing.tolist() == [True] * 8
    engine.add(0, request(temperature=0.0))
    assert not engine.sampler.needs_logits_processing[0]


@pytest.mark.parametrize("fails_at", ["process", "append"])
def test_failing_edits_are_vllms_from_then_on_and_the_draws_tokendraw_s(
    draws, log_lines, monkeypatch, fails_at
):
    engine = V2Engine(V)
    engine.add(0, request(seed=1, presence_penalty=1.0), PROMPT)
    engine.add(1, request(seed=2), PROMPT)
    first = engine.step(step_logits(2, 0), [0, 1])
    edits = engine.sampler._tokendraw._edits

    def broken(*given):
        if fails_at == "process":
            given[0].fill_(7.0)  # in the middle of its work
        raise RuntimeError("no kernel image")

    if fails_at == "process":
        monkeypatch.setattr(edits, "_processor", _v2_edits.Processor("native", broken))
    else:
        monkeypatch.setattr(edits._mirror.requests, "append", broken)
    draws.clear()
    for step in range(1, 4):
        engine.step(step_logits(2, step), [0, 1])  # asserts that the logits are as they were
    engine.add(2, request(seed=1, presence_penalty=1.0), PROMPT)
    engine.step(step_logits(1, 1), [2])
    engine.step(step_logits(1, 1), [1])
    assert [len(first), *draws] == [2, *[(torch.float32, 2)] * 3, (torch.float32, 1), (torch.bfloat16, 1)]
    assert log_lines()[1:] == [
        (
            "WARNING",
            "tokendraw: V2 editing is vLLM's own again: 'native' raised RuntimeError: no kernel image",
        )
    ]


def test_a_draw_that_fails_behind_the_edits_hands_back_to_vllm(draws, log_lines, monkeypatch):
    engine = V2Engine(V)
    engine.add(0, request(seed=1, presence_penalty=1.0), PROMPT)
    engine.add(1, request(seed=2), PROMPT)
    sample = tokendraw.Sampler.sample

    def broken(self, logits, metadata):
        if logits.dtype is torch.float32:
            raise RuntimeError("no kernel image")
        return sample(self, logits, metadata)

    monkeypatch.setattr(tokendraw.Sampler, "sample", broken)
    assert [engine.step(step_logits(2, step), [0, 1]) for step in range(3)] == [[0, 0]] * 3
    assert [line for _, line in log_lines()[1:]] == [
        "tokendraw: V2 sampler is vLLM's own again: 'native' raised RuntimeError: no kernel image"
    ]


def test_without_a_processor_vllm_edits_and_the_log_says_so(vllm, log_lines, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    load = tokendraw.load

    def refuse(operation, *given, **named):
        if operation == "process_logits":
            raise tokendraw.SamplerUnavailableError("nobody edits here")
        return load(operation, *given, **named)

    monkeypatch.setattr(tokendraw, "load", refuse)
    tokendraw_vllm.register()
    engine = V2Engine(V)
    engine.add(0, request(seed=1, presence_penalty=1.0), PROMPT)
    engine.step(step_logits(1, 0), [0])
    assert not engine.sampler._tokendraw.may_draw_raw(np.array([0]))
    assert [line for _, line in log_lines()][1:] == [
        "tokendraw: V2 editing left alone: SamplerUnavailableError: nobody edits here"
    ]


_READS: Final = frozenset(
    (
        *(
            "__array__",
            "__bool__",
            "__complex__",
            "__contains__",
            "__float__",
            "__format__",
            "__index__",
            "__int__",
        ),
        *("__repr__", "allclose", "argwhere", "bincount", "cpu", "equal", "histc", "is_nonzero", "item"),
        *("masked_select", "nonzero", "numpy", "tolist", "unique", "unique_consecutive"),
    )
)
_INDEXING: Final = ("__getitem__", "__setitem__")
_COPIES: Final = ("as_tensor", "tensor")


class HostRead(Exception):  # noqa: N818 - a finding about a filter
    """A torch operation read a value on the host; the message names the operation."""


class NoHostReads(TorchFunctionMode):
    """Context that raises :class:`HostRead` for operations with a read on the host."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, or refuse it."""
        name, options = getattr(func, "__name__", str(func)), dict(kwargs or {})
        if name in _READS or _waits(name, args, options):
            raise HostRead(f"{name} reads a value on the host")
        return func(*args, **options)


def _waits(name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Tell whether the arguments of an operation make the host wait."""
    if name in _INDEXING:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in index)
    if name in _COPIES:  # from the host to a device, or a tensor's value
        return "device" in options or isinstance(args[0], Tensor)
    if name == "to":
        return any(str(each) == "cpu" for each in (*args[1:], *options.values()))
    return name == "where" and len(args) + len(options) == 1


class Operations(NoHostReads):
    """Notes the operations of torch that a GPU launches; refuses operations that wait for a GPU."""

    NO_LAUNCHES = ("__get__", "__getitem__", "__len__", "empty", "size", "stride", "dim")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, arguments=(), named=None):
        if function.__name__ not in self.NO_LAUNCHES:
            self.names.append(function.__name__)
        return super().__torch_function__(function, types, arguments, named)


@pytest.mark.parametrize(
    ("edited", "launches"),
    [
        ([1], ["append", "copy_", "process", "draw", "draw", "copy_"]),
        ([0, 1, 2], ["append", "copy_", "process", "draw"]),
        (
            [0, 2],
            [
                *("index_select", "append", "index_select", "copy_", "process"),
                *("draw", "index_select", "draw", "index_copy_"),
            ],
        ),
    ],
    ids=["one row", "all rows", "rows apart"],
)
def test_a_decoding_step_launches_little_beside_the_draws(draws, monkeypatch, edited, launches):
    """Nothing of it reads a value of a tensor, which would wait for a GPU."""
    engine = V2Engine(V)
    for slot in range(3):
        engine.add(slot, request(seed=1, presence_penalty=1.0 if slot in edited else 0.0), PROMPT)
    for step in range(2):
        engine.step(step_logits(3, step), [0, 1, 2])
    slots, operations = engine.sampler._tokendraw, Operations()

    def noted(name, result):
        def call(*given):
            operations.names.append(name)
            return result(*given)

        return call

    slots._edits._mirror.requests.appender = noted("append", lambda *given: None)
    processor = _v2_edits.Processor("native", noted("process", lambda logits, *given: logits))
    monkeypatch.setattr(slots._edits, "_processor", processor)
    ids = [torch.zeros(count, dtype=torch.int64) for count in range(4)]
    drawn = noted("draw", lambda logits, metadata: SimpleNamespace(token_ids=ids[len(logits)]))
    slots._replacement.sampler = SimpleNamespace(name="native", sample=drawn)
    mapping, given = torch.tensor([0, 1, 2]), (torch.full((3,), 5), torch.full((3,), 8, dtype=torch.int32))
    lengths, logits = np.array([6, 6, 6]), step_logits(3, 2)
    with operations:
        engine.sampler.sample(logits, mapping, mapping, np.array([0, 1, 2]), *given, None, lengths)
    assert operations.names == launches
