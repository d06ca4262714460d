"""Completions for TRL's GRPOTrainer: seeds, log-probabilities at the sampling temperature, and the trainer itself."""

import contextlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import GenerationConfig

import call_tables
from tokendraw import load_sampler
from tokendraw_transformers import derived_seed, rollout_func
from transformers_models import PAD, byte_tokenizer, draw, model_of

EOS = [11, *range(300, 400)]
PROMPTS = ["Why is the sky blue?", "Why is the sky blue?", "a", "Grüße"]
SETTINGS = {
    "max_new_tokens": 16,
    "do_sample": True,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": None,
    "repetition_penalty": 1.0,
}


@contextlib.contextmanager
def unwrap_model_for_generation(
    model,
    accelerator,
    gather_deepspeed3_params=True,
    generation_kwargs=None,
    gradient_checkpointing_kwargs=None,
):
    """As in TRL 1.16, for a model without wrappers."""
    yield accelerator.unwrap_model(model)


@pytest.fixture
def trainer(monkeypatch):
    """The attributes of TRL 1.16's GRPOTrainer that a rollout reads, without TRL's packages."""
    models = ModuleType("trl.models")
    models.unwrap_model_for_generation = unwrap_model_for_generation
    monkeypatch.setitem(sys.modules, "trl", ModuleType("trl"))
    monkeypatch.setitem(sys.modules, "trl.models", models)
    return SimpleNamespace(
        processing_class=byte_tokenizer(),
        chat_template=None,
        chat_template_kwargs={},
        tools=[],
        use_vllm=False,
        is_fsdp_enabled=False,
        model_wrapped=model_of("llama"),
        accelerator=SimpleNamespace(
            device=torch.device("cpu"), process_index=0, unwrap_model=lambda model: model
        ),
        state=SimpleNamespace(global_step=3),
        args=SimpleNamespace(ds3_gather_for_generation=True, gradient_checkpointing_kwargs=None),
        generation_config=GenerationConfig(**SETTINGS),
        generation_kwargs=SETTINGS,
    )


def test_kept_ids_and_entropies_come_where_they_are_asked_for(trainer):
    plain = rollout_func(seed=7)(PROMPTS, trainer)
    result = rollout_func(seed=7, kept_ids=64, entropies=True)(PROMPTS, trainer)
    assert sorted({*result} - {*plain}) == ["entropies", "kept_counts", "kept_ids"]
    assert result["completion_ids"] == plain["completion_ids"]
    for row, completion in enumerate(result["completion_ids"]):
        kept, counts, entropies = (result[name][row] for name in ("kept_ids", "kept_counts", "entropies"))
        assert len(kept) == len(counts) == len(entropies) == len(completion)
        assert all(token in ids for token, ids in zip(completion, kept, strict=True))
        assert [len(ids) for ids in kept] == counts  # top-k = 40 keeps no more than 64
        assert all(0 < entropy < 20 for entropy in entropies)


def test_the_mask_of_a_step_is_what_its_logits_keep(trainer):
    out = draw(
        model_of("llama"),
        torch.tensor([byte_tokenizer()("a")["input_ids"]]),
        return_dict_in_generate=True,
        output_logits=True,
        max_new_tokens=3,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        seeds=7,
        kept_ids=3,
        entropy=True,
        logprobs_mode="temperature_logprobs",
    )
    for step, logits in enumerate(out.logits):
        p = (logits[0] / 0.7).double().log_softmax(-1)
        values, ids = p.sort(descending=True)
        top = values[:40].exp() / values[:40].exp().sum()
        kept = ids[:40][top.cumsum(0) - top < 0.9].sort().values
        assert int(out.kept_counts[0, step]) == len(kept)
        assert out.kept_token_ids[0, step].tolist() == kept[:3].tolist() + [-1] * (3 - len(kept[:3]))
        assert float(out.entropy[0, step]) == pytest.approx(float(-(p.exp() * p).sum()), abs=1e-4)


def test_each_completion_has_log_probabilities_at_the_temperature_of_its_draws(trainer):
    before = trainer.generation_config.to_dict()
    result = rollout_func(seed=7)(PROMPTS, trainer)
    assert trainer.generation_config.to_dict() == before
    assert sorted(result) == ["completion_ids", "logprobs", "prompt_ids", "seeds"]
    assert result["prompt_ids"] == byte_tokenizer()(PROMPTS)["input_ids"]
    assert len({len(completion) for completion in result["completion_ids"]}) > 1
    for prompt, completion, logprobs in zip(
        result["prompt_ids"], result["completion_ids"], result["logprobs"], strict=True
    ):
        assert completion[-1] in EOS or len(completion) == 16
        assert not set(completion[:-1]) & set(EOS)
        with torch.no_grad():
            logits = model_of("llama")(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        expected = (logits.double() / 0.7).log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logprobs).double(), expected, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_seed_draws_its_completion_again(trainer):
    result = rollout_func(seed=7)(PROMPTS, trainer)
    base = derived_seed(7, [3, 0])
    prompt_ids, completion_ids, seeds = (result[name] for name in ("prompt_ids", "completion_ids", "seeds"))
    assert seeds == list(map(derived_seed, [base] * 4, prompt_ids, [0, 1, 0, 0]))
    for prompt, completion, seed in zip(prompt_ids, completion_ids, seeds, strict=True):
        again = draw(model_of("llama"), torch.tensor([prompt]), seeds=[seed], **SETTINGS)
        assert again[0, len(prompt) :].tolist() == completion


@pytest.mark.slow
def test_completions_differ_by_row_step_process_and_seed(trainer):
    rollout = rollout_func(seed=7)
    first = rollout(PROMPTS, trainer)["completion_ids"]
    assert rollout(PROMPTS, trainer)["completion_ids"] == first
    assert first[0] != first[1]
    others = [rollout_func(seed=8)(PROMPTS, trainer)]
    trainer.state.global_step = 4
    others.append(rollout(PROMPTS, trainer))
    trainer.accelerator.process_index = 1
    others.append(rollout(PROMPTS, trainer))
    drawn = [first, *(other["completion_ids"] for other in others)]
    assert len({str(completions) for completions in drawn}) == 4


def test_without_a_seed_torch_decides(trainer):
    rollout = rollout_func()
    torch.manual_seed(5)
    first, second = rollout(PROMPTS, trainer), rollout(PROMPTS, trainer)
    torch.manual_seed(5)
    assert rollout(PROMPTS, trainer) == first
    assert first["completion_ids"] != second["completion_ids"]


def test_conversations_go_through_the_chat_template(trainer):
    trainer.chat_template = "{% for message in messages %}{{ message['content'] }};{% endfor %}{{ end }}"
    trainer.chat_template_kwargs = {"end": "!"}
    conversation = [{"role": "user", "content": "a"}]
    result = rollout_func(seed=7)([conversation], trainer)
    assert result["prompt_ids"] == byte_tokenizer()(["a;!"])["input_ids"]


def test_what_is_not_served_is_refused(trainer):
    def rollout(**changes):
        return rollout_func(seed=7)(PROMPTS, SimpleNamespace(**vars(trainer) | changes))

    words = {"rollout": rollout, "rollout_func": rollout_func, "PROMPTS": PROMPTS, "trainer": trainer}
    table = call_tables.Table(__file__, "rollout_refusals.txt")
    assert table.found(lambda: {**words, "native": load_sampler("native", device="cpu")}) == table.text
