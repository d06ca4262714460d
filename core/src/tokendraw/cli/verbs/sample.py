"""``tokendraw sample``: one token for each row of logits in a file.

JSON: ``file`` (as it was given), ``tensor`` (its name, null if it has none), ``shape``, ``dtype`` (in the
file; float64 is rounded to float32), ``sampler``, ``device``, ``logprobs_mode``, ``resolution`` (as ``resolve
--json``) and ``rows``: ``row``, ``token_id``, ``valid`` (null of a sampler without a valid flag) and, with
``--logprobs``, ``logprob``, ``rank``, ``log_kept_mass`` and ``best`` (``token_id``, ``logprob``; best first).
Numbers that JSON cannot hold, such as the logprob -inf, are null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tokendraw import operations
from tokendraw.backends.description.capabilities import GumbelDtype, LogprobsMode, Need
from tokendraw.cli import options
from tokendraw.cli.command import GuardedCommand
from tokendraw.cli.describe import drawn_by, sampler_json
from tokendraw.cli.logits_file import dtype_name, on_disk, read_logits
from tokendraw.cli.terminal.tables import print_json, print_table, progress
from tokendraw.output import PAD_TOKEN_ID, SamplerOutput
from tokendraw.parameters.params import SamplingParams


@click.command(cls=GuardedCommand, short_help="Draw tokens for the logits in a file.")
@click.argument("file", type=click.Path(path_type=Path))
@options.params_options
@options.filters_option
@click.option(
    "--position",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Where the rows stand in their sequences; with --seed it picks the noise.",
)
@click.option(
    "--sequence",
    is_flag=True,
    help="The rows follow each other in one sequence: row i stands at --position plus i.",
)
@click.option(
    "--logprobs",
    type=click.IntRange(min=-1),
    metavar="N",
    help="Log-probabilities of the drawn token and of the N best; -1: of all.",
)
@options.logprobs_mode_option
@options.gumbel_dtype_option
@click.option(
    "--tensor", "--key", "tensor", metavar="NAME", help="Which tensor or array, where the file holds several."
)
@options.selection_options
@options.quiet_option
@options.verbose_option
@options.json_option
def sample(
    file: Path,
    position: int,
    sequence: bool,
    logprobs_mode: LogprobsMode,
    gumbel_dtype: GumbelDtype,
    tensor: str | None,
    sampler: str | None,
    device: str | None,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Draw one token for each row of the logits in FILE.

    FILE is .npy or .safetensors, or - for either from standard input. It holds one row [V] or many [B, V] of
    float32, bfloat16 or float16; float64 is rounded to float32. Their libraries come with the extra files.

    With --seed, a row's token depends on its logits, the seed and the position, and not on where in FILE the
    row lies; rows of equal position share their noise. Give --sequence where the rows are the steps of one
    text.
    """
    SamplingParams(**fields).check()
    if file != Path("-"):
        on_disk(file)
    with progress("reading the logits, loading a sampler, drawing"):
        params = options.checked_params(**fields)

        from tokendraw.parameters.metadata import SamplingMetadata

        source = read_logits(file, tensor)
        num_rows, vocab_size = source.logits.shape
        need = Need(
            logprobs_mode=logprobs_mode,
            filter_orders=(params.filter_order,),
            gumbel_dtype=gumbel_dtype,
            dtype=dtype_name(source.logits.dtype),
            vocab_size=vocab_size,
        )
        drawer = options.load(sampler, device, need)
        positions = [position + row if sequence else position for row in range(num_rows)]
        metadata = SamplingMetadata.from_params(
            [params] * num_rows, device=drawer.device, positions=positions
        )
        output = drawer.sample(source.logits.to(drawer.device), metadata)
    rows = _drawn_rows(output)
    names, backends = drawer.stats(), drawer._negotiator.select(operations.find_operation("sample")).backends
    if not all(backend.capabilities.valid_flag for backend in backends if backend.name in names):
        rows = [{**row, "valid": None} for row in rows]  # what stands there says nothing
    if as_json:
        shape = [num_rows, vocab_size]
        facts = {"file": str(file), "tensor": source.tensor, "shape": shape, "dtype": source.dtype}
        print_json({**facts, **sampler_json(drawer), "logprobs_mode": logprobs_mode, "rows": rows})
        return
    if not quiet:
        click.echo(drawn_by(drawer), err=True)
        if source.dtype == "float64":
            click.echo("the file holds float64, rounded to float32", err=True)
        if invalid := sum(row["valid"] is False for row in rows):
            of_rows = f"{num_rows} {'row holds' if invalid == 1 else 'rows hold'}"
            words = "NaN, or nothing above -inf, which gives token 0: shown as not valid"
            click.echo(f"{invalid} of {of_rows} {words}", err=True)
    _print_rows(rows, logprobs_mode)


def _drawn_rows(output: SamplerOutput) -> list[dict[str, Any]]:
    """Turn an output into the rows of the JSON above, but with -inf where a logprob is -inf."""
    rows: list[dict[str, Any]] = [
        {"row": row, "token_id": token_id, "valid": valid}
        for row, (token_id, valid) in enumerate(
            zip(output.token_ids.tolist(), output.valid.tolist(), strict=True)
        )
    ]
    if output.logprobs is None:
        return rows
    columns = (output.logprobs.ranks, output.log_kept_mass)
    ranks, masses = ([None] * len(rows) if column is None else column.tolist() for column in columns)
    best_ids, logprobs = output.logprobs.token_ids.tolist(), output.logprobs.logprobs.tolist()
    for row, tokens, values, rank, mass in zip(rows, best_ids, logprobs, ranks, masses, strict=True):
        best = zip(tokens[1:], values[1:], strict=True)
        row.update(logprob=values[0], rank=rank, log_kept_mass=mass)
        row["best"] = [{"token_id": i, "logprob": value} for i, value in best if i != PAD_TOKEN_ID]
    return rows


_VALID = {True: "yes", False: "no", None: "-"}


def _print_rows(rows: Sequence[Mapping[str, Any]], mode: str) -> None:
    header = ["row", "token", "valid"]
    header += [mode, "rank", "kept mass", "best"] if "logprob" in rows[0] else []
    cells = []
    for d in rows:
        line = [str(d["row"]), str(d["token_id"]), _VALID[d["valid"]]]
        if "logprob" in d:
            best = ", ".join(f"{entry['token_id']} ({entry['logprob']:.4f})" for entry in d["best"])
            line += [f"{d['logprob']:.4f}", str(d["rank"]), f"{math.exp(d['log_kept_mass']):.4f}", best]
        cells.append(line)
    print_table(header, cells)
