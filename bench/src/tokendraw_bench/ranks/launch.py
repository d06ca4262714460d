"""Starts the ranks of ``tokendraw bench --ranks`` on this node, as torchrun does."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from tokendraw import SamplerUnavailableError, TokendrawError
from tokendraw.plugin import Host
from tokendraw.resolution import installed_version
from tokendraw.tools import how_to_install
from tokendraw_bench.operations.sample_on_ranks import RankCell
from tokendraw_bench.report.lines import BenchReport

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def report_on_ranks(
    cells: Sequence[Any],
    names: Sequence[str],
    ranks: int,
    *,
    device: torch.device,
    host: Host,
    repeats: int,
    command: str,
) -> BenchReport:
    """Time samplers over ranks: a process each, with a GPU each unless the device is a CPU.

    :param cells: each a :class:`tokendraw_bench.Cell`.
    :param names: of samplers; none: all that can.
    :param device: of the kind that the ranks compute on.
    :raises TokendrawError: this torch or this machine has no such ranks, or one of them failed.
    :raises SamplerUnavailableError: one of the samplers cannot serve this machine or no ranks; the reason in words.
    """
    backend = _backend(device, ranks)
    from tokendraw_bench.ranks.worker import RankTask, rank_samplers

    if not rank_samplers(names, device):
        is_native_missing = installed_version("tokendraw-native") is None
        mend = how_to_install("tokendraw-native") if is_native_missing else "`tokendraw doctor`"
        raise SamplerUnavailableError(
            "'--ranks' needs a sampler that draws from a vocabulary that is split over ranks, found none. "
            f"Run {mend}."
        )
    task = RankTask(
        cells=tuple(RankCell(**asdict(cell), ranks=ranks) for cell in cells),
        names=tuple(names),
        device_type=device.type,
        backend=backend,
        host=host,
        repeats=repeats,
        command=command,
    )
    return _launched(task, ranks)


def _backend(device: torch.device, ranks: int) -> str:
    """Choose the backend of torch.distributed for a kind of device.

    :raises TokendrawError: torch or the machine lacks it, or GPUs for all ranks.
    """
    backend = _BACKENDS.get(device.type)
    if backend is None:
        raise TokendrawError(f"'--ranks' needs CPUs or CUDA devices, found {device.type}. Add --device cpu.")
    import torch.distributed as dist

    if not dist.is_available() or not getattr(dist, f"is_{backend}_available")():
        raise TokendrawError(
            f"'--ranks' needs a torch with torch.distributed and {backend}, found torch {torch.__version__} without. "
            "Install a build of torch that has them."
        )
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and gpus < ranks:
        raise TokendrawError(
            f"'--ranks' needs a GPU for each of the {ranks} ranks, found {gpus}. Pass fewer, or add --device cpu."
        )
    return backend


def _launched(task: object, ranks: int) -> BenchReport:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from tokendraw_bench.ranks.worker import time_task

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        start_method="spawn",
    )
    try:
        reports = elastic_launch(config, time_task)(task)
    except SignalException as error:
        raise KeyboardInterrupt from error
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        message: Any = failure.message  # a dictionary where the process could still write one
        words = message["message"] if isinstance(message, dict) else message
        raise TokendrawError(f"rank {rank} of {ranks} failed: {words}") from error
    report: BenchReport | str = reports[0]
    if isinstance(report, str):
        raise TokendrawError(report)
    return report
