"""``custom_generate=tokendraw_transformers.generate``: the same tokens everywhere, and transformers' own outputs."""

from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import LogitsProcessor, MaxTimeCriteria, set_seed
from transformers.generation.streamers import BaseStreamer

import tokendraw
import tokendraw_transformers
from transformers_models import PAD, STEPS, V, draw, model_of, prompts

FAMILIES = ["llama", "qwen2"]
SEEDS = [11, -3, 2**64 - 1, 7]
FILTERS = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}


@pytest.fixture(params=FAMILIES)
def model(request):
    return model_of(request.param)


@pytest.fixture
def llama():
    return model_of("llama")


def padded(input_ids, width):
    """``input_ids`` with ``width`` tokens of padding at the left, and the attention mask."""
    ids = torch.nn.functional.pad(input_ids, (width, 0), value=PAD)
    return ids, (torch.arange(ids.shape[1]) >= width).long().expand_as(ids)


def test_greedy_is_transformers_own(model):
    own = model.generate(prompts(4), do_sample=False, max_new_tokens=STEPS)
    assert torch.equal(draw(model, prompts(4), do_sample=False), own)


@pytest.mark.parametrize("setting", [{"top_k": 1}, {"temperature": 1e-6}, {"top_k": 0, "top_p": 0.0}])
@pytest.mark.fast_first
def test_a_draw_that_leaves_one_token_is_greedy(model, setting):
    own = model.generate(prompts(4), do_sample=False, max_new_tokens=STEPS)
    assert torch.equal(draw(model, prompts(4), seeds=SEEDS, **setting), own)


@pytest.mark.parametrize("filters", [FILTERS, {}, {"top_k": 0, "top_p": 0.9, "min_p": 0.02}])
@pytest.mark.fast_first
def test_a_row_draws_the_same_tokens_alone_and_in_any_padded_batch(model, filters):
    """Rows of different lengths, in another order."""
    lengths, order = [5, 2, 4, 3], [2, 0, 3, 1]
    rows = [prompts(4)[i : i + 1, :length] for i, length in enumerate(lengths)]
    ids, mask = (
        torch.cat(parts) for parts in zip(*(padded(rows[i], 7 - lengths[i]) for i in order), strict=True)
    )
    whole = draw(model, ids, attention_mask=mask, seeds=[SEEDS[i] for i in order], **filters)
    for place, i in enumerate(order):
        alone = draw(model, rows[i], seeds=[SEEDS[i]], **filters)
        assert torch.equal(alone[0, lengths[i] :], whole[place, 7:])


@pytest.mark.fast_first
def test_a_text_continues_as_without_a_break(model):
    whole = draw(model, prompts(2), seeds=[1, 2])
    first = draw(model, prompts(2), seeds=[1, 2], max_new_tokens=4, return_dict_in_generate=True)
    for kept in ({}, {"past_key_values": first.past_key_values}):
        rest = draw(
            model,
            first.sequences,
            seeds=[1, 2],
            max_new_tokens=STEPS - 4,
            attention_mask=torch.ones_like(first.sequences),
            **kept,
        )
        assert torch.equal(rest, whole)


def test_embeddings_a_static_cache_and_any_choice_of_the_sampler_draw_the_same_tokens(llama):
    expected, loaded = draw(llama, prompts(2), seeds=[1, 2]), tokendraw.load_sampler("native", device="cpu")
    embeds = llama.get_input_embeddings()(prompts(2))
    assert torch.equal(draw(llama, None, inputs_embeds=embeds, seeds=[1, 2]), expected[:, 5:])
    llama.generation_config.disable_compile = True
    for option in ({"cache_implementation": "static"}, {"sampler": "native"}, {"sampler": loaded}):
        assert torch.equal(draw(llama, prompts(2), seeds=[1, 2], **option), expected)


@pytest.mark.slow
def test_an_encoder_and_decoder_draw_the_same_tokens_alone():
    model = model_of("t5")
    whole = draw(model, prompts(3), seeds=[1, 2, 3])
    assert torch.equal(draw(model, prompts(3)[1:2], seeds=[2]), whole[1:2])
    out = draw(model, prompts(3), seeds=[1, 2, 3], return_dict_in_generate=True, logprobs=0)
    assert type(out) is tokendraw_transformers.DrawEncoderDecoderOutput
    assert torch.equal(out.sequences, whole)
    assert out.logprobs.shape == (3, STEPS)


def test_rows_of_one_seed_and_several_sequences_a_prompt(llama):
    several = draw(llama, prompts(2), seeds=[1, 2, 1, 2], num_return_sequences=2)
    assert torch.equal(several[::2], draw(llama, prompts(2), seeds=[1, 1]))
    assert torch.equal(several[1::2], draw(llama, prompts(2), seeds=[2, 2]))


@pytest.mark.slow
def test_without_seeds_torch_decides_and_some_rows_may_have_one(llama):
    set_seed(5)
    first, second = draw(llama, prompts(2)), draw(llama, prompts(2))
    set_seed(5)
    assert torch.equal(draw(llama, prompts(2)), first)
    assert not torch.equal(first, second)
    mixed = [draw(llama, prompts(2), seeds=[None, 4]) for _ in range(2)]
    assert torch.equal(mixed[0][1], mixed[1][1])
    assert not torch.equal(mixed[0][0], mixed[1][0])


