"""One process with vLLM's V2 runner: runs the cases of ``vllm_v2_cases`` and prints their results as a line of JSON.

``python vllm_v2_process.py MODEL_FOLDER [CASE...]``
"""

import collections
import functools
import gc
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

from vllm_process import Engine, logprobs, write_model, write_tokenizer

import tokendraw
import triton_on_cpu
from tokendraw.operations.row_methods import ScoreProvider
from vllm_v2_cases import (
    CASES,
    DRAFTED,
    DRAWN,
    EDITED,
    ENGINES,
    MODEL,
    PROMPTS,
    SCORED,
    VERIFIED,
    VLLM,
    VLLM_DRAFTED,
    VLLM_VERIFIED,
)

OPTIONS = {
    "skip_tokenizer_init": False,
    "max_num_batched_tokens": 64,
    "block_size": 32,
    "num_gpu_blocks_override": 20,
}
"""Parts of the longest prompts in a step, and blocks for half of them once they generate."""
MISSPELT = {"extra_args": {"tokendraw": {"top_nsigma": 1.0}}}


class Places:
    """Counts the steps of vLLM by where their tokens are drawn, tokendraw's scores, and preempted requests."""

    def __init__(self) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.worker.gpu.sample import sampler
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler, speculator

        self.counts: collections.Counter[str] = collections.Counter()
        self._model_logits = 0
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

    triton_on_cpu.filter_in_torch()
    folder, chosen = Path(sys.argv[1]), sys.argv[2:] or list(CASES)
    if not folder.exists():
        write_model(folder)
        write_tokenizer(folder / "tokenizer")
    places, results = Places(), {}
    has_adapter = os.environ.get("TOKENDRAW_VLLM") != "0"
    drafts = folder.with_name("drafts")
    if not drafts.exists():
        write_model(drafts, layers=1)
    ENGINES[DRAWN]["speculative_config"]["model"] = str(drafts)
    for name, options in ENGINES.items():
        engine = Engine(folder, tokenizer=str(folder / "tokenizer"), **OPTIONS, **options)
        for case_name in chosen:
            case = CASES[case_name]
            if case.engine == name and (case.is_run_alone or has_adapter):
                results[case_name] = result(engine, places, case)
        if name == "plain":
            results["refusal"] = refusal(engine)
            sample, tokendraw.Sampler.sample = tokendraw.Sampler.sample, fail
            results["after a failure"] = result(engine, places, CASES["seed in a batch"])
            tokendraw.Sampler.sample = sample
        del engine
        gc.collect()
        cleanup_dist_env_and_memory()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
