"""Makes the calls of a warmup, so that no request waits for a kernel to be compiled or loaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

from tokendraw._loading.progress import Track, progress_line
from tokendraw._messages.errors import InvalidInputError
from tokendraw._serving.calls import Calls
from tokendraw._serving.proof import random_state_kept
from tokendraw._serving.session import Session
from tokendraw._serving.warming import Warmup
from tokendraw._torch.graphs import is_capturing

_log = logging.getLogger("tokendraw")


def warm_up(session: Session, warmups: Sequence[tuple[Calls, Warmup]], *, progress: bool | None) -> float:
    """Make the calls of each warmup; torch's random state and the counted rows are left alone.

    :param progress: whether a line on stderr shows how far it is; None: if stderr is a terminal.
    :returns: the seconds until the device was done; 0.0 on a CPU, where there is nothing to compile.
    :raises InvalidInputError: a CUDA graph is being captured.
    :raises SamplerUnavailableError: nobody serves an operation, or the plainest call of it.
    """
    if is_capturing():
        raise InvalidInputError(
            "'warmup' needs a stream that captures no CUDA graph, found one that does: its draws would become "
            "part of the graph. Call it before the capture."
        )
    start = time.perf_counter()
    for calls, _ in warmups:
        calls.serving  # noqa: B018 (negotiates)
    device = torch.empty(0, device=session.device).device  # with its index
    if compiles_nothing(device):
        _log.info("warmup draws nothing: on %s there is nothing to compile", device)
        return 0.0
    drawn = session.counts.by_name()
    with random_state_kept(device), torch.no_grad(), progress_line(progress) as track:
        for calls, warmup in warmups:
            _make(calls, warmup, device, track)
    session.counts.restore(drawn)
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - start


def compiles_nothing(device: torch.device) -> bool:
    """Whether samplers have nothing to compile or load before their first call: those of CPUs do not."""
    return device.type == "cpu"


def _make(calls: Calls, warmup: Warmup, device: torch.device, track: Track) -> None:
    serving = None
    while serving is not calls.serving:  # a successor starts from the beginning
        serving = calls.serving
        for stage in warmup.stages(serving, device):
            for call in track(stage.doing, stage.calls, stage.total):
                calls.make(call)
                if calls.serving is not serving:
                    break
            if calls.serving is not serving:
                break
