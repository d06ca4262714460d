"""vLLM's V2 sampler through tokendraw: the method that draws a batch, and the distribution of its draws."""

import numpy as np
import pytest
import torch

import tokendraw
import tokendraw_vllm
from goodness_of_fit import FALSE_ALARM, chi_square, filtered_probabilities
from tokendraw_vllm import _v2_metadata
from vllm_stand_in import V2Engine, request

V = 40
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(2)).mul_(2.0).to(torch.bfloat16)


@pytest.fixture
def calls(vllm, monkeypatch):
    """The dtypes of the logits for tokendraw, and the metadata: the model's logits are bfloat16."""
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    calls = []
    sample = tokendraw.Sampler.sample

    def noted(self, logits, metadata):
        calls.append((logits.dtype, metadata))
        return sample(self, logits, metadata)

    monkeypatch.setattr(tokendraw.Sampler, "sample", noted)
    return calls


def batch(rows):
    return LOGITS.repeat(rows, 1)


KINDS = [
    {"temperature": 0.7, "top_k": 6, "top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.05},
    {"top_p": 0.6},
    {},
]


@pytest.mark.parametrize("biased", [None, 3], ids=["raw logits", "processed logits"])
@pytest.mark.fast_first
def test_every_row_is_drawn_from_its_distribution_in_a_mixed_batch(calls, biased):
    """A further request in slot 7 may edit its logits: then vLLM divides by the temperature."""
    engine, draws, at_once = V2Engine(V), 6000, 500
    for slot, kind in enumerate(KINDS):
        engine.add(slot, request(**kind, seed=slot))
    engine.add(6, request(temperature=0.0))
    engine.add(7, request(biased=biased))
    slots = [2, 6, 0, 7, 3, 1]
    steps = [
        engine.draw(batch(6 * at_once), slots * at_once, list(np.arange(at_once).repeat(6) + start))
        for start in range(0, draws, at_once)
    ]
    tokens = np.array(steps).reshape(draws, 6)
    assert {dtype for dtype, _ in calls} == {torch.float32 if biased else torch.bfloat16}
    assert set(tokens[:, 1]) == {int(LOGITS.float().argmax())}
    if biased:
        assert set(tokens[:, 3]) == {biased}
    for place, slot in enumerate(slots):
        if slot < len(KINDS):
            p_value = chi_square(
                np.ascontiguousarray(tokens[:, place]), filtered_probabilities(LOGITS, **KINDS[slot])
            )
            assert p_value > FALSE_ALARM, (slot, KINDS[slot])


def test_batches_of_greedy_rows_alone_are_vllms_own(calls):
    engine = V2Engine(V)
    engine.add(0, request(temperature=0.0))
    engine.add(1, request(temperature=0.0, biased=9))
    assert engine.draw(batch(1), [0], [3]) == [int(LOGITS.float().argmax())]
    assert engine.draw(batch(2), [0, 1], [3, 3]) == [int(LOGITS.float().argmax()), 9]
    assert calls == []


def test_a_seed_draws_the_same_tokens_in_any_slot_and_beside_rows_that_come_and_go(calls):
    seeded = {"temperature": 0.8, "top_k": 20, "seed": 99}

    def text(slot, neighbours):
        engine, tokens = V2Engine(V), []
        engine.add(slot, request(**seeded))
        for step in range(20):
            others = [other for other in neighbours(step) if other != slot]
            for other in others:
                engine.add(other, request(top_p=0.5 + other / 20, biased=4 if step % 2 else None))
            slots = [*others, slot]
            tokens.append(engine.draw(batch(len(slots)), slots, [step] * len(slots))[-1])
        return tokens

    alone = text(0, lambda step: [])
    assert len(set(alone)) > 1
    assert text(5, lambda step: range(step % 4)) == alone


def test_a_position_repeats_the_draw_and_further_positions_differ(calls):
    engine = V2Engine(V)
    engine.add(0, request(seed=1))
    first, again, *later = [engine.draw(batch(1), [0], [p])[0] for p in (5, 5, 6, 7, 8, 9, 10)]
    assert first == again
    assert set(later) != {first}


def test_a_slot_takes_the_parameters_of_its_next_request(calls):
    engine = V2Engine(V)
    engine.add(0, request(temperature=0.5, top_k=3, biased=7))
    assert engine.draw(batch(1), [0], [1]) == [7]
    engine.add(0, request(temperature=0.5, top_k=1))
    assert engine.draw(batch(1), [0], [1]) == [int(LOGITS.float().argmax())]
    engine.add(0, request())
    assert len({engine.draw(batch(1), [0], [p])[0] for p in range(30)}) > 3
    assert [dtype for dtype, _ in calls[:2]] == [torch.float32, torch.bfloat16]


def test_vllms_flag_for_edits_and_filters_is_unchanged(calls):
    engine = V2Engine(V)
    for slot, parameters in enumerate(
        (request(), request(top_k=3), request(biased=1), request(temperature=0))
    ):
        engine.add(slot, parameters)
    assert engine.sampler.needs_logits_processing[:4].tolist() == [False, True, True, False]


def test_host_facts_are_passed_and_disabled_parameters_left_out(calls):
    engine = V2Engine(V)
    engine.add(0, request(temperature=0.7, top_k=6))
    engine.add(1, request(temperature=0.0))
    engine.draw(batch(1), [0], [3])
    engine.draw(batch(2), [1, 0], [3, 4])
    (_, first), (_, second) = calls
    assert first.facts == tokendraw.BatchFacts(
        any_greedy=False,
        all_seeded=True,
        max_top_k=6,
        all_top_k=True,
        any_top_p=False,
        any_min_p=False,
        any_typical_p=False,
        any_xtc=False,
        any_joint=False,
        any_temperature_last=False,
        any_top_k_first=False,
        max_logprob_token_id=-1,
        filters=(),
    )
    assert (first.top_p, first.min_p) == (None, None)
    assert second.facts.any_greedy
    assert second.row_index.tolist() == [1, 0]
    assert second.positions.tolist() == [3, 4]


def test_with_batch_invariance_every_batch_is_drawn_at_the_same_place(vllm, monkeypatch, calls):
    import vllm.envs

    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    engine = V2Engine(V)
    engine.add(0, request(temperature=0.7))
    engine.draw(batch(1), [0], [3])
    assert [dtype for dtype, _ in calls] == [torch.float32]


def test_watermarks_win_and_batches_without_any_are_drawn_behind_vllms_edits(calls):
    engine = V2Engine(V, kind="Watermarking")
    engine.add(0, request(temperature=0.7, top_k=1))
    engine.sampler.watermarks = True
    assert engine.draw(batch(1), [0], [3]) == [1]
    assert calls == []
    engine.sampler.watermarks = False
    assert engine.draw(batch(1), [0], [3]) == [int(LOGITS.float().argmax())]
    assert [dtype for dtype, _ in calls] == [torch.float32]


def test_a_raising_sampler_hands_back_to_vllm_with_a_sentence(vllm, log_lines, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    engine = V2Engine(V)
    engine.add(0, request(top_k=1))
    assert engine.draw(batch(1), [0], [3]) != [0]

    def broken(self, logits, metadata):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(tokendraw.Sampler, "sample", broken)
    assert [engine.draw(batch(1), [0], [step]) for step in range(3)] == [[0]] * 3
    assert log_lines()[1:] == [
        (
            "WARNING",
            "tokendraw: V2 sampler is vLLM's own again: 'native' raised RuntimeError: no kernel image",
        )
    ]


def test_a_sampler_without_row_seeds_gets_users_seeds_alone(calls):
    engine = V2Engine(V)
    assert engine.sampler._tokendraw.can_draw()
    engine.sampler._tokendraw._replacement.seeds_every_row = False
    engine.add(0, request(top_k=3))
    engine.add(1, request(top_k=3, seed=4))
    engine.draw(batch(1), [0], [3])
    engine.draw(batch(2), [0, 1], [3, 3])
    (_, without), (_, seeded) = calls
    assert without.seed is None
    assert seeded.seed is not None


def test_descriptions_are_kept_and_not_without_end(calls):
    engine = V2Engine(400, slots=2)
    for top_k in range(1, 200):
        engine.add(0, request(top_k=top_k))
        engine.draw(torch.zeros(1, 400), [0], [3])
    assert len(engine.sampler._tokendraw._parameters._metadata_by_facts) == 64
    engine.draw(torch.zeros(1, 400), [0], [4])
    (_, one), (_, two) = calls[-2:]
    assert one.memo is two.memo


def test_a_running_batch_is_looked_at_once_and_again_when_a_request_comes(calls, monkeypatch):
    engine, looks = V2Engine(V), []
    look = _v2_metadata.batch_facts
    monkeypatch.setattr(
        _v2_metadata, "batch_facts", lambda *given, **named: looks.append(given) or look(*given, **named)
    )
    engine.add(0, request(temperature=0.7))
    engine.draw(batch(1), [0], [3])
    engine.draw(batch(1), [0], [4])
    assert len(looks) == 1
    engine.add(1, request(temperature=0.9, top_k=3))
    engine.draw(batch(2), [0, 1], [5, 3])
    engine.add(0, request(temperature=0.0))
    engine.draw(batch(2), [0, 1], [3, 4])
    assert len(looks) == 3
    assert [metadata.facts.any_greedy for _, metadata in calls] == [False, False, False, True]
    engine.draw(batch(1), [0], [4])
    assert len(calls) == 4  # a greedy batch is vLLM's own