def test_logprobs_belong_to_the_drawn_tokens(llama):
    ids = prompts(3)
    out = draw(
        llama, ids, seeds=[1, 2, 3], logprobs=4, return_dict_in_generate=True, output_logits=True, top_k=9
    )
    raw = torch.stack(out.logits, dim=1).double().log_softmax(-1).float()
    drawn = out.sequences[:, 5:, None]
    torch.testing.assert_close(out.logprobs, raw.gather(-1, drawn)[..., 0])
    best = raw.topk(4)
    torch.testing.assert_close(out.top_logprobs, best.values)
    assert torch.equal(out.top_token_ids, best.indices)
    assert torch.equal(out.ranks, (raw >= raw.gather(-1, drawn)).sum(-1))
    assert int(out.ranks.max()) <= 9
    assert out.valid.tolist() == [True] * 3
    only = draw(llama, ids, seeds=[1, 2, 3], logprobs=0, return_dict_in_generate=True, top_k=9)
    torch.testing.assert_close(only.logprobs, out.logprobs)
    assert only.top_token_ids is None


@pytest.mark.slow
def test_rows_that_end_early_are_filled_up_and_draw_no_more(llama):
    ends = list(range(1, 150))
    ids = prompts(4)
    settings = {"eos_token_id": ends, "return_dict_in_generate": True, "logprobs": 1, "max_new_tokens": 20}
    out = draw(llama, ids, seeds=SEEDS, **settings)
    lengths = set()
    for row, seed in enumerate(SEEDS):
        alone = draw(llama, ids[row : row + 1], seeds=[seed], **settings)
        count = alone.sequences.shape[1] - 5
        lengths.add(count)
        assert torch.equal(out.sequences[row, : 5 + count], alone.sequences[0])
        assert (out.sequences[row, 5 + count :] == PAD).all()
        torch.testing.assert_close(out.logprobs[row, :count], alone.logprobs[0], atol=1e-4, rtol=1e-4)
        assert (out.logprobs[row, count:] == 0).all()
        assert (out.ranks[row, count:] == 0).all()
        assert (out.top_token_ids[row, count:] == -1).all()
        assert (out.top_logprobs[row, count:] == -torch.inf).all()
    assert len(lengths) > 1


def test_other_processors_and_stopping_criteria_work_as_before(llama):
    seen, lengths = [], []

    def even_tokens(input_ids, scores):
        seen.append(scores)
        return scores.masked_fill(torch.arange(V) % 2 == 1, -torch.inf)

    def at_length_9(input_ids, scores, **_):
        lengths.append(len(scores))
        return torch.full((len(input_ids),), input_ids.shape[1] >= 9)

    out = draw(
        llama,
        prompts(2),
        seeds=[1, 2],
        logits_processor=[even_tokens],
        stopping_criteria=[at_length_9, MaxTimeCriteria(600.0)],
        suppress_tokens=[2, 4, 6],
        return_dict_in_generate=True,
        output_scores=True,
        **FILTERS,
    )
    assert out.sequences.shape == (2, 9)
    assert (out.sequences[:, 5:] % 2 == 0).all()
    assert not torch.isin(out.sequences[:, 5:], torch.tensor([2, 4, 6])).any()
    assert len(seen) == 4
    assert (seen[0][:, [2, 4, 6]] == -torch.inf).all()  # generate's own processors come first
    assert lengths == [1, 2, 3, 4]
    assert {type(scores) for scores in out.scores} == {torch.Tensor}


def test_a_streamer_is_given_every_token(llama):
    lines = Mock(BaseStreamer)
    out = draw(llama, prompts(2), seeds=[1, 2], streamer=lines)
    first, *rest = [call.args[0] for call in lines.put.call_args_list]
    assert torch.equal(first, prompts(2))
    assert torch.equal(torch.stack(rest, dim=1), out[:, 5:])
    lines.end.assert_called_once_with()


@pytest.mark.parametrize("synced", [False, True])
def test_synced_gpus_reaches_the_loop(llama, monkeypatch, synced):
    own, noted = type(llama)._has_unfinished_sequences, []

    def noting(self, finished, synced_gpus, device):
        noted.append(synced_gpus)
        return own(self, finished, False, device)

    monkeypatch.setattr(type(llama), "_has_unfinished_sequences", noting)
    draw(llama, prompts(1), max_new_tokens=2, synced_gpus=synced)
    assert set(noted) == {synced}


def test_a_row_with_nan_is_named_and_harms_no_other(llama):
    class Spoils(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores = scores.clone()
            scores[1] = torch.nan
            return scores

    with pytest.warns(tokendraw_transformers.InvalidRowsWarning) as result:
        out = draw(
            llama, prompts(3), seeds=[1, 2, 3], logits_processor=[Spoils()], return_dict_in_generate=True
        )
    assert [str(warning.message) for warning in result] == [
        "rows 1 met NaN in their scores, or none above -inf. Look at the model, or pass remove_invalid_values=True."
    ]
    assert result[0].filename.endswith("transformers_models.py")  # who called model.generate
    assert out.valid.tolist() == [True, False, True]
    expected = draw(llama, prompts(3), seeds=[1, 2, 3])
    assert torch.equal(out.sequences[[0, 2]], expected[[0, 2]])
