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
from tokendraw import Need, Sampler
from tokendraw.plugin import GumbelDtype, LogprobsMode
from tokendraw_vllm import _parts
from tokendraw_vllm._engine import SEAMS, DraftSetup, is_whole, verification_obstacle
from tokendraw_vllm._parts import LeftAlone, Names, choose_for_all, names_or_reason
from tokendraw_vllm._replacement import Replacement, choose, load
from tokendraw_vllm.v2.edits import NEED, load_processor
from tokendraw_vllm.v2.logprobs import are_processed, choose_scorer, load_scorer, max_best_of
from tokendraw_vllm.v2.metadata import example_batches

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
    use_fp64: bool
    batch_invariant: bool
    threshold: bool
    """Whether draws return thresholds."""
    logprobs_mode: str
    scores_processed: bool
    """Whether log-probabilities are those of filtered logits."""
    max_best: int
    """The largest number of best tokens whose log-probabilities tokendraw serves."""
    drafts: DraftSetup | None
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
        if drafts is None or verification_obstacle(config) is not None:
            parts -= {_parts.VERIFICATION, _parts.DRAFTING}
        elif drafts.mode is None:
            parts.discard(_parts.DRAFTING)
        dtype, mode = getattr(getattr(config, "model_config", None), "dtype", None), options.logprobs_mode
        return cls(
            device=torch.device(device),
            vocab_size=vocab_size,
            max_requests=max_requests,
            dtype=dtype if isinstance(dtype, torch.dtype) else torch.float32,
            use_fp64=bool(options.use_fp64_gumbel),
            threshold=bool(options.return_sampling_mask or are_processed(mode)),
            logprobs_mode=mode,
            scores_processed=are_processed(mode),
            max_best=max_best_of(config),
            batch_invariant=bool(envs.VLLM_BATCH_INVARIANT),
            drafts=drafts,
            parts=frozenset(parts),
        )

    def choose(self) -> dict[str, Names | str]:
        """Choose the plugins for several ranks: names for each part, or why that part of vLLM stays."""
        verifies = _parts.VERIFICATION in self.parts
        parts: dict[str, Callable[[], Names]] = {
            _parts.SAMPLER: lambda: choose(self.device, self._need(), verifies=verifies),
            _parts.SCORING: lambda: choose_scorer(self.device, self._score_need()),
            _parts.EDITING: lambda: tokendraw.load("process_logits", device=self.device, need=NEED).choices,
        }
        return {part: names_or_reason(parts[part]) for part in parts if part in self.parts}

    def load(self, names: Mapping[str, Names | str] | None = None) -> Replacement | None:
        """Load the sampler, and compile its kernels; None where vLLM draws.

        Raises nothing, but ends the process where other ranks draw the same tokens. Imports no module of vLLM, whose
        main thread may be in the middle of its imports.

        :param names: what the first of several ranks chose for all, by :meth:`choose`; None: the best is chosen here.
        """
        if self.device.type != "cpu":
            torch.accelerator.set_device_index(self.device.index or 0)
        names = names or {}
        of_sampler = names.get(_parts.SAMPLER)
        loaded = load(_parts.SAMPLER, self.device, self._need(), prepare=self._warm_up, names=of_sampler)
        if loaded is None:
            return None
        loads = {
            _parts.SCORING: self._load_scorer,
            _parts.EDITING: self._load_processor,
            _parts.VERIFICATION: self._warm_up_drafts,
            _parts.DRAFTING: self._warm_up_drawing,
        }
        for part in filter(self.parts.__contains__, loads):
            can_draft = loaded.seeds_every_row and _parts.VERIFICATION in loaded.serves
            if part == _parts.DRAFTING and not can_draft:
                continue
            with _parts.vllm_stays_if_it_raises(part):
                loads[part](loaded, names)
                loaded.serves.add(part)
        return loaded

    def _need(self) -> Need:
        gumbel_dtype: GumbelDtype = "fp64" if self.use_fp64 else "fp32"
        return Need(gumbel_dtype=gumbel_dtype, batch_invariant=self.batch_invariant, threshold=self.threshold)

    def _score_need(self) -> Need:
        mode: LogprobsMode = "raw_logits" if self.logprobs_mode.endswith("logits") else "raw_logprobs"
        return Need(logprobs_mode=mode, batch_invariant=self.batch_invariant)

    def _load_scorer(self, _: Replacement, names: Mapping[str, Names | str]) -> None:
        load_scorer(
            self.device,
            self.vocab_size,
            self._layouts() if self.scores_processed else self._layouts()[:1],
            need=self._score_need(),
            max_best=self.max_best,
            names=names.get(_parts.SCORING),
        )

    def _load_processor(self, loaded: Replacement, names: Mapping[str, Names | str]) -> None:
        loaded.processor = load_processor(
            self.device,
            self.vocab_size,
            loaded.sampler.name,
            max_drafts=0 if self.drafts is None else self.drafts.most,
            names=names.get(_parts.EDITING),
        )

    def _warm_up_drafts(self, loaded: Replacement, names: Mapping[str, Names | str]) -> None:
        if names and "verify" not in names[_parts.SAMPLER]:
            raise LeftAlone("no plugin verifies on the first rank")
        assert self.drafts is not None
        verifications: list[dict[str, Any]] = [{"verify_modes": ["coupled"], "draft_kinds": ["chosen"]}]
        if self.drafts.mode is not None:
            verifications.append({"verify_modes": [self.drafts.mode], "draft_kinds": ["probs"]})
        for each in verifications:
            self._warm_up(loaded.sampler, loaded.seeds_every_row, max_drafts=self.drafts.most, **each)

    def _warm_up_drawing(self, _: Replacement, names: Mapping[str, Names | str]) -> None:
        if self.device.type != "cpu":
            from tokendraw_vllm.v2.draft_kernels import warm_up

            warm_up(self.device, self.dtype, self.vocab_size)

    def _layouts(self) -> list[tuple[int, torch.dtype]]:
        """Return row stride and dtype of the model's logits, and of edited logits: float32, rows without padding."""
        padded = -(-self.vocab_size // _LOGITS_PADDING) * _LOGITS_PADDING
        return [(padded, self.dtype), (self.vocab_size, torch.float32)]

    def _warm_up(self, sampler: Sampler, seeds_every_row: bool, **drafts: Any) -> None:
        """Draw made-up batches of the model's logits and of edited logits."""
        batches = example_batches(
            self.max_requests,
            self.device,
            seeds_every_row=seeds_every_row,
            least_rows=1 + drafts.get("max_drafts", 0),
        )
        dtypes_by_stride: dict[int, set[torch.dtype]] = {}
        for stride, dtype in self._layouts():
            dtypes_by_stride.setdefault(stride, set()).add(dtype)
        with ThreadPoolExecutor(len(dtypes_by_stride)) as pool:
            warmups = [
                pool.submit(
                    sampler.warmup,
                    self.vocab_size,
                    dtypes=sorted(dtypes, key=str),
                    row_stride=stride,
                    metadata=batches,
                    progress=False,
                    **drafts,
                )
                for stride, dtypes in dtypes_by_stride.items()
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
