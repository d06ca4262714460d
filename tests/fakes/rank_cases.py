"""What a rank of :mod:`gloo_world` does in tests of ranks that all hold the logits, each with settings of its own."""

import contextlib
import faulthandler
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import fake_dists
import tokendraw
from tokendraw.engines import choose_once

V = 40
LOGITS = torch.randn(2, V, generator=torch.Generator().manual_seed(4))
FAULT = "no kernel image"


@contextlib.contextmanager
def process(folder: str, rank: int, settings: dict[int, dict[str, Any]]) -> Iterator[pytest.MonkeyPatch]:
    """Give this rank its settings: variables, and ``plugins`` by name with their sources."""
    own = settings.get(rank, {})
    with (
        pytest.MonkeyPatch.context() as patch,
        fake_dists.fake_dists(Path(folder) / str(rank), patch) as dists,
    ):
        patch.setattr(logging.root, "handlers", [logging.NullHandler()])
        for name, source in own.get("plugins", {}).items():
            dists.add_plugin(name, source)
        for name, value in own.items():
            if name.startswith("TOKENDRAW_"):
                patch.setenv(name, value)
        yield patch
        faulthandler.cancel_dump_traceback_later()  # by which a failed rank of vLLM ends


def outcome(draw: Any) -> Any:
    """Return what comes of a load or a draw, or the error's kind and first sentence."""
    try:
        return draw()
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}".partition(". ")[0]


def twice(draw: Any, replacement: Any, patch: pytest.MonkeyPatch, own: dict[str, Any] | None) -> list[Any]:
    """Return the name of the plugin in place of the engine's sampler, and what comes of two draws.

    With ``fails`` in the settings of this rank the second one raises. After an error there is none.

    :param replacement: returns what holds the sampler after the first draw; None where the engine's own draws.
    """
    first = outcome(draw)
    if isinstance(first, str):
        return [None, first]
    if (own or {}).get("fails"):

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError(FAULT)

        patch.setattr(tokendraw.Sampler, "sample", broken)
    held = replacement()
    name = held and held.sampler.name
    return [name, first, outcome(draw)]


def by_core(rank: int, folder: str, settings: dict[int, dict[str, Any]]) -> Any:
    """Load by the names of the first rank; return the name, and what comes of a draw."""

    def load() -> tokendraw.Sampler:
        choices = choose_once(lambda: tokendraw.load_sampler(device="cpu").choices, dist.group.WORLD)
        return tokendraw.load_sampler(choices, device="cpu")

    with process(folder, rank, settings):
        sampler = outcome(load)
        if isinstance(sampler, str):
            return [None, sampler]
        metadata = tokendraw.SamplingMetadata.from_params([tokendraw.SamplingParams(temperature=0.0)] * 2)
        drawn = outcome(lambda: sampler.sample(LOGITS, metadata))
        return [sampler.choices, drawn if isinstance(drawn, str) else drawn.token_ids.tolist()]


def group() -> SimpleNamespace:
    """Return the group of all ranks, as coordinators of vLLM and SGLang have it."""
    return SimpleNamespace(world_size=dist.get_world_size(), cpu_group=dist.group.WORLD, device_group=None)


def by_vllm(rank: int, folder: str, settings: dict[int, dict[str, Any]], runner: str) -> list[Any]:
    """Draw through the adapter to vLLM; return the sampler and its tokens."""
    import tokendraw_vllm
    import vllm_stand_in

    with process(folder, rank, settings) as patch:
        installed = fake_dists.fake_dist(
            Path(folder) / f"vllm-{rank}", "vllm", "0.33.0", modules=vllm_stand_in.MODULES
        )
        patch.syspath_prepend(installed)
        patch.setattr("tokendraw_vllm._v1.MIN_CPU_VOCABULARY", 0)
        patch.setattr("tokendraw_vllm._v1.MIN_REFERENCE_VOCABULARY", 0)
        vllm_stand_in.forget()
        try:
            from vllm.distributed import parallel_state

            parallel_state.tp, parallel_state.pcp = group(), SimpleNamespace(world_size=1)
            tokendraw_vllm.register()
            return _by_v1(patch, rank, settings) if runner == "v1" else _by_v2(patch, rank, settings)
        finally:
            vllm_stand_in.forget()


def _by_v1(patch: pytest.MonkeyPatch, rank: int, settings: dict[int, dict[str, Any]]) -> list[Any]:
    from vllm_stand_in import v1_sampler

    sampler, k = v1_sampler(), torch.tensor([1, 1], dtype=torch.int32)

    def draw() -> list[int]:
        torch.manual_seed(1)
        ids: list[int] = sampler(LOGITS.clone(), {}, k, None)[0].tolist()
        return ids

    return twice(draw, lambda: vars(sampler)["_tokendraw"], patch, settings.get(rank))


def _by_v2(patch: pytest.MonkeyPatch, rank: int, settings: dict[int, dict[str, Any]]) -> list[Any]:
    from vllm_engine import Engine

    def draw() -> list[int]:
        return engine.draw(LOGITS.clone(), [0, 1], [3, 3])

    engine = Engine(V)
    for slot in range(2):
        engine.start(slot, seed=slot, top_k=1)
    return twice(draw, lambda: engine.sampler._tokendraw._replacement, patch, settings.get(rank))


def by_sglang(rank: int, folder: str, settings: dict[int, dict[str, Any]]) -> list[Any]:
    """Draw through the adapter to SGLang; return the sampler and its tokens."""
    from sglang_engine import Request, draw, info_of, sglang_at_hand

    with process(folder, rank, settings) as patch, sglang_at_hand():
        from sglang.srt.runtime_context import get_parallel

        import tokendraw_sglang
        from tokendraw_sglang import make_sampler

        def tokens() -> list[int]:
            info = info_of(
                *(Request(temperature=0.01, top_p=0.5, sampling_seed=seed) for seed in range(2)), vocab_size=V
            )
            ids: list[int] = draw(sampler, LOGITS, info)[0].tolist()
            return ids

        with get_parallel().override(tp_group=group()):
            made = outcome(lambda: make_sampler(tokendraw_sglang.state()))
            if isinstance(made, str):
                return [None, made]
            sampler = made
            draws = getattr(sampler, "_draws", None)
            return twice(tokens, lambda: draws and SimpleNamespace(sampler=draws), patch, settings.get(rank))
