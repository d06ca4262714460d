"""Loads the sampler for a V2 sampler of vLLM in a thread, during the loading of the model's weights.

The thread compiles the kernels of every batch that vLLM may send, so that no request waits for a compiler. vLLM's first
call of its sampler, the dummy run that measures memory, waits for the thread: CUDA graphs are captured after that call,
and a thread must neither compile nor load kernels beside a capture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import torch

import tokendraw
from tokendraw import Need
from tokendraw_vllm import _parts
from tokendraw_vllm._engine import SEAMS, DraftSetup, is_whole, verification_obstacle
from tokendraw_vllm._parts import LeftAlone, Names, choose_for_all, names_or_reason
from tokendraw_vllm._replacement import Replacement, choose, load
from tokendraw_vllm.v2.edits import NEED, load_processor
from tokendraw_vllm.v2.logprobs import are_processed, choose_scorer, load_scorer, max_best_of
from tokendraw_vllm.v2.parameters import example_batches

_LOGITS_PADDING = 64
"""vLLM's ``DEFAULT_VOCAB_PADDING_SIZE``: the row stride of the model's logits is a multiple of this many elements."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Parameters of a load: the device, the sizes and dtypes of the logits, and the noise."""

    device: torch.device
    vocab_size: int
    max_requests: int
    dtype: torch.dtype
    """Dtype of the model's logits."""
    need: Need
    """Of draws and verifications."""
    score_need: Need
    logprobs_mode: str
    scores_processed: bool
    """Whether log-probabilities are those of filtered logits."""
    max_best: int
    """The largest number of best tokens whose log-probabilities tokendraw serves."""
    drafts: DraftSetup
    parts: frozenset[str]
    """Parts of vLLM that tokendraw may serve, by their seams and by the configuration."""

    @classmethod
    def of(
        cls, config: Any, options: Any, device: torch.device | str, vocab_size: int, max_requests: int
    ) -> Self:
        """Read the rest from vLLM's configuration and variables, and from its options: a sampler, or the model's."""
        import vllm.envs as envs

        parts, drafts = set(filter(is_whole, SEAMS)), DraftSetup.of(config)
        if envs.VLLM_BATCH_INVARIANT:
            parts.discard(_parts.EDITING)
        if not drafts.most or verification_obstacle(config) is not None:
            parts -= {_parts.VERIFICATION, _parts.DRAFTING}
        elif drafts.mode is None:
            parts.discard(_parts.DRAFTING)
        dtype, mode = getattr(getattr(config, "model_config", None), "dtype", None), options.logprobs_mode
        is_invariant, is_processed = bool(envs.VLLM_BATCH_INVARIANT), are_processed(mode)
        return cls(
            device=torch.device(device),
            vocab_size=vocab_size,
            max_requests=max_requests,
            dtype=dtype if isinstance(dtype, torch.dtype) else torch.float32,
            need=Need(
                gumbel_dtype="fp64" if options.use_fp64_gumbel else "fp32",
                batch_invariant=is_invariant,
                threshold=bool(options.return_sampling_mask or is_processed),
            ),
            score_need=Need(
                logprobs_mode="raw_logits" if mode.endswith("logits") else "raw_logprobs",
                batch_invariant=is_invariant,
            ),
            logprobs_mode=mode,
            scores_processed=is_processed,
            max_best=max_best_of(config),
            drafts=drafts,
            parts=frozenset(parts),
        )

    def choose(self) -> dict[str, Names | str]:
        verifies = _parts.VERIFICATION in self.parts
        parts: dict[str, Callable[[], Names]] = {
            _parts.SAMPLER: lambda: choose(self.device, self.need, verifies=verifies),
            _parts.SCORING: lambda: choose_scorer(self.device, self.score_need),
            _parts.EDITING: lambda: tokendraw.load("process_logits", device=self.device, need=NEED).choices,
        }
        return {part: names_or_reason(parts[part]) for part in parts if part in self.parts}

    def load(self, names: Mapping[str, Names | str] | None = None) -> Replacement | None:
        """Load the sampler, and compile its kernels; None where vLLM draws.

        Raises nothing, but ends the process where other ranks draw the same tokens. Imports no module of vLLM, whose
        main thread may be in the middle of its imports.
        """
        if self.device.type != "cpu":
            torch.accelerator.set_device_index(self.device.index or 0)
        names = names or {}
        of_sampler = names.get(_parts.SAMPLER)
        loaded = load(_parts.SAMPLER, self.device, self.need, prepare=self._warm_up, names=of_sampler)
        if loaded is None:
            return None
        layouts = self._layouts() if self.scores_processed else self._layouts()[:1]

        def load_edits() -> None:
            given = self.device, self.vocab_size, loaded.sampler.name, self.drafts.most
            loaded.processor = load_processor(*given, names=names.get(_parts.EDITING))

        loads = {
            _parts.SCORING: lambda: load_scorer(
                self.device,
                self.vocab_size,
                layouts,
                need=self.score_need,
                max_best=self.max_best,
                names=names.get(_parts.SCORING),
            ),
            _parts.EDITING: load_edits,
            _parts.VERIFICATION: lambda: self._warm_up_drafts(loaded, names),
            _parts.DRAFTING: self._warm_up_drawing,
        }
        for part in filter(self.parts.__contains__, loads):
            can_draft = loaded.seeds_every_row and _parts.VERIFICATION in loaded.serves
            if part == _parts.DRAFTING and not can_draft:
                continue
            with _parts.vllm_stays_if_it_raises(part):
                loads[part]()
                loaded.serves.add(part)
        return loaded

    def _warm_up_drafts(self, loaded: Replacement, names: Mapping[str, Names | str]) -> None:
        if names and "verify" not in names[_parts.SAMPLER]:
            raise LeftAlone("no plugin verifies on the first rank")
        verifications: list[dict[str, Any]] = [{"verify_modes": ["coupled"], "draft_kinds": ["chosen"]}]
        if self.drafts.mode is not None:
            verifications.append({"verify_modes": [self.drafts.mode], "draft_kinds": ["probs"]})
        for each in verifications:
            self._warm_up(loaded, max_drafts=self.drafts.most, **each)

    def _warm_up_drawing(self) -> None:
        if self.device.type != "cpu":
            from tokendraw_vllm.v2.draft_kernels import warm_up

            warm_up(self.device, self.dtype, self.vocab_size)

    def _layouts(self) -> list[tuple[int, torch.dtype]]:
        """Return row stride and dtype of the model's logits, and of edited logits: float32, rows without padding."""
        padded = -(-self.vocab_size // _LOGITS_PADDING) * _LOGITS_PADDING
        return [(padded, self.dtype), (self.vocab_size, torch.float32)]

    def _warm_up(self, loaded: Replacement, **drafts: Any) -> None:
        """Draw made-up batches of the model's logits and of edited logits."""
        batches = example_batches(
            self.max_requests,
            self.device,
            seeds_every_row=loaded.seeds_every_row,
            least_rows=1 + drafts.get("max_drafts", 0),
        )
        layouts = self._layouts()
        with ThreadPoolExecutor(len(layouts)) as pool:
            warmups = [
                pool.submit(
                    loaded.sampler.warmup,
                    self.vocab_size,
                    dtypes=[dtype for each, dtype in layouts if each == stride],
                    row_stride=stride,
                    metadata=batches,
                    progress=False,
                    **drafts,
                )
                for stride in dict(layouts)
            ]
        for warmup in warmups:
            warmup.result()


class BackgroundLoad:
    """The load of a setup in a thread, started at once; of several ranks the first chooses before."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        names = choose_for_all(setup.choose)
        pool = ThreadPoolExecutor(1, thread_name_prefix="tokendraw")
        self._replacement: Future[Replacement | None] = pool.submit(setup.load, names)
        pool.shutdown(wait=False)

    def result(self) -> Replacement | None:
        return self._replacement.result()


def load_during_weights(vocab_size: int, max_requests: int, device: torch.device) -> BackgroundLoad | None:
    """Start to load for vLLM's current configuration; None: it may make no such sampler, or nothing is compiled."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    if config is None or device.type == "cpu":
        return None
    model = config.model_config
    is_last_rank = config.parallel_config.pipeline_parallel_size == 1
    if not is_last_rank or model.runner_type == "pooling":
        return None
    return BackgroundLoad(Setup.of(config, model, device, vocab_size, max_requests))
