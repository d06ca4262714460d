"""One process with a vLLM: runs cases of ``vllm_v2_cases`` in its V1 or V2 runner, and prints the results as JSON.

``python vllm_process.py MODEL_FOLDER V1|V2 [CASE...]``
"""

import collections
import functools
import gc
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tokendraw
from exact_model import make_exact
from tokendraw.operations.row_methods import ScoreProvider
from tokendraw_vllm import _v1
from vllm_v2_cases import (
    CASES,
    DRAFTED,
    DRAWN,
    EDITED,
    ENGINES,
    EXACT,
    HIDDEN_SIZE,
    MODEL,
    PROMPTS,
    SCORED,
    V1_CASES,
    VERIFIED,
    VLLM,
    VLLM_DRAFTED,
    VLLM_VERIFIED,
    V,
)

OPTIONS = {
    "skip_tokenizer_init": False,
    "max_num_batched_tokens": 64,
    "block_size": 32,
    "num_gpu_blocks_override": 20,
}
"""Parts of the longest prompts in a step, and blocks for half of them once they generate."""
MISSPELT = {"extra_args": {"tokendraw": {"top_nsigma": 1.0}}}


def write_model(
    folder: Path,
    layers: int = 2,
    *,
    vocab_size: int = V,
    hidden_size: int = HIDDEN_SIZE,
    exact_seed: int | None = None,
) -> None:
    """A Qwen2 of random parameters, and a head that makes peaked logits; or one of exact logits."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            rms_norm_eps=1e-6 if exact_seed is None else 1e-12,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=False,
        )
    )
    model.lm_head.weight.data.mul_(15)
    if exact_seed is not None:
        make_exact(model, exact_seed)
    model.save_pretrained(folder)


def write_tokenizer(folder: Path, vocab_size: int = V) -> None:
    """A tokenizer of the words t0, t1, ...: a token each."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(
        models.WordLevel({f"t{token}": token for token in range(vocab_size)}, unk_token="t0")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(folder)


class Engine:
    """vLLM with the small model."""

    def __init__(self, folder: Path, **options: Any) -> None:
        from vllm import LLM

        common = {
            "tokenizer": str(folder / "tokenizer"),
            "dtype": "float32",  # without ties, of which each engine keeps others
            "max_model_len": 128,
            "max_num_seqs": 64,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "gpu_memory_utilization": 0.5,  # of a machine with other programs
            "seed": 1,
        }
        self.llm = LLM(str(folder), **common | OPTIONS | options)

    def outputs(self, prompts, parameters):
        """vLLM's output of each request; ``parameters`` has one entry for each."""
        from vllm import SamplingParams

        common = {"max_tokens": 12, "ignore_eos": True, "detokenize": False}
        return self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [SamplingParams(**common | one) for one in parameters],
            use_tqdm=False,
        )


def logprobs(output):
    """(token id, logprob, rank) of each step, sorted by id."""
    return [
        sorted((token, entry.logprob, entry.rank) for token, entry in step.items())
        for step in output.logprobs or ()
    ]


class Places:
    """Counts the steps of vLLM by where their tokens are drawn, tokendraw's scores, and preempted requests."""

    def __init__(self, runner: str) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._model_logits = 0
        if runner == "V2":
            self._wrap_v2()

    def _wrap_v2(self) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.worker.gpu.sample import sampler
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler, speculator

        self._wrap(sampler.Sampler, "__call__", lambda _, logits, *rest: self._note(logits))
        self._wrap(tokendraw.Sampler, "sample", lambda _, logits, *rest: self._count_own(logits))
        self._wrap(tokendraw.Sampler, "verify", lambda *rest: self._count(VERIFIED))
        self._wrap(ScoreProvider, "score", lambda *rest: self._count(SCORED))
        self._wrap(sampler, "gumbel_sample", lambda *rest: self._count(VLLM))
        self._wrap(rejection_sampler, "rejection_sample", lambda *rest: self._count(VLLM_VERIFIED))
        self._wrap(tokendraw.Sampler, "draft", lambda *rest: self._count(DRAFTED))
        self._wrap(speculator, "gumbel_sample", lambda *rest: self._count(VLLM_DRAFTED))
        self._wrap(Scheduler, "_preempt_request", lambda *rest: self._count("preempted"))

    def _wrap(self, owner, name, note) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def noted(*arguments, **keywords):
            note(*arguments)
            return original(*arguments, **keywords)

        setattr(owner, name, noted)

    def _note(self, logits) -> None:
        self._model_logits = logits.data_ptr()

    def _count_own(self, logits) -> None:
        self._count(MODEL if logits.data_ptr() == self._model_logits else EDITED)

    def _count(self, place) -> None:
        self.counts[place] += 1


def result(engine, places, case):
    """Outputs of a case by request, each as [tokens, logprobs, reason to stop]; sampling masks; places of the steps.

    The logprobs are those of the prompt's tokens, where asked for, and of the output's.
    """
    places.counts.clear()
    prompts = [case.prompts[i % len(case.prompts)] for i in range(len(case.requests))]
    requests = engine.outputs(prompts, case.requests)
    outputs = [
        [[list(o.token_ids), prompt_logprobs(each) + logprobs(o), o.stop_reason] for o in each.outputs]
        for each in requests
    ]
    masks = [o.sampling_mask and o.sampling_mask.token_ids for each in requests for o in each.outputs]
    return {"outputs": outputs, "masks": masks, "places": dict(places.counts)}


def prompt_logprobs(request):
    return logprobs(SimpleNamespace(logprobs=[step for step in request.prompt_logprobs or () if step]))


def refusal(engine):
    """What vLLM answers to a request with a misspelt rule."""
    try:
        engine.outputs(PROMPTS[:1], [MISSPELT])
    except ValueError as error:
        return str(error)
    return None


def fail(*arguments):
    raise RuntimeError("injected")


def main() -> None:
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    folder, runner = Path(sys.argv[1]), sys.argv[2]
    if runner == "V2":
        import triton_on_cpu

        triton_on_cpu.filter_in_torch()
    _v1.MIN_CPU_VOCABULARY = _v1.MIN_REFERENCE_VOCABULARY = 0  # the model's is small
    chosen = sys.argv[3:] or (list(CASES) if runner == "V2" else V1_CASES)
    drafts, exact = folder.with_name("drafts"), folder.with_name("exact")
    if not folder.exists():
        write_model(folder)
        write_model(drafts, layers=1)
        write_tokenizer(folder / "tokenizer")
        write_model(exact, exact_seed=0)
        write_tokenizer(exact / "tokenizer")
    places, results = Places(runner), {}
    has_adapter = os.environ.get("TOKENDRAW_VLLM") != "0"
    ENGINES[DRAWN]["speculative_config"]["model"] = str(drafts)
    for name, options in ENGINES.items() if runner == "V2" else [("plain", {})]:
        engine = Engine(exact if name.startswith(EXACT) else folder, **options)
        for case_name in chosen:
            case = CASES[case_name]
            if case.engine == name and (case.is_run_alone or has_adapter):
                results[case_name] = result(engine, places, case)
        if name == "plain":
            results["refusal"] = refusal(engine)
            sample, tokendraw.Sampler.sample = tokendraw.Sampler.sample, fail
            if runner == "V1":  # whose generators move on in the batch in which it fails
                result(engine, places, CASES["seed in a batch"])
            results["after a failure"] = result(engine, places, CASES["seed in a batch"])
            tokendraw.Sampler.sample = sample
        del engine
        gc.collect()
        cleanup_dist_env_and_memory()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
