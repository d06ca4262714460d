"""Finds the seeds of the rows of a batch: listed, derived from a base seed, or returned by a callable."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from tokendraw import InvalidParameterError


class Row(int):
    """The index of a row in its batch, and its prompt: the argument of a callable ``seeds``.

    It is an integer: ``seeds=lambda row: 100 + row``. In a pipeline the index starts anew with each batch, so
    tell prompts apart by ``prompt_ids`` there.
    """

    prompt_ids: tuple[int, ...]
    """Token ids of the row's prompt, without padding; empty where the model is given embeddings."""
    repeat: int
    """Number of rows before it in the batch with the same prompt, as ``num_return_sequences`` makes them."""

    @classmethod
    def of(cls, index: int, prompt_ids: tuple[int, ...], repeat: int) -> Row:
        row = cls(index)
        row.prompt_ids, row.repeat = prompt_ids, repeat
        return row


Seeds: TypeAlias = int | Sequence[int | None] | Tensor | Callable[[Row], int | None] | None


def derived_seed(base: int, token_ids: Iterable[int], repeat: int = 0) -> int:
    """Derive the seed of a row from a base seed, as ``seeds=base`` does.

    It is the first eight bytes, little-endian, of the SHA-256 of ``base`` modulo 2**64, ``repeat`` and the token ids,
    each as eight little-endian bytes. So it depends on the prompt, and on no other prompt of the batch.

    :param base: an integer in [-2**63, 2**64).
    :param token_ids: of the row's prompt, without padding.
    :param repeat: how many rows before it in the batch have the same prompt.
    :returns: an integer in [0, 2**64).
    :raises InvalidParameterError: a ValueError: ``base`` is no such integer.
    """
    if isinstance(base, bool) or not isinstance(base, int) or not -(2**63) <= base < 2**64:
        raise InvalidParameterError(
            f"'seeds' needs a base seed in [-2**63, 2**64), found {base!r}. Pass an integer in that range."
        )
    words = (base % 2**64, repeat, *token_ids)
    text = b"".join(word.to_bytes(8, "little") for word in words)
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


def row_seeds(
    seeds: Any, rows: int, prompts: Callable[[], Sequence[Sequence[int]]], *, subject: str
) -> list[int | None]:
    """Find the seed of each row. Listed seeds, and those that a callable returns, are checked when the batch is built.

    :param prompts: returns the token ids of each row's prompt, without padding; called only if they are needed.
    :param subject: what a row is, in a message.
    """
    if seeds is None:
        return [None] * rows
    if hasattr(seeds, "tolist"):  # a tensor, an array, a scalar of numpy
        seeds = seeds.tolist()
    if isinstance(seeds, int):
        return [derived_seed(seeds, row.prompt_ids, row.repeat) for row in _rows_of_prompts(prompts())]
    if callable(seeds):
        return [seeds(row) for row in _rows_of_prompts(prompts())]
    if not isinstance(seeds, Sequence) or isinstance(seeds, (str, bytes)):
        raise InvalidParameterError(
            f"'seeds' needs an integer, one entry {subject}, or a callable of the row, found a "
            f"{type(seeds).__name__}. Pass one of these."
        )
    if len(seeds) != rows:
        raise InvalidParameterError(
            f"'seeds' needs one entry {subject}, found {len(seeds)}. Pass a list of integers or None."
        )
    return list(seeds)


def _rows_of_prompts(prompts: Sequence[Sequence[int]]) -> list[Row]:
    previous: Counter[tuple[int, ...]] = Counter()
    rows = []
    for index, prompt in enumerate(map(tuple, prompts)):
        rows.append(Row.of(index, prompt, previous[prompt]))
        previous[prompt] += 1
    return rows
