"""The properties of an operation whose methods are pure functions of tensors, made from their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tokendraw.tools import find_operation, find_unsupported
from tokendraw_engine_ops.tensor_function import TensorCall, TensorFunction, difference, on_device, tensors_of
from tokendraw_testing.kit.device import capture, require_no_wait
from tokendraw_testing.kit.property import OperationKit, Properties, Refusal
from tokendraw_testing.kit.subject import OperationSubject, require_refusal
from tokendraw_testing.kit.threads import RepeatedCall, require_cpu_threads, require_thread_free, thread_words
from tokendraw_testing.kit.trial import Trial, require_unmodified, violations_named

_SENTINEL = 0x5A
"""Byte that stands in all memory that a call is given to write, and around it."""
_GUARD = 32
"""Elements in front of a buffer and behind it that have to stay."""
_REPLAYS = 5
_BESIDE = "memory beside the buffers needs to stay as it is, found changed"


class TensorSubject(OperationSubject):
    """A subject in such an operation: its calls, by method and way."""

    def ways(self, *, offered: bool = True) -> Iterator[tuple[str, type[TensorCall], dict[str, Any]]]:
        """List the ways to call within the capabilities, or all others: words, class of the call, options."""
        limits, need = self.capabilities, self.usual_need
        calls: Mapping[str, Any] = find_operation(self.operation).calls()
        for name, call in calls.items():
            for way in call.function.ways:
                made = self.example(call, dict(way))
                unsupported = find_unsupported(made, limits, operation=self.operation, need=need)
                if (unsupported is None) is offered:
                    yield " ".join([name, *map(str, way.values())]), call, dict(way)

    def example(
        self, call: type[TensorCall], way: dict[str, Any], index: int = 0, seed: int = 0
    ) -> TensorCall:
        """Make the call of random arguments of one of the sizes."""
        function, generator = call.function, torch.Generator().manual_seed(seed)
        return self.guarded(call, function.make(generator, function.sizes[index], **way))[0]

    def guarded(
        self, call: type[TensorCall], arguments: dict[str, Any]
    ) -> tuple[TensorCall, Callable[[], bool]]:
        """Make a call with outputs in memory full of a sentinel; tell whether the memory beside them stayed."""
        made = call(**on_device(arguments, self.device))
        made.check(self.device, self.usual_need)
        if call.function.out is None:
            return made, lambda: True
        out, memories, buffers = call.function.out(**made.arguments), [], {}
        for name, tensor in tensors_of(out).items():
            size = tensor.numel() + 2 * _GUARD
            memory = torch.empty(size, dtype=tensor.dtype, device=self.device)
            memory.view(torch.uint8).fill_(_SENTINEL)
            memories += [memory[:_GUARD], memory[size - _GUARD :]]
            buffers[name] = memory[_GUARD : size - _GUARD].view(tensor.shape)
        made.arguments["out"] = replace(out, **buffers)
        return made, lambda: all(bool((memory.view(torch.uint8) == _SENTINEL).all()) for memory in memories)

    def work(self, call: TensorCall) -> Callable[[], Any]:
        """Return the call of the backend alone, because the checks of the kit wait."""
        backend = self.built()
        return lambda: call.run(backend)


def kit_of(operation: str, functions: Mapping[str, TensorFunction]) -> OperationKit:
    """Make the kit of an operation."""
    view = type("Subject", (TensorSubject,), {"operation": operation})
    properties = Properties(operation)

    @properties.required(f"{operation} values")
    def values(subject: TensorSubject, trial: Trial) -> str:
        """Every value is that of the reference, at every size, edge and stride; what is not offered is refused."""
        count = 0
        for words, call, way in subject.ways():
            generator = torch.Generator().manual_seed(int(trial.generator(words).integers(2**31)))
            cases = [call.function.make(generator, size, **way) for size in call.function.sizes]
            for arguments in (*cases, *call.function.edges(generator, **way)):
                made, is_apart = subject.guarded(call, arguments)
                forms = {name: list(tensor.shape) for name, tensor in made.tensors().items()}
                with violations_named(f"{words}, {forms}"):
                    subject.make(made)
                    trial.require(is_apart(), _BESIDE)
                count += 1
        refused = [
            require_refusal(subject, Refusal(call=partial(TensorSubject.example, call=call, way=way)))
            for _, call, way in subject.ways(offered=False)
        ]
        return f"{count} calls" + (f"; {len(refused)} refusals: {' '.join(refused)}" if refused else "")

    @properties.required(f"{operation} inputs unmodified")
    def inputs_unmodified(subject: TensorSubject, trial: Trial) -> str:
        """Inputs keep every bit, and a result that is not given is memory of its own."""
        ways = list(subject.ways())
        for words, call, way in ways:
            made, other = (subject.example(call, way, seed=seed) for seed in (1, 2))
            with require_unmodified(trial, **made.tensors()):
                kept = subject.make(made)
            if call.function.out is None:
                with require_unmodified(trial, result=kept):
                    subject.make(other)
                given = {tensor.untyped_storage().data_ptr() for tensor in made.tensors().values()}
                is_own = kept.untyped_storage().data_ptr() not in given
                trial.require(is_own, f"{words}: a result needs memory of its own, found that of an input")
        return f"{len(ways)} ways"

    @properties.required(f"{operation} threads")
    def threads(subject: TensorSubject, trial: Trial) -> str:
        """Large inputs give the same with several threads, and by two objects at once."""
        require_cpu_threads(subject, trial)
        ways = list(subject.ways())
        for words, call, way in ways:
            calls = [_judged(subject, call, way, seed) for seed in (1, 2)]
            require_thread_free(subject, trial, words, calls)
        return f"{len(ways)} ways, {thread_words()}"

    @properties.promised(f"{operation} sync-free", "sync_free")
    def sync_free(subject: TensorSubject, trial: Trial) -> str:
        """No call waits for the device: by torch's check, and by a stopwatch behind a sleeping device."""
        ways = list(subject.ways())
        for words, call, way in ways:
            require_no_wait(trial, words, subject.work(subject.example(call, way, -1)))
        return f"{len(ways)} ways"

    @properties.promised(f"{operation} graph replay", "graph_safe")
    def graph_replay(subject: TensorSubject, trial: Trial) -> str:
        """A captured call follows inputs that change in place."""
        ways = list(subject.ways())
        for words, call, way in ways:
            made = subject.example(call, way, -1)
            replay, output = capture(subject.work(made))
            for step in range(_REPLAYS):
                changed = subject.example(call, way, -1, seed=step + 1)
                for name, tensor in made.tensors().items():
                    tensor.copy_(changed.tensors()[name])
                replay()
                reason = made.wrong_values(output, subject.usual_need)
                trial.require(reason is None, f"{words}: replay {step + 1} needs {reason}")
        return f"{len(ways)} ways, {_REPLAYS} replays"

    return OperationKit(view=view, properties=tuple(properties.all))


def _judged(subject: TensorSubject, call: type[TensorCall], way: dict[str, Any], seed: int) -> RepeatedCall:
    """Repeat a large call, whose every result is compared with the reference as it is made."""
    reference = subject.example(call, way, -1, seed).reference()
    members = {"__slots__": (), "wrong_values": lambda self, output, need: difference(reference, output)}
    known = type("Known", (call,), members)
    return RepeatedCall(lambda: subject.example(known, way, -1, seed), lambda first, output: None)
