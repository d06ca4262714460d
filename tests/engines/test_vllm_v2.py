"""What the V2 sampler leaves to vLLM, and what a step costs the host.

A stand-in takes the place of vLLM: what is drawn is in test_vllm_runner.py and test_vllm_v2_itself.py.
"""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import tokendraw
import tokendraw_vllm
import vllm_stand_in
from call_tables import pairs
from tokendraw_vllm.v2 import edits as v2_edits
from vllm_engine import DraftingEngine, Engine

V, K, SLOTS = 40, 3, 8
VLLMS = 0
"""The token that the stand-in of vLLM draws, and the one that it emits for a request with drafts."""
BEST = 5


@pytest.fixture
def calls(vllm, monkeypatch):
    """What tokendraw is called with: (logits, metadata) of draws, and modes of verifications."""
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    noted = SimpleNamespace(draws=[], verifications=[])
    sample, verify = tokendraw.Sampler.sample, tokendraw.Sampler.verify

    def noted_sample(self, logits, metadata):
        noted.draws.append((logits, metadata))
        return sample(self, logits, metadata)

    def noted_verify(self, *given, mode):
        noted.verifications.append(mode)
        return verify(self, *given, mode=mode)

    monkeypatch.setattr(tokendraw.Sampler, "sample", noted_sample)
    monkeypatch.setattr(tokendraw.Sampler, "verify", noted_verify)
    return noted


def batch(rows):
    """The model's logits [rows, V], a single one far above the rest."""
    return torch.zeros(rows, V, dtype=torch.bfloat16).index_fill_(1, torch.tensor([BEST]), 30.0)


def may_draw_raw(engine, *slots):
    """Whether the model's logits of a batch need no edit of vLLM's."""
    return engine.sampler._tokendraw._batches.of(np.array(slots)).may_draw_raw


@pytest.mark.parametrize(("name", "asked"), pairs(Path(__file__).with_name("vllm_v2_edits_left_alone.txt")))
def test_a_batch_with_an_edit_that_is_vllms_is_drawn_behind_its_edits(calls, monkeypatch, name, asked):
    monkeypatch.setattr("vllm.envs.VLLM_BATCH_INVARIANT", name == "with batch invariance")
    engine = Engine(V, return_sampling_mask=True)
    engine.start(0, seed=1, top_k=1, **eval(asked))
    engine.start(1, seed=1, top_k=1, presence_penalty=1.0)
    assert engine.decode(batch(2), [0, 1]) == [7 if "biased" in asked else BEST, BEST]
    assert [(logits.dtype, len(logits)) for logits, _ in calls.draws] == [(torch.float32, 2)]
    assert (engine.sampler.processed[1] > -torch.inf).nonzero().tolist() == [[BEST]]
    assert not may_draw_raw(engine, 0, 1)


def test_watermarks_win_and_batches_without_any_are_drawn_behind_vllms_edits(calls):
    engine = Engine(V, kind="Watermarking")
    engine.start(0, temperature=0.7, top_k=1)
    engine.sampler.watermarking.np[:] = True
    assert engine.decode(batch(1), [0]) == [1]
    assert calls.draws == []
    engine.sampler.watermarking.np[:] = False
    assert engine.decode(batch(1), [0]) == [BEST]
    assert [logits.dtype for logits, _ in calls.draws] == [torch.float32]


@pytest.mark.parametrize("append_fails", [False, True])
def test_a_request_whose_steps_were_drawn_elsewhere_is_edited_by_vllm(
    calls, log_lines, monkeypatch, append_fails
):
    """Also where the tokens of the others cannot be appended in the same step."""
    engine, rows = Engine(V), batch(2)
    for slot in (2, 3):
        engine.start(slot, seed=1, presence_penalty=2.0)
    engine.decode(rows, [2, 3])
    engine.tokens[2] += [3, 3]
    if append_fails:
        monkeypatch.setattr(engine.sampler._tokendraw._edits.requests, "append", None)
    engine.decode(rows, [2, 3])
    assert [may_draw_raw(engine, slot) for slot in (2, 3)] == [False, not append_fails]
    unknown = "left alone: steps of a request were drawn elsewhere, so its tokens are unknown"
    failed = "is vLLM's own again: 'native' raised TypeError: 'NoneType' object is not callable"
    assert log_lines()[-1] == ("WARNING", f"tokendraw: V2 editing {failed if append_fails else unknown}")


