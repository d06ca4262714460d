"""The sampler `cpu`: passes the addresses of a batch to the compiled library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from tokendraw import InvalidInputError, LogprobsTensors, Need, SamplerOutput, SamplingMetadata, philox
from tokendraw.filters import MomentSum, combined_floor, moments_of_sums, required_moments, required_sums
from tokendraw.plugin import LOGPROBS_MODES
from tokendraw.row_parameters import filter_columns
from tokendraw_cpu.library import (
    Context,
    LogitsArguments,
    Logprobs,
    MomentArguments,
    NoiseArguments,
    ParameterArguments,
    SampleArguments,
)

CPU: Final = torch.device("cpu")
INT64, FLOAT32, BOOL = (
    torch.empty(0, dtype=dtype, device=CPU) for dtype in (torch.int64, torch.float32, torch.bool)
)
"""Prototypes of outputs: ``new_empty`` takes less time than ``empty`` with a dtype and a device."""
DTYPES: Final = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_MODES: Final = LOGPROBS_MODES
"""In the order of ``LogprobsMode`` in ``cpp/arguments.h``."""
_THREADED_LOGITS: Final = 1 << 19
"""Logits of a batch above which helper threads take part."""
_COLUMNS: Final = {
    "temperature": torch.float64,
    "top_k": torch.int64,
    "top_p": torch.float64,
    "min_p": torch.float64,
    "xtc_probability": torch.float64,
    "xtc_threshold": torch.float64,
    "joint": torch.bool,
    "temperature_last": torch.bool,
}
_NO_LOGPROBS: Final = Logprobs(width=-1)

Streams: TypeAlias = tuple[int, int]
"""The streams of random numbers of tokens and of tiles."""
SAMPLE_STREAMS: Final[Streams] = (philox.TOKEN, philox.TILE)


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of a batch, whose addresses the library reads. Each is dense, but for the distance of rows."""

    logits: Tensor
    """[rows, V]."""
    metadata: SamplingMetadata
    columns: dict[str, Tensor]
    """Parameters [rows], but for those that the host rules out."""
    floor: Tensor | None
    """[rows] float32: the highest floor in y of the filters from moments; None without any."""
    seed: Tensor
    """[rows] int64."""
    position: Tensor
    """[rows] int64."""


class CpuSampler:
    """The compiled sampler. Made by ``tokendraw.load_sampler("cpu")``."""

    def __init__(self, need: Need, target: str | None = None) -> None:
        """Load the library.

        :param target: instruction set, of :func:`tokendraw_cpu.library.supported_targets`; None: the fastest.
        """
        self._context = Context(target)
        self._need = need
        self._mode = _MODES.index(need.logprobs_mode)

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw a token in each row; see :class:`tokendraw.plugin.SamplerBackend`."""
        return self.draw(self.read_batch(logits, metadata))

    def read_batch(self, logits: Tensor, metadata: SamplingMetadata) -> Batch:
        """Read the parameters and the noise of each row; rows without a seed get a fresh one."""
        logits = with_dense_rows(logits)
        rows = logits.shape[0]
        columns = _columns(metadata, rows)
        noise = philox.seeds_and_positions(metadata, rows, logits.device)
        filters, floor = metadata.filters_per_row(), None
        if filters is not None:
            floor = self.floors(logits, *filters, filter_temperature(columns, rows))
        seed, position = dense(noise[0], torch.int64, rows), dense(noise[1], torch.int64, rows)
        return Batch(logits, metadata, columns, floor, seed, position)

    def draw(
        self, batch: Batch, streams: Streams = SAMPLE_STREAMS, scored_ids: Tensor | None = None
    ) -> SamplerOutput:
        """Draw a token in each row.

        :param scored_ids: [rows] int64 in [0, V): tokens whose log-probabilities are returned; None: those drawn.
        """
        rows, size = batch.logits.shape
        facts, need = batch.metadata.facts, self._need
        threshold = ceiling = None
        if need.threshold:
            threshold = FLOAT32.new_empty(rows)
            ceiling = FLOAT32.new_empty(rows) if facts.any_ceiling else None
        width = facts.logprobs_width(size)
        outputs = _LogprobsOutputs(batch.metadata, rows, width, has_ranks=need.logprob_ranks)
        drawn = SamplerOutput(
            INT64.new_empty(rows),
            BOOL.new_empty(rows),
            outputs.logprobs,
            outputs.log_kept_mass,
            threshold,
            ceiling,
        )
        wanted = outputs.arguments(self._mode)
        self._context.sample(self.arguments(batch, drawn, streams, wanted, address(scored_ids)))
        return drawn

    def arguments(
        self,
        batch: Batch,
        output: SamplerOutput,
        streams: Streams = SAMPLE_STREAMS,
        logprobs: Logprobs | None = None,
        scored_ids: int | None = None,
    ) -> SampleArguments:
        """Fill in the arguments of a draw; the batch and its output have to outlive them."""
        return SampleArguments(
            logits_arguments(batch.logits),
            ParameterArguments(
                floor=address(batch.floor),
                **{name: column.data_ptr() for name, column in batch.columns.items()},
            ),
            NoiseArguments(
                batch.seed.data_ptr(), batch.position.data_ptr(), self._need.gumbel_dtype == "fp64", *streams
            ),
            _NO_LOGPROBS if logprobs is None else logprobs,
            scored_ids,
            output.token_ids.data_ptr(),
            output.valid.data_ptr(),
            address(output.threshold),
            address(output.ceiling),
            DTYPES[batch.logits.dtype],
            num_threads(batch.logits),
        )

    def floors(self, logits: Tensor, names: tuple[str, ...], values: Tensor, temperature: Tensor) -> Tensor:
        """Compute the floors in y of the filters from moments, [rows] float32.

        :param values: [rows, F] float32, of the F filters ``names``.
        :param temperature: [rows] float64, at which the filters look.
        """
        moments = required_moments(names)
        sums: dict[MomentSum, Tensor] = {
            name: torch.empty(len(logits), 1, dtype=torch.float64, device=CPU)
            for name in required_sums(moments)
        }
        arguments = MomentArguments(
            logits_arguments(logits),
            temperature.data_ptr(),
            dtype=DTYPES[logits.dtype],
            threads=num_threads(logits),
            **{name: column.data_ptr() for name, column in sums.items()},
        )
        self._context.moments(arguments)
        largest = torch.finfo(torch.float64).max
        inverse = temperature.reciprocal().clamp_(max=largest).unsqueeze(-1)
        floor = combined_floor(names, values, moments_of_sums(sums, moments, inverse))
        return dense(floor, torch.float32, len(logits))


class _LogprobsOutputs:
    """The tensors of a batch's log-probabilities, and what it asks for."""

    def __init__(self, metadata: SamplingMetadata, rows: int, width: int | None, *, has_ranks: bool) -> None:
        self.logprobs: LogprobsTensors | None = None
        self.log_kept_mass: Tensor | None = None
        self._width = width
        if width is None:
            return
        asked = metadata.per_row("logprobs")
        given = None if metadata.given_ids is None else metadata.per_row("logprob_token_ids")
        self._asked, self._given = (
            None if column is None else dense(column, torch.int64, rows) for column in (asked, given)
        )
        columns = 0 if self._given is None else self._given.shape[1]
        self.logprobs = LogprobsTensors(
            INT64.new_empty(rows, 1 + width),
            FLOAT32.new_empty(rows, 1 + width),
            INT64.new_empty(rows) if has_ranks else None,
            None if self._given is None else INT64.new_empty(rows, columns),
            None if self._given is None else FLOAT32.new_empty(rows, columns),
        )
        self.log_kept_mass = FLOAT32.new_empty(rows)

    def arguments(self, mode: int) -> Logprobs:
        if self._width is None or self.logprobs is None:
            return _NO_LOGPROBS
        found = self.logprobs
        return Logprobs(
            self._width,
            address(self._asked),
            address(found.token_ids),
            address(found.logprobs),
            address(found.ranks),
            address(self.log_kept_mass),
            0 if self._given is None else self._given.shape[1],
            address(self._given),
            address(found.given_token_ids),
            address(found.given_logprobs),
            mode,
        )


