"""One process with a vLLM: writes a small model, generates what the tests compare, and prints it as a line of JSON.

``python vllm_process.py MODEL_FOLDER DRILL``; the drill is ``none`` or what goes wrong.
"""

import json
import sys
from pathlib import Path
from typing import Any

import tokendraw
from tokendraw_vllm import _engine, _v1

V = 1000
PROMPTS = [[5 + row, 6, 7 + 3 * row, 8] for row in range(6)]
SEEDED = {"temperature": 0.8, "top_k": 20, "seed": 3}
DRAWS = 4000


def write_model(folder: Path, layers: int = 2) -> None:
    """A Qwen2 of random parameters, and a head that makes peaked logits."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=V,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(15)
    model.save_pretrained(folder)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of the words t0, t1, ...: a token each."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"t{token}": token for token in range(V)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(folder)


class Engine:
    """vLLM with the small model."""

    def __init__(self, folder: Path, **options: Any) -> None:
        from vllm import LLM

        common = {
            "skip_tokenizer_init": True,
            "dtype": "float32",  # without ties, of which each engine keeps others
            "max_model_len": 128,
            "max_num_seqs": 64,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "gpu_memory_utilization": 0.5,  # of a machine with other programs
            "seed": 1,
        }
        self.llm = LLM(str(folder), **common | options)

    def outputs(self, prompts, parameters):
        """vLLM's output of each request; ``parameters`` has one entry for each."""
        from vllm import SamplingParams

        common = {"max_tokens": 12, "ignore_eos": True, "detokenize": False}
        return self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [SamplingParams(**common | one) for one in parameters],
            use_tqdm=False,
        )

    def generate(self, prompts, parameters):
        """Token ids and logprobs of each request; ``parameters`` has one entry for each, or one for all."""
        if isinstance(parameters, dict):
            parameters = [parameters] * len(prompts)
        outputs = self.outputs(prompts, parameters)
        return [(list(o.outputs[0].token_ids), logprobs(o.outputs[0])) for o in outputs]


def logprobs(output):
    """(token id, logprob, rank) of each step, sorted by id."""
    return [
        sorted((token, entry.logprob, entry.rank) for token, entry in step.items())
        for step in output.logprobs or ()
    ]


def tokens(generated):
    return [ids for ids, _ in generated]


def everything(engine):
    greedy = {"temperature": 0.0, "logprobs": 3}
    mates = [
        {"temperature": 0.0},
        {"temperature": 0.9, "top_p": 0.8, "max_tokens": 3},
        SEEDED,
        {"temperature": 1.0, "max_tokens": 7},
        {"temperature": 1.2, "top_k": 5, "min_p": 0.1, "presence_penalty": 1.0},
        {"temperature": 0.7, "top_k": 9, "max_tokens": 2, "seed": 12},
    ]
    unfiltered = {"temperature": 0.8, "seed": 8}
    neighbours = [mates[1], unfiltered, SEEDED, mates[5]]
    return {
        "greedy": engine.generate(PROMPTS, greedy),
        "greedy in a mixed batch": tokens(engine.generate(PROMPTS, mates))[0],
        "seeded alone": tokens(engine.generate(PROMPTS[2:3], SEEDED))[0],
        "seeded in a batch": tokens(engine.generate(PROMPTS, mates))[2],
        "unfiltered alone": tokens(engine.generate(PROMPTS[1:2], unfiltered))[0],
        "unfiltered in a batch": tokens(engine.generate(PROMPTS[:4], neighbours))[1],
        "seeded with logprobs": engine.generate(PROMPTS[2:3], {**SEEDED, "logprobs": 5}),
        "biased": tokens(engine.generate(PROMPTS, {"top_k": 4, "logit_bias": {77: 100.0}, "max_tokens": 4})),
        "allowed": tokens(engine.generate(PROMPTS, {"top_p": 0.9, "allowed_token_ids": [3, 4, 5]})),
        "all logprobs": engine.generate(PROMPTS[:1], {"temperature": 0.0, "logprobs": 20, "max_tokens": 1}),
        "draws": tokens(engine.generate(PROMPTS[:1] * DRAWS, {"top_k": 12, "top_p": 0.9, "max_tokens": 1})),
    }


def fail(*arguments):
    raise RuntimeError("injected")


def main() -> None:
    folder, drill = Path(sys.argv[1]), sys.argv[2]
    _v1.MIN_CPU_VOCABULARY = _v1.MIN_REFERENCE_VOCABULARY = 0  # the model's is small
    if drill == "untested version":
        _engine.TESTED = ("0.1.0",)
    if drill == "changed signature":
        _engine.V1_SIGNATURES = {"forward_native": ("self", "scores")}
    if not folder.exists():
        write_model(folder)
    engine = Engine(folder)
    if drill == "none":
        print(json.dumps(everything(engine)))
        return
    before = engine.generate(PROMPTS, SEEDED)
    if drill == "sampler raises":
        tokendraw.Sampler.sample = fail
        engine.generate(PROMPTS, SEEDED)  # the generators of the batch in which it fails have moved on
    print(json.dumps([tokens(before), tokens(engine.generate(PROMPTS, SEEDED))]))


if __name__ == "__main__":
    main()