def test_requests_beyond_the_limit_of_memory_are_edited_by_vllm_until_others_end(calls, monkeypatch):
    monkeypatch.setattr(v2_edits, "MAX_MEMORY_BYTES", 2 * v2_edits.request_bytes(128, V))
    engine = Engine(V)
    for slot in (0, 1, 2):
        engine.start(slot, seed=1, presence_penalty=1.0)
    assert [may_draw_raw(engine, slot) for slot in (0, 1, 2)] == [True, True, False]
    engine.stop(0)
    engine.start(2, seed=1, presence_penalty=1.0)
    assert [may_draw_raw(engine, slot) for slot in (1, 2)] == [True, True]


@pytest.mark.parametrize(
    ("options", "draft_vocabulary"),
    [
        ({"method": "synthetic"}, None),
        ({"method": "fly"}, None),
        ({"watermarks": "a key"}, None),
        ({}, V - 8),
    ],
)
def test_other_ways_to_judge_drafts_are_vllms(calls, options, draft_vocabulary):
    engine = DraftingEngine(V, K, **options)
    assert hasattr(engine.rejection_sampler, "_tokendraw") == ("watermarks" not in options)
    engine.start(0, seed=1)
    draft_logits = draft_vocabulary and torch.zeros(SLOTS, K, draft_vocabulary)
    assert engine.verify(batch(2), [0], [[1]], draft_logits=draft_logits) == [[VLLMS]]
    assert calls.verifications == []


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(
    ("asked", "is_plain"),
    [
        ({}, True),
        ({"seed": 3}, False),
        ({"extra_args": {"tokendraw": {"filter_order": "top_k_first"}}}, True),
    ],
)
def test_many_plain_drafts_are_verified_and_drawn_ones_are_left_to_vllm(calls, drawn, asked, is_plain):
    engine, requests = DraftingEngine(V, 1, drawn=drawn, slots=200), 200
    for slot in range(requests):
        engine.start(slot, **(asked if slot == 5 else {}))
    draft_logits = torch.zeros(requests, 1, V) if drawn else None
    engine.verify(batch(2 * requests), list(range(requests)), [[7]] * requests, draft_logits=draft_logits)
    assert len(calls.verifications) == (0 if drawn and is_plain else 1)


def test_a_sampler_without_row_seeds_gets_users_seeds_alone(calls):
    engine = Engine(V)
    assert engine.sampler._tokendraw.can_draw()
    engine.sampler._tokendraw._replacement.seeds_every_row = False
    engine.start(0, top_k=3)
    engine.start(1, top_k=3, seed=4)
    for slots in ([0], [0, 1]):
        engine.decode(batch(len(slots)), slots)
    assert [metadata.seed is not None for _, metadata in calls.draws] == [False, True]


def test_descriptions_of_batches_are_kept_and_not_without_end(calls):
    engine = Engine(400, slots=2)
    for top_k in range(1, 80):
        engine.start(0, top_k=top_k)
        engine.draw(torch.zeros(1, 400), [0], [3])
    assert engine.sampler._tokendraw._batches.described.cache_info().currsize == 64
    engine.draw(torch.zeros(1, 400), [0], [4])
    (_, one), (_, two) = calls.draws[-2:]
    assert one.memo is two.memo


class NoHostReads(TorchFunctionMode):
    """Refuses operations of torch that read a value on the host, for which a GPU would have to wait."""

    READS: Final = re.compile(
        "__(array|bool|contains|float|index|int|repr)__|allclose|argwhere|bincount|cpu|equal|item|masked_select|"
        "nonzero|numpy|tolist|unique|unique_consecutive"
    )

    def __torch_function__(self, function, types, arguments=(), named=None):
        assert not self._waits(function.__name__, arguments, named or {}), function.__name__
        return function(*arguments, **(named or {}))

    def _waits(self, name, arguments, named):
        if name in ("__getitem__", "__setitem__"):
            index = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
            return any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in index)
        if name in ("as_tensor", "tensor"):  # from the host to a device, or a tensor's value
            return "device" in named or isinstance(arguments[0], torch.Tensor)
        if name == "to":
            return any(str(each) == "cpu" for each in (*arguments[1:], *named.values()))
        return bool(self.READS.fullmatch(name)) or (name == "where" and len(arguments) + len(named) == 1)


