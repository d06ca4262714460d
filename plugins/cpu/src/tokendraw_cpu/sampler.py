"""The sampler `cpu`: passes the addresses of a batch to the compiled library."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tokendraw import LogprobsTensors, Need, SamplerOutput, SamplingMetadata, philox
from tokendraw.filters import combined_floor, required_moments
from tokendraw.plugin import LOGPROBS_MODES
from tokendraw.row_parameters import filter_columns
from tokendraw.vocab_parallel import MomentSum, moments_of_sums, required_sums
from tokendraw_cpu.library import (
    Context,
    LogitsArguments,
    Logprobs,
    MomentArguments,
    NoiseArguments,
    ParameterArguments,
    SampleArguments,
)

_DTYPES: Final = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_MODES: Final = LOGPROBS_MODES
"""In the order of ``LogprobsMode`` in ``cpp/arguments.h``."""
_THREADED_LOGITS: Final = 1 << 19
"""Logits of a batch above which helper threads take part."""
_COLUMNS: Final = {
    "top_k": torch.int64,
    "top_p": torch.float64,
    "min_p": torch.float64,
    "xtc_probability": torch.float64,
    "xtc_threshold": torch.float64,
    "joint": torch.bool,
    "temperature_last": torch.bool,
}


class CpuSampler:
    """The compiled sampler. Made by ``tokendraw.load_sampler("cpu")``."""

    def __init__(self, need: Need, target: str | None = None) -> None:
        """Load the library.

        :param target: instruction set, of :func:`tokendraw_cpu.library.supported_targets`; None: the fastest.
        """
        self._context = Context(target)
        self._need = need
        self._mode = _MODES.index(need.logprobs_mode)

    @torch.no_grad()
    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw a token in each row; see :class:`tokendraw.plugin.SamplerBackend`."""
        rows, size = logits.shape
        facts, need = metadata.facts, self._need
        logits = _with_dense_rows(logits)
        columns = _columns(metadata)
        floor = self._floors(logits, metadata, columns)
        seed, position = philox.seeds_and_positions(metadata, rows, logits.device)
        seed, position = seed.contiguous(), position.contiguous()
        token_ids, valid = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.bool)
        threshold = ceiling = None
        if need.threshold:
            threshold = torch.empty(rows)
            ceiling = torch.empty(rows) if facts.any_ceiling else None
        width = facts.logprobs_width(size)
        outputs = _LogprobsOutputs(metadata, rows, width, has_ranks=need.logprob_ranks)
        arguments = SampleArguments(
            _logits(logits),
            ParameterArguments(
                floor=_address(floor), **{name: _address(column) for name, column in columns.items()}
            ),
            NoiseArguments(
                seed.data_ptr(), position.data_ptr(), need.gumbel_dtype == "fp64", philox.TOKEN, philox.TILE
            ),
            outputs.arguments(self._mode),
            token_ids.data_ptr(),
            valid.data_ptr(),
            _address(threshold),
            _address(ceiling),
            _DTYPES[logits.dtype],
            _num_threads(logits),
        )
        self._context.sample(arguments)
        return SamplerOutput(token_ids, valid, outputs.logprobs, outputs.log_kept_mass, threshold, ceiling)

    def _floors(
        self, logits: Tensor, metadata: SamplingMetadata, columns: dict[str, Tensor | None]
    ) -> Tensor | None:
        """Compute the floors in y of the filters from moments, [rows] float32; None without any."""
        found = metadata.filters_per_row()
        if found is None:
            return None
        names, values = found
        moments = required_moments(names)
        temperature = _filter_temperature(columns, len(logits))
        sums: dict[MomentSum, Tensor] = {
            name: torch.empty(len(logits), 1, dtype=torch.float64) for name in required_sums(moments)
        }
        arguments = MomentArguments(
            _logits(logits),
            temperature.data_ptr(),
            dtype=_DTYPES[logits.dtype],
            threads=_num_threads(logits),
            **{name: column.data_ptr() for name, column in sums.items()},
        )
        self._context.moments(arguments)
        largest = torch.finfo(torch.float64).max
        inverse = temperature.reciprocal().clamp_(max=largest).unsqueeze(-1)
        return combined_floor(names, values, moments_of_sums(sums, moments, inverse)).contiguous()


class _LogprobsOutputs:
    """The tensors of a batch's log-probabilities, and what it asks for."""

    def __init__(self, metadata: SamplingMetadata, rows: int, width: int | None, *, has_ranks: bool) -> None:
        self.logprobs: LogprobsTensors | None = None
        self.log_kept_mass: Tensor | None = None
        self._width = width
        if width is None:
            return
        self._asked = _dense(metadata.per_row("logprobs"), torch.int64)
        given = None if metadata.given_ids is None else metadata.per_row("logprob_token_ids")
        self._given = _dense(given, torch.int64)
        columns = 0 if self._given is None else self._given.shape[1]
        self.logprobs = LogprobsTensors(
            torch.empty(rows, 1 + width, dtype=torch.int64),
            torch.empty(rows, 1 + width),
            torch.empty(rows, dtype=torch.int64) if has_ranks else None,
            None if self._given is None else torch.empty(rows, columns, dtype=torch.int64),
            None if self._given is None else torch.empty(rows, columns),
        )
        self.log_kept_mass = torch.empty(rows)

    def arguments(self, mode: int) -> Logprobs:
        if self._width is None or self.logprobs is None:
            return Logprobs(width=-1)
        found = self.logprobs
        return Logprobs(
            self._width,
            _address(self._asked),
            _address(found.token_ids),
            _address(found.logprobs),
            _address(found.ranks),
            _address(self.log_kept_mass),
            0 if self._given is None else self._given.shape[1],
            _address(self._given),
            _address(found.given_token_ids),
            _address(found.given_logprobs),
            mode,
        )


def _logits(logits: Tensor) -> LogitsArguments:
    rows, size = logits.shape
    return LogitsArguments(logits.data_ptr(), rows, size, logits.stride(0))


def _with_dense_rows(logits: Tensor) -> Tensor:
    return logits if logits.shape[1] == 1 or logits.stride(1) == 1 else logits.contiguous()


def _num_threads(logits: Tensor) -> int:
    return torch.get_num_threads() if logits.numel() > _THREADED_LOGITS else 1


def _columns(metadata: SamplingMetadata) -> dict[str, Tensor | None]:
    """Spread the parameters of a batch over its rows; None where the host rules one out."""
    columns = filter_columns(metadata)
    found = {name: _dense(columns[name], dtype) for name, dtype in _COLUMNS.items()}
    found["temperature"] = _dense(metadata.per_row("temperature"), torch.float64)
    return found


def _filter_temperature(columns: dict[str, Tensor | None], rows: int) -> Tensor:
    """Return the temperature at which the filters of each row look, [rows] float64; 1 in greedy rows."""
    temperature, is_last = columns["temperature"], columns["temperature_last"]
    if temperature is None:
        return torch.ones(rows, dtype=torch.float64)
    found = torch.where(temperature > 0, temperature, 1.0).clamp_(max=torch.finfo(torch.float64).max)
    return found if is_last is None else torch.where(is_last, 1.0, found)


def _dense(column: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if column is None else column.to(dtype).contiguous()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
