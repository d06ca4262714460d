"""Processors and warpers of transformers: those that tokendraw replaces, with the same tokens kept and equal scores."""

from pathlib import Path

import pytest
import torch
import transformers

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitNormalization,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation import WatermarkingConfig

import tokendraw
from call_tables import pairs
from tokendraw import SamplingParams
from tokendraw_transformers import _drawing, _lists
from tokendraw_transformers._lists import EditProcessor, plan, with_edits
from transformers_models import PAD, draw, model_of, prompts

PENALTY, T, K = RepetitionPenaltyLogitsProcessor(1.2), TemperatureLogitsWarper(0.7), TopKLogitsWarper(40)
P, M, H = TopPLogitsWarper(0.9), MinPLogitsWarper(0.1), TopHLogitsWarper(0.4)
NORMALIZED = LogitNormalization()
KEEPS_TWO, FINITE = TopPLogitsWarper(0.9, min_tokens_to_keep=2), TopKLogitsWarper(40, filter_value=-100.0)
TYPICAL, EPSILON, ETA = TypicalLogitsWarper(0.9), EpsilonLogitsWarper(0.01), EtaLogitsWarper(0.25)
EPSILON_FLOOR, ETA_FLOOR = {"epsilon_cutoff": 0.01}, {"eta_cutoff": 0.25}
JOINT = {"top_p": 0.9, "min_p": 0.1, "filter_order": "joint"}


@pytest.mark.parametrize(("name", "case"), pairs(Path(__file__).with_name("warpers.txt")))
def test_warpers_are_taken_from_the_end_of_the_list(name, case):
    prepared, stay, params, narrowing = eval(case, globals())
    result = plan(prepared, do_sample=True)
    assert list(result.processors) == prepared[:stay]
    assert result.params == SamplingParams(**params)
    assert list(result.narrowing) == narrowing
    assert [*result.processors, *result.recorded] == prepared
    greedy = plan(prepared, do_sample=False)
    assert (list(greedy.processors), greedy.params) == (prepared, SamplingParams(temperature=0.0))