@pytest.mark.parametrize("edited", [[1], [0, 1, 2], [0, 2]], ids=["one row", "all rows", "rows apart"])
def test_a_decoding_step_waits_for_no_device(calls, edited):
    engine = Engine(V)
    for slot in range(3):
        engine.start(slot, seed=1, presence_penalty=1.0 if slot in edited else 0.0)
    rows = batch(3)
    for _ in range(2):
        engine.decode(rows, [0, 1, 2])
    slots, ids = engine.sampler._tokendraw, [torch.zeros(count, dtype=torch.int64) for count in range(4)]
    slots._edits.requests.appender = lambda *given: None
    slots._edits._processor = SimpleNamespace(process=lambda logits, *given: logits)
    slots._replacement.sampler = SimpleNamespace(
        name="native", sample=lambda logits, metadata: SimpleNamespace(token_ids=ids[len(logits)])
    )
    mapping, given = torch.tensor([0, 1, 2]), (torch.full((3,), 5), torch.full((3,), 8, dtype=torch.int32))
    lengths = np.array([len(engine.tokens[slot]) for slot in range(3)])
    with NoHostReads():
        drawn, _ = engine.sampler.sample(rows, mapping, mapping, np.array([0, 1, 2]), *given, None, lengths)
    assert drawn is ids[3]


# Drafts.

SIZES = {"size": V, "kept_size": V, "dtype": torch.float32}


@pytest.mark.parametrize(("form", "given"), pairs(Path(__file__).with_name("vllm_drafts_left_alone.txt")))
def test_draws_of_drafts_of_another_form_are_vllms(calls, log_lines, monkeypatch, form, given):
    """The kernels run in test_vllm_v2_itself.py; here torch stands in their place."""
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr("tokendraw_vllm.v2.draft_kernels.keep_logits", vllm_stand_in.keep_logits)
    given = eval(given, {"V": V, "torch": torch})
    size, kept_size, dtype = (given.pop(name, default) for name, default in SIZES.items())
    engine = {"drawn": True} | given.pop("engine", {})
    for _ in range(2):  # an earlier one of the process too
        drafting = DraftingEngine(V, K, **engine)
    drafting.start(0, temperature=0.0)
    logits, cache = torch.arange(float(size))[None], torch.zeros(SLOTS, K, kept_size, dtype=dtype)
    assert vllm_stand_in.draft(drafting, logits, [0], [3], 0, cache, **given) == [VLLMS]
    assert not any("drafting" in line for _, line in log_lines())


@pytest.mark.parametrize(("target", "dtype"), [("sm_80", "bf16"), ("gfx90a", "fp32"), ("gfx1201", "bf16")])
def test_the_kernels_of_drafts_compile(target, dtype):
    """For the ends of the targets: see triton_stand_ins.py."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from tokendraw_vllm.v2 import draft_kernels as kernels
    from triton_stand_ins import machine_code

    ids, block = ("slots", "positions", "steps", "row_index", "noise_positions", "rows"), {"BLOCK_SIZE": 4096}
    floats = dict.fromkeys(("temperature", "sums", "probs"), "*fp32")
    types = dict.fromkeys(ids, "*i64") | floats | {"logits": f"*{dtype}", "cache": f"*{dtype}"}
    for kernel, constants in (
        (kernels.cache_logits, block),
        (kernels.block_sums, block),
        (kernels.write_probabilities, block | {"BLOCKS": 32}),
    ):
        of_kernel = {name: kind for name, kind in types.items() if name in kernel.arg_names}
        code = machine_code(kernel, of_kernel | {"slot_stride": "i64"}, constants, target)
        assert len(code) > 1000, kernel
