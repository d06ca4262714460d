"""``custom_generate=tokendraw_transformers.generate``: the same tokens everywhere, and transformers' own outputs.

Seeds of whole calls and of pipelines, and the same tokens in assisted generation: noise depends on nothing but the seed
and the position.
"""

import hashlib
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import GenerationConfig, LogitsProcessor, MaxTimeCriteria, pipeline, set_seed
from transformers.generation.streamers import BaseStreamer

import tokendraw
import tokendraw_transformers
from tokendraw import SamplingParams
from tokendraw_transformers import DrawLogitsProcessor, SeedsUnusedWarning, derived_seed, generate
from transformers_models import PAD, STEPS, V, byte_tokenizer, draw, model_of, prompts

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


def test_embeddings_a_static_cache_and_any_sampler_draw_the_same_tokens(llama):
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


# Seeds.


def test_a_derived_seed_is_that_of_its_definition():
    words = [(-3) % 2**64, 1, 5, 900]
    text = b"".join(word.to_bytes(8, "little") for word in words)
    assert derived_seed(-3, [5, 900], repeat=1) == int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    assert derived_seed(7, [5, 900]) == 9646916436847246949
    assert derived_seed(2**64 - 1, [1]) == derived_seed(-1, [1])


@pytest.mark.fast_first
@pytest.mark.parametrize("padding", [3, 0])
def test_a_base_seed_gives_each_row_the_seed_of_its_prompt_without_padding(llama, padding):
    ids = prompts(4)[[0, 1, 2, 1]]
    each = [derived_seed(7, row.tolist(), repeat) for row, repeat in zip(ids, [0, 0, 0, 1], strict=True)]
    expected = draw(llama, ids, seeds=each)
    longer = torch.nn.functional.pad(ids, (padding, 0), value=PAD)
    whole = draw(llama, longer, attention_mask=(longer != PAD).long(), seeds=7)
    assert torch.equal(whole[:, padding:], expected)
    assert torch.equal(draw(llama, ids[1:2], seeds=7), expected[1:2])  # whatever the batch
    assert not torch.equal(expected[1], expected[3])  # the second row of one prompt
    copies = draw(llama, ids[:2], seeds=7, num_return_sequences=2)
    assert torch.equal(copies[::2], expected[:2])
    assert not torch.equal(copies[1::2], expected[:2])


def test_rows_of_embeddings_are_distinguished_by_their_index(llama):
    embeds = llama.get_input_embeddings()(prompts(2))
    seeds = [derived_seed(7, [], 0), derived_seed(7, [], 1)]
    expected = draw(llama, None, inputs_embeds=embeds, seeds=seeds)
    assert torch.equal(draw(llama, None, inputs_embeds=embeds, seeds=7), expected)


def test_a_callable_is_asked_for_the_seed_of_each_row_which_counts_as_its_index(llama):
    asked = []

    def seeds(row):
        asked.append((row, row.prompt_ids, row.repeat))
        return None if row == 3 else 100 + row

    ids = prompts(2)
    result = draw(llama, ids, seeds=seeds, num_return_sequences=2)
    assert torch.equal(result[:3], draw(llama, ids, seeds=[100, 101, 102, 5], num_return_sequences=2)[:3])
    first, second = (tuple(row.tolist()) for row in ids)
    assert asked == [(0, first, 0), (1, first, 1), (2, second, 0), (3, second, 1)]
    assert isinstance(tokendraw_transformers.Row.of(3, (1, 2), 0), int)


@pytest.mark.parametrize(
    "seeds", [(1, 2), range(1, 3), torch.tensor([1, 2])], ids=["tuple", "range", "tensor"]
)
@pytest.mark.fast_first
def test_every_kind_of_list_of_integers_is_one(llama, seeds):
    assert torch.equal(draw(llama, prompts(2), seeds=seeds), draw(llama, prompts(2), seeds=[1, 2]))


@pytest.mark.slow
def test_the_settings_may_hold_the_adapters_arguments(llama):
    expected = draw(llama, prompts(2), seeds=[1, 2], logprobs=0, return_dict_in_generate=True)
    config = GenerationConfig(
        seeds=[1, 2],
        logprobs=0,
        sampler="native",
        do_sample=True,
        max_new_tokens=STEPS,
        return_dict_in_generate=True,
    )
    result = llama.generate(prompts(2), generation_config=config, custom_generate=generate)
    assert torch.equal(result.sequences, expected.sequences)
    assert torch.equal(result.logprobs, expected.logprobs)
    arguments = llama.generate(prompts(2), generation_config=config, seeds=[3, 4], custom_generate=generate)
    assert torch.equal(arguments.sequences, draw(llama, prompts(2), seeds=[3, 4]))


UNUSED = (
    "'seeds' need do_sample=True, found False: greedy decoding draws nothing. Pass do_sample=True, or leave "
    "out seeds."
)


