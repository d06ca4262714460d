"""Runs ranks as threads of one process, so that one device suffices to check sharded calls.

A :class:`ThreadRank` stands where the process group of :class:`tokendraw.VocabShard` does. It is stricter than NCCL and
gloo are: a collective that not all ranks make, or that they make of different shapes or dtypes, raises on every rank,
where those would wait or mix up memory.

One rank computes at a time, from one collective to the next, in rank order. So a run repeats itself, although all ranks
share torch's generators and whatever a sampler keeps for a device: rank 0 takes its random numbers first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from tokendraw.plugin import one_thread
from tokendraw_testing.kit.trial import Violation

_T = TypeVar("_T")

TIMEOUT_SECONDS = 60.0
"""How long all ranks may take."""


class CollectiveError(Violation):
    """Ranks made different collectives; the message says where."""


@dataclass(frozen=True)
class ThreadRank:
    """A rank of a world: a group for :class:`tokendraw.VocabShard`."""

    rank: int
    world: _World

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self.world.size

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, [R, ...]."""
        return torch.stack(self._exchange("all_gather", tensor))

    def all_sum(self, tensor: Tensor) -> None:
        """Replace a tensor of integers by its sum over all ranks."""
        tensor.copy_(torch.stack(self._exchange("all_sum", tensor)).sum(0))

    def broadcast_from_first(self, tensor: Tensor) -> Callable[[], object]:
        """Begin to replace a tensor by the tensor of rank 0; calling the result completes the copy."""
        first = self._exchange("broadcast_from_first", tensor)[0]
        return lambda: tensor.copy_(first)

    def gather_objects(self, value: object) -> list[Any]:
        """List the values of all ranks in rank order."""
        return self.world.exchange(self.rank, "gather_objects", value)

    def _exchange(self, name: str, tensor: Tensor) -> list[Tensor]:
        about = f"{name} of {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        if not tensor.is_contiguous():
            raise Violation(f"{about} needs a contiguous tensor, found strides {list(tensor.stride())}")
        # A copy: its owner may write to the tensor while others still read.
        return self.world.exchange(self.rank, about, tensor.clone())


@dataclass(eq=False)
class _World:
    """State shared by the ranks: the rank in turn, and the offers to the current collective."""

    size: int
    seconds: float = TIMEOUT_SECONDS
    changed: threading.Condition = field(default_factory=threading.Condition)
    at_work: int = 0
    """The rank that computes; the number of ranks if none can go on."""
    offers: dict[int, tuple[str, Any]] = field(default_factory=dict)
    done: list[tuple[str, Any]] = field(default_factory=list)
    """Offers to the last collective that all ranks made, in their order."""
    turn: int = 0
    """Number of collectives that all ranks made."""
    left: set[int] = field(default_factory=set)
    """Ranks that make no more of them."""

    def begin(self, rank: int) -> None:
        """Wait for the first turn of a rank."""
        with self.changed:
            self._wait(rank, "its start")

    def exchange(self, rank: int, about: str, value: Any) -> list[Any]:
        """Wait for the offers of all ranks, and return them in their order."""
        with self.changed:
            turn = self.turn
            self.offers[rank] = about, value
            self._pass_on()
            self._wait(rank, about)
            if self.turn == turn:  # nobody can go on: some have left
                raise CollectiveError(
                    f"all ranks need to make the same collectives, found rank {rank} at {about} and rank "
                    f"{min(self.left)} done after {turn} collectives"
                )
            done = self.done
        for other_rank, (offer_about, _) in enumerate(done):
            if offer_about != about:
                raise CollectiveError(
                    f"all ranks need to make the same collectives, found rank {rank} at {about} and rank {other_rank} "
                    f"at {offer_about} after {turn} collectives"
                )
        return [offer for _, offer in done]

    def leave(self, rank: int) -> None:
        """Note that a rank has returned or raised; the other ranks stop waiting for it."""
        with self.changed:
            self.left.add(rank)
            if self.at_work in (rank, self.size):
                self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn to the next rank, or to the first after a complete collective."""
        if len(self.offers) == self.size:
            self.done = [self.offers[rank] for rank in range(self.size)]
            self.offers, self.turn = {}, self.turn + 1
        ready_ranks = set(range(self.size)) - self.left - self.offers.keys()
        self.at_work = min(ready_ranks, default=self.size)
        self.changed.notify_all()

    def _wait(self, rank: int, about: str) -> None:
        if not self.changed.wait_for(lambda: self.at_work in (rank, self.size), self.seconds):
            raise CollectiveError(
                f"rank {self.at_work} needs to return or to make a collective, found it at work after "
                f"{self.seconds:g} s, while rank {rank} waits at {about}"
            )


def on_ranks(size: int, work: Callable[[ThreadRank], _T], *, seconds: float = TIMEOUT_SECONDS) -> list[_T]:
    """Run ``work`` on every rank of a world, each in a thread, and list the results.

    :param size: number of ranks.
    :param seconds: how long they may take together.
    :raises CollectiveError: ranks made different collectives, or a rank does not return.
    :raises Exception: an exception of ``work``, from the lowest rank that raised one by itself.
    """
    world = _World(size, seconds)
    results: dict[int, _T] = {}
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        try:
            world.begin(rank)
            with torch.no_grad(), one_thread():
                results[rank] = work(ThreadRank(rank, world))
        except BaseException as error:  # a sampler that calls sys.exit must not end a thread in silence
            errors[rank] = error
        finally:
            world.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    for rank in sorted(errors, key=lambda rank: (isinstance(errors[rank], CollectiveError), rank)):
        raise errors[rank]
    missing_ranks = [rank for rank in range(size) if rank not in results]
    if missing_ranks:
        raise CollectiveError(
            f"rank {missing_ranks[0]} needs to return or to make a collective, found it at work after {seconds:g} s"
        )
    return [results[rank] for rank in range(size)]
