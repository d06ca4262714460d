"""Follows the tokens of a text through the stages of their request, and prints what each stage left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tokendraw.cli.terminal.tables import print_table
from tokendraw.parameters.params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from tokendraw.cli.chain_table import Stage


class ChainTracer:
    """The stages of each token of a text.

    :param params: of the text.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._steps: list[tuple[int, str, list[Stage]]] = []

    def look(self, position: int, logits: Tensor, token_id: int, piece: str) -> None:
        """Follow the row of a token."""
        from tokendraw.cli.chain_table import chain

        self._steps.append((token_id, piece, chain(logits, self._params, position)))

    def print(self) -> None:
        """Print a row for each token, with a column for each stage."""
        from tokendraw.cli.chain_table import chain_rows

        header, rows = chain_rows([(piece, stages) for _, piece, stages in self._steps])
        click.echo()
        print_table(header, rows)

    def as_json(self) -> list[dict[str, Any]]:
        """Return the steps as JSON types."""
        return [
            {"token_id": token_id, "piece": piece, "stages": [stage._asdict() for stage in stages]}
            for token_id, piece, stages in self._steps
        ]