@pytest.mark.parametrize(
    "arguments", [{"seeds": [1, None]}, {"seeds": 7}, {"generation_config": {"seeds": 7}}]
)
def test_seeds_of_greedy_decoding_are_warned_of(llama, arguments, monkeypatch):
    settings = {"do_sample": False, "max_new_tokens": STEPS}
    if "generation_config" in arguments:
        arguments = {"generation_config": GenerationConfig(**arguments["generation_config"], **settings)}
        settings = {}
    with pytest.warns(SeedsUnusedWarning) as result:
        greedy = llama.generate(prompts(2), custom_generate=generate, **arguments, **settings)
    assert [str(warning.message) for warning in result] == [UNUSED]
    assert result[0].filename == __file__
    unseeded = draw(llama, prompts(2), do_sample=False, seeds=[None, None])  # warns of nothing
    assert torch.equal(greedy, unseeded)
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    with pytest.raises(SeedsUnusedWarning) as error:
        llama.generate(prompts(2), custom_generate=generate, **arguments, **settings)
    assert str(error.value) == f"{UNUSED} TOKENDRAW_STRICT=1 makes this warning an error."


SAMPLING = {"temperature": 0.8, "top_k": 50}  # a pipeline has a temperature of its own
TEXTS = ["Why is the sky blue?", "Write a haiku.", "a", "Grüße"]


@pytest.mark.parametrize(("batch_size", "is_callable"), [(2, False), (1, False), (4, False), (1, True)])
@pytest.mark.fast_first
def test_a_pipeline_takes_seeds_whatever_its_batches(llama, batch_size, is_callable):
    ids = [byte_tokenizer()(text)["input_ids"] for text in TEXTS]
    known = {tuple(row): 100 + i if is_callable else derived_seed(7, row) for i, row in enumerate(ids)}
    pipe = pipeline(
        "text-generation",
        model=llama,
        tokenizer=byte_tokenizer(),
        batch_size=batch_size,
        custom_generate=generate,
        seeds=(lambda row: known[row.prompt_ids]) if is_callable else 7,
    )
    out = pipe(TEXTS, do_sample=True, max_new_tokens=STEPS, **SAMPLING, return_tensors=True)
    for (prompt, seed), (result,) in zip(known.items(), out, strict=True):
        alone = draw(llama, torch.tensor([prompt]), seeds=[seed], **SAMPLING)
        assert result["generated_token_ids"][-len(alone[0]) :] == alone[0].tolist()


# Assisted generation, by a processor that leaves the drawn token alone.

WARPERS = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}


def processor(seed, **more):
    return DrawLogitsProcessor(SamplingParams(**WARPERS, seed=seed), **more)


@pytest.fixture(scope="module")
def assistant():
    """The same model with a little noise on its weights: often right, and not always."""
    torch.manual_seed(9)
    model = model_of("llama")
    twin = type(model)(model.config).eval()
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    twin.generation_config.pad_token_id = 0
    twin.generation_config.eos_token_id = None
    return twin


@pytest.mark.slow
@pytest.mark.parametrize("way", ["greedy", "by the rejection rule", "by prompt lookup"])
def test_assisted_generation_draws_the_tokens_of_the_unassisted(llama, assistant, way):
    """Both models are certain of their token, so the rejection rule keeps the draft or takes the model's token.

    transformers 5.0 needs an ``eos_token_id`` for a lookup.
    """
    passes, repeats = [], 3 if way == "by prompt lookup" else 1
    settings = {
        "greedy": {"assistant_model": assistant, "do_sample": False},
        "by the rejection rule": {"assistant_model": assistant, "do_sample": True, "top_k": 0},
        "by prompt lookup": {"prompt_lookup_num_tokens": 3, "do_sample": False, "eos_token_id": V - 1},
    }[way]
    end = {name: value for name, value in settings.items() if name == "eos_token_id"}
    for seed in range(6):
        ids = prompts(6)[seed : seed + 1].repeat(1, repeats)
        handle = llama.register_forward_hook(lambda *_: passes.append(1))
        assisted = llama.generate(ids, max_new_tokens=16, logits_processor=[processor(seed)], **settings)
        handle.remove()
        assert torch.equal(assisted, draw(llama, ids, seeds=[seed], max_new_tokens=16, **end, **WARPERS))
    assert way == "by prompt lookup" or len(passes) < 6 * 16 * 0.7  # drafts were accepted


@pytest.mark.slow
def test_rows_of_a_padded_batch_draw_the_tokens_of_the_callable(llama):
    ids = prompts(3)
    padded = torch.nn.functional.pad(ids, (2, 0))
    params = [SamplingParams(**WARPERS, seed=seed) for seed in (1, 2, 3)]
    found = llama.generate(
        padded,
        attention_mask=(padded != 0).long(),
        do_sample=False,
        max_new_tokens=STEPS,
        logits_processor=[DrawLogitsProcessor(params, left_padding=[2, 2, 2])],
    )
    assert torch.equal(found[:, 2:], draw(llama, ids, seeds=[1, 2, 3], **WARPERS))


@pytest.mark.slow
def test_one_set_of_parameters_serves_any_number_of_rows(llama):
    shared = processor(4, sampler="native")
    for rows in (1, 3, 1):
        found = llama.generate(
            prompts(rows), do_sample=False, max_new_tokens=STEPS, logits_processor=[shared]
        )
        assert torch.equal(found, draw(llama, prompts(rows), seeds=[4] * rows, **WARPERS))


def test_the_scores_are_finite_and_their_softmax_is_the_token():
    left = processor(3)(torch.zeros(2, 4, dtype=torch.long), torch.randn(2, 50))
    assert left.isfinite().all()
    assert ((left == 0).sum(-1) == 1).all()
    assert torch.equal(left.softmax(-1), (left == 0).float())