SETTINGS = {
    "default": {},
    "temperature": {"temperature": 1.7, "top_k": 0},
    "top-k": {"top_k": 7},
    "top-p": {"top_k": 0, "top_p": 0.6},
    "top-k and top-p": {"temperature": 1.5, "top_k": 20, "top_p": 0.7},
    "min-p": {"top_k": 0, "min_p": 0.1},
    "top-k and min-p": {"top_k": 10, "min_p": 0.05, "temperature": 2.0},
    "top-p and min-p": {"top_k": 0, "top_p": 0.8, "min_p": 0.08},
    "all": {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.06},
    "watermark": {"top_k": 12, "watermarking_config": {"bias": 2.5, "greenlist_ratio": 0.5}},
    **{
        f"{name} {beside}": {name: 0.3, "temperature": 1.5, **others}
        for name in ("top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
        for beside, others in {"alone": {"top_k": 0}, "beside others": {"top_k": 5, "top_p": 0.9}}.items()
    },
}
RECORD = {"max_new_tokens": 1, "return_dict_in_generate": True, "output_scores": True}


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_drawn_by_the_probabilities_that_transformers_own_warpers_leave(name):
    """The processed log-probabilities are those of the draw: see the kit. The scores are for the caller."""
    model, ids, settings = model_of("qwen2", 60), prompts(200, vocab_size=60), dict(SETTINGS[name])
    if "watermarking_config" in settings:
        settings["watermarking_config"] = WatermarkingConfig(**settings["watermarking_config"])
    theirs = model.generate(ids, do_sample=True, **settings, **RECORD).scores[0]
    out = draw(model, ids, **settings, **RECORD, logprobs=-1, logprobs_mode="processed_logprobs")
    ours = torch.empty_like(theirs).scatter_(-1, out.top_token_ids[:, 0], out.top_logprobs[:, 0])
    torch.testing.assert_close(ours, theirs.log_softmax(-1), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(out.scores[0], theirs, atol=1e-4, rtol=1e-4)
    assert theirs.isinf().any() or name == "temperature"


# Edits.

V, END = 200, 7


def bias(**_):
    return SequenceBiasLogitsProcessor({(3,): 2.5, (5,): -1.25, (9,): 0.1, (11,): float("-inf")})


def penalty(skipped=None):
    return RepetitionPenaltyLogitsProcessor(1.3, prompt_ignore_length=skipped)


def bad():
    return NoBadWordsLogitsProcessor([[3], [8], [END]], END)


def bad_pairs():
    return NoBadWordsLogitsProcessor([[3], [8, 4]], END)


def early(length=5, least=4):
    return MinNewTokensLengthLogitsProcessor(length, least, [END, V + 3])


def suppressed():
    return SuppressTokensLogitsProcessor([2, 9, -1, V, V + 7])


def ngrams():
    return NoRepeatNGramLogitsProcessor(2)


class OwnPenalty(RepetitionPenaltyLogitsProcessor):
    """May do anything."""


EVERY = [bias, penalty, bad, early, suppressed]


@pytest.fixture
def transformers_does_nothing(monkeypatch):
    """Let no supported processor of transformers run in an edited list."""

    def refuse(self, input_ids, scores):
        raise AssertionError(f"{type(self.stretch[0]).__name__} was called")

    class Refused(LogitsProcessorList):
        def __call__(self, input_ids, scores, **kwargs):
            raise AssertionError(f"{[type(own).__name__ for own in self]} were called")

    own = EditProcessor.__init__

    def made(self, stretch):
        own(self, stretch)
        self.stretch = Refused(stretch)

    monkeypatch.setattr(EditProcessor, "__init__", made)


def run(processors, input_ids, steps=10, seed=0):
    """Scores [B, V] of the processors at each step, for a given sequence of tokens."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for _ in range(steps):
        scores = 3 * torch.randn(len(input_ids), V, generator=generator)
        scores[0, ::7] = -torch.inf
        scores[-1, 4] = 0.0
        before = scores.clone()
        result.append(processors(input_ids, scores))
        assert torch.equal(scores, before)  # transformers may record them
        token = torch.randint(0, V, (len(input_ids), 1), generator=generator)
        input_ids = torch.cat([input_ids, token], 1)
    return torch.stack(result)


def penalty_of_each_row():
    """A penalty that passes over the padding of each row."""
    try:
        return penalty(torch.tensor([0, 3, 4]))
    except ValueError as error:
        assert transformers.__version__.startswith("5.0.")
        pytest.skip(f"transformers 5.0 takes one number of tokens for all rows: {error}")


PADDED = {
    "no padding known": penalty,
    "padding of each row": penalty_of_each_row,
    "a part of the prompt": lambda: penalty(2),
}


@pytest.mark.parametrize(("name", "case"), pairs(Path(__file__).with_name("stretches.txt")))
def test_stretches_of_served_processors_are_replaced_in_place_with_the_same_scores(name, case):
    makers, expected = eval(case, globals())
    ids, prepared = prompts(3, vocab_size=V), [make() for make in makers]
    edited = with_edits(prepared)
    result = [
        [prepared.index(own) for own in processor.stretch]
        if isinstance(processor, EditProcessor)
        else prepared.index(processor)
        for processor in edited
    ]
    assert result == expected
    assert torch.equal(run(edited, ids), run(LogitsProcessorList(make() for make in makers), ids))


@pytest.mark.parametrize("make", PADDED.values(), ids=PADDED)
@pytest.mark.parametrize("ahead", [1024, 3])
def test_tokens_count_from_where_transformers_counts_them(
    make, ahead, monkeypatch, transformers_does_nothing
):
    monkeypatch.setattr(_lists, "HEADROOM_TOKENS", ahead)  # 3: the slots are made anew on the way
    ids = prompts(3, vocab_size=V)
    ids[1, :3] = ids[2, :4] = PAD
    makers = [bias, make, bad, early, suppressed]
    expected = run(LogitsProcessorList(make() for make in makers), ids)
    assert torch.equal(run(with_edits([make() for make in makers]), ids), expected)


@pytest.mark.parametrize(
    "make", [lambda: SequenceBiasLogitsProcessor({(3,): float("nan")}), lambda: penalty(7)]
)
def test_processors_that_tokendraw_refuses_run_in_transformers(make):
    """A bias that is no number, and more tokens passed over than there are."""
    ids = prompts(2, vocab_size=V)
    expected, result = run(make(), ids), run(with_edits([make()]), ids)
    assert torch.equal(result.nan_to_num(1e9), expected.nan_to_num(1e9))


def test_ids_that_a_larger_embedding_has_are_refused_by_transformers():
    ids, errors = prompts(2, vocab_size=V), []
    for wrap in (LogitsProcessorList, with_edits):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the messages are compared
            run(wrap([SequenceBiasLogitsProcessor({(V,): 1.0})]), ids)
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_without_a_provider_transformers_edits(monkeypatch):
    def none(*_, **__):
        raise tokendraw.SamplerUnavailableError("none")

    monkeypatch.setattr(_drawing, "_cache", {})
    monkeypatch.setattr(tokendraw, "load", none)
    ids = prompts(2, vocab_size=V)
    assert torch.equal(run(with_edits([penalty()]), ids), run(penalty(), ids))


EDITS = {
    "repetition_penalty": 1.7,
    "bad_words_ids": [[9], [17]],
    "min_new_tokens": 4,
    "eos_token_id": list(range(1, 400)),
    "sequence_bias": {(500,): 4.0, (600,): -3.0},
    "suppress_tokens": [700, 701],
}


@pytest.mark.parametrize(("family", "seeds"), [("llama", [1, 2, 3]), ("t5", None)])
def test_generate_gives_the_text_that_transformers_processors_give(
    family, seeds, monkeypatch, transformers_does_nothing
):
    ids = torch.nn.functional.pad(prompts(3), (2, 0), value=PAD)
    settings = {
        "attention_mask": (torch.arange(ids.shape[1]) >= 2).long().expand_as(ids),
        "output_logits": True,
        "output_scores": True,
        "return_dict_in_generate": True,
        "do_sample": seeds is not None,
        "seeds": seeds,
    }
    served = draw(model_of(family), ids, **settings, **EDITS)
    monkeypatch.setattr("tokendraw_transformers._generate.with_edits", LogitsProcessorList)
    own = draw(model_of(family), ids, **settings, **EDITS)
    assert torch.equal(served.sequences, own.sequences)
    for name in ("scores", "logits"):
        assert torch.equal(torch.stack(served[name]), torch.stack(own[name]))
    plain = draw(model_of(family), ids, **settings)
    assert not torch.equal(plain.sequences[:, :12], served.sequences[:, :12])