def logits_arguments(logits: Tensor) -> LogitsArguments:
    """Describe [rows, V] logits with dense rows to the library."""
    rows, size = logits.shape
    return LogitsArguments(logits.data_ptr(), rows, size, logits.stride(0))


def with_dense_rows(logits: Tensor) -> Tensor:
    """Return [rows, V] logits whose rows are dense, at any distance: the same tensor, or a copy.

    :raises InvalidInputError: they are on another device than the CPU.
    """
    if not logits.is_cpu:
        raise _other_device(logits)
    return logits if logits.shape[1] == 1 or logits.stride(1) == 1 else logits.contiguous()


def num_threads(logits: Tensor) -> int:
    """Return how many threads share the rows of a batch."""
    return torch.get_num_threads() if logits.numel() > _THREADED_LOGITS else 1


def _columns(metadata: SamplingMetadata, rows: int) -> dict[str, Tensor]:
    """Spread the parameters of a batch over its rows, but for those that the host rules out."""
    names = metadata.memo.get(_columns)
    if names is None:
        filters = filter_columns(metadata)
        names = [name for name in _COLUMNS if filters.get(name, metadata.temperature) is not None]
        metadata.memo[_columns] = names
    columns = {name: column for name in names if (column := metadata.per_row(name)) is not None}
    return {name: dense(column, _COLUMNS[name], rows) for name, column in columns.items()}


def filter_temperature(columns: dict[str, Tensor], rows: int) -> Tensor:
    """Return the temperature at which the filters of each row look, [rows] float64; 1 in greedy rows."""
    temperature, is_last = columns.get("temperature"), columns.get("temperature_last")
    if temperature is None:
        return torch.ones(rows, dtype=torch.float64, device=CPU)
    found = torch.where(temperature > 0, temperature, 1.0).clamp_(max=torch.finfo(torch.float64).max)
    return found if is_last is None else torch.where(is_last, 1.0, found)


def dense(tensor: Tensor, dtype: torch.dtype, length: int) -> Tensor:
    """Return a tensor [length, ...] as the library reads it, contiguous and of this dtype: itself, or a copy.

    :raises InvalidInputError: it has another length, or is on another device than the CPU: the library looks at
        addresses alone.
    """
    if tensor.shape[0] != length:
        raise InvalidInputError(
            f"a tensor for {length} rows needs as many entries, found shape {list(tensor.shape)}. Pass one entry a row."
        )
    if not tensor.is_cpu:
        raise _other_device(tensor)
    return tensor if tensor.dtype is dtype and tensor.is_contiguous() else tensor.to(dtype).contiguous()


def _other_device(tensor: Tensor) -> InvalidInputError:
    return InvalidInputError(
        f"'cpu' needs tensors on the CPU, found one on {tensor.device}. Pass tensor.cpu()."
    )


def address(tensor: Tensor | None) -> int | None:
    """Return the address of the first element; None for None."""
    return None if tensor is None else tensor.data_ptr()
