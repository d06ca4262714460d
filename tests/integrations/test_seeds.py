"""Seeds of whole calls and of pipelines, and the same tokens in assisted generation.

Noise depends on nothing but the seed and the position.
"""

import hashlib

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import GenerationConfig, pipeline

import tokendraw_transformers
from tokendraw import SamplingParams
from tokendraw_transformers import DrawLogitsProcessor, SeedsUnusedWarning, derived_seed, generate
from transformers_models import PAD, STEPS, V, byte_tokenizer, draw, model_of, prompts


@pytest.fixture
def llama():
    return model_of("llama")


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
