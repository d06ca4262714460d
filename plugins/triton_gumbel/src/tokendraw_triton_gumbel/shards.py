"""The columns of one rank, where the vocabulary lies on several: :class:`tokendraw.vocab_parallel.LocalLogits`.

What is common to calls is made once, as :mod:`.sampler` does. A call waits for nothing, and which kernels it launches
follows from what the host knows of the batch, so that it can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw.vocab_parallel import (
    BINS,
    DIGIT_BITS,
    KEY_BITS,
    Argmax,
    Bounds,
    Digits,
    Draws,
    Layout,
    RowSeeds,
    Survey,
    Weighing,
)
from tokendraw_triton_gumbel.arguments import Arguments
from tokendraw_triton_gumbel.kernels.shards.argument_groups import Digit, DigitFilter, RowBounds
from tokendraw_triton_gumbel.launches import parameters
from tokendraw_triton_gumbel.launches.launch import Step, current_stream
from tokendraw_triton_gumbel.launches.parameters import MaybeTensors
from tokendraw_triton_gumbel.launches.shard_searches import MOST_VALUES, ShardSearches
from tokendraw_triton_gumbel.launches.shard_words import Words, words_of_survey
from tokendraw_triton_gumbel.launches.shards import ShardLaunches, ShardPlaces
from tokendraw_triton_gumbel.many_best import best_tokens

_INF = float("inf")


class ShardColumns:
    """The columns [B, n] of a rank: see :class:`tokendraw.vocab_parallel.LocalLogits`."""

    def __init__(
        self,
        launches: ShardLaunches,
        places: ShardPlaces,
        logits: Tensor,
        layout: Layout,
        tensors: MaybeTensors,
        arguments: Arguments,
    ) -> None:
        """Allocate scratch.

        :param logits: [B, n], n > 0: without columns one of -inf.
        :param tensors: what :func:`.launches.parameters.readable` returned.
        """
        self._launches, self._logits, self._layout, self._arguments = launches, logits, layout, arguments
        self._tensors, self._stream = tensors, current_stream(logits.get_device())
        # What kernels are given the address of has to live until they are launched.
        self._memory = torch.empty(places.offsets[-1], dtype=torch.uint8, device=logits.device)
        self._operands = launches.operands(
            places,
            arguments.one(logits),
            logits.stride(0),
            arguments.params(tensors, None),
            arguments.pieces(launches.scratch, places, self._memory),
        )
        self._is_read = False

    @property
    def logits(self) -> Tensor:
        """Return the logits."""
        return self._logits

    def argmax(self) -> Argmax:
        """Find the largest value of each row."""
        return Argmax(**self._drawn(None, None))

    def largest(self, count: int, masses: int, fresh: Tensor | None) -> Survey:
        """Find the largest values, how many more tie with the last, and the mass of each row."""
        assert count <= MOST_VALUES
        self._read()
        searches, operands, given = self._searches, self._operands, self._arguments
        bits = self._unit_bits
        if masses == BINS:
            self._launch(searches.add(operands, Digit(KEY_BITS - DIGIT_BITS, bits), DigitFilter(), None))
        layout = words_of_survey(count, masses, fresh=fresh is not None)
        words = self._words(layout)
        its_fresh, out = given.tensors((fresh, words))
        self._launch(searches.survey(operands, layout, count, bits, its_fresh, out))
        views = layout.views(words)
        return Survey(views["x"], views["ties"], views.get("mass"), views.get("fresh"))

    def histogram(self, digits: Digits, weighing: Weighing | None) -> Tensor:
        """Add up what values weigh by a digit of their keys."""
        self._read()
        device = self._logits.device
        histogram = torch.zeros((len(self._logits), BINS), dtype=torch.int64, device=device)
        columns = (digits.prefix, *((None, None) if weighing is None else weighing[:2]))
        # What kernels are given the address of has to live until they are launched.
        alive = [None if column is None else column.contiguous() for column in columns]
        *counted, out = self._arguments.tensors((*alive, histogram))
        step = Digit(digits.shift, 0 if weighing is None else weighing.bits)
        self._launch(self._searches.add(self._operands, step, DigitFilter(*counted), out))
        return histogram

    def draw(self, bounds: Bounds | None, seeds: RowSeeds | None, *, best: int | None) -> Draws:
        """Draw the candidates for the token of each row."""
        found = self._drawn(bounds, seeds)
        if best is not None:
            found["best_x"], found["best_ids"] = best_tokens(self._logits, best, self._layout)
        return Draws(**found)

    def count(self, least: Tensor) -> Tensor:
        """Count the values that are at least ``least``: NaN counts as -inf, which all are."""
        counted = (self._logits >= least).sum(-1, keepdim=True)
        return counted.where(least > -_INF, self._layout.ids.size).squeeze(-1)

    def _drawn(self, bounds: Bounds | None, seeds: RowSeeds | None) -> dict[str, Tensor]:
        launches, given = self._launches, self._arguments
        self._read()
        words = self._words(launches.words)
        bounded = self._weighed(bounds)
        fresh = None if seeds is None else seeds.fresh()  # they may be on their way while logits are read
        fresh = None if fresh is None else fresh.contiguous()
        flags = parameters.presence(launches.variant.params, fresh=fresh is not None)
        its_fresh, its_words = given.tensors((fresh, words))
        self._launch(launches.draw(self._operands, its_fresh, flags, bounded, its_words))
        return launches.words.views(words)

    def _weighed(self, bounds: Bounds | None) -> RowBounds:
        """Weigh what is kept of each tile, where any row may drop tokens."""
        if bounds is None:
            return RowBounds()
        self._bounds = tuple(column.contiguous() for column in bounds)  # alive until the draw is launched
        known = self._launches.bounds(self._operands, *self._arguments.tensors(self._bounds))
        self._launch(self._launches.weigh(self._operands, known))
        return known

    def _read(self) -> None:
        """Read all logits, once."""
        if not self._is_read:
            self._launch(self._launches.statistics(self._operands))
            self._is_read = True

    @property
    def _searches(self) -> ShardSearches:
        searches = self._launches.searches
        assert searches is not None  # a batch without filters searches for nothing
        return searches

    @property
    def _unit_bits(self) -> int:
        """Return how many bits the units of a weight of 1 have, such that no sum overflows."""
        return 62 - self._layout.vocab_size.bit_length()

    def _words(self, layout: Words) -> Tensor:
        shape = len(self._logits), layout.width
        return torch.empty(shape, dtype=torch.int32, device=self._logits.device)

    def _launch(self, step: Step) -> None:
        launch, grid, arguments = step
        launch(grid, arguments, self._stream)
