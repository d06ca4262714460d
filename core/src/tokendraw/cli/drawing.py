"""``tokendraw sample`` and ``generate``: tokens for the logits in a file, and text from a language model.

``sample`` draws one token for each row of logits, which numpy or safetensors reads. No code in a file is ever run:
arrays are read without pickles. JSON: ``file`` (as it was given), ``tensor`` (its name, null if it has none),
``shape``, ``dtype`` (in the file; float64 is rounded to float32), ``sampler``, ``device``, ``logprobs_mode``,
``resolution`` (as ``resolve --json``) and ``rows``: ``row``, ``token_id``, ``valid`` (null of a sampler without a valid
flag) and, with ``--logprobs``, ``logprob``, ``rank``, ``log_kept_mass`` and ``best`` (``token_id``, ``logprob``; best
first). Numbers that JSON cannot hold, such as the logprob -inf, are null.

``generate`` needs no download. JSON: ``prompt``, ``sampler``, ``device``, ``resolution`` and ``texts``, one entry with
``params`` (the fields of ``SamplingParams``), ``token_ids`` and ``text`` (what was drawn, without the prompt).
"""

from __future__ import annotations

import importlib
import math
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tokendraw import operations
from tokendraw._torch.importing import require_torch
from tokendraw.backends.description import FILTER_ORDERS, INPUT_DTYPES, GumbelDtype, LogprobsMode, Need
from tokendraw.backends.discovery import settings as _settings
from tokendraw.cli import options
from tokendraw.cli.negotiation import JsonObject, resolution_json
from tokendraw.cli.terminal import GuardedCommand, print_json, print_table, progress
from tokendraw.errors import TokendrawError, all_of, how_to_install, nearest, one_of
from tokendraw.output import SamplerOutput
from tokendraw.parameters.params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from tokendraw.operations.row_methods import Sampler

_last_options = options.all_of_options(
    options.selection_options,
    click.option("-q", "--quiet", is_flag=True, help="Do not say on stderr which sampler drew, and why."),
    options.verbose_option,
    options.json_option,
)

_HELP_OF_PARAMETERS = {
    "temperature": "0 is greedy.",
    "top_k": "Keep the k likeliest tokens. 0: off.",
    "top_p": "Keep the likeliest tokens that make up this share of the mass. 1: off.",
    "min_p": "Keep tokens at least this likely relative to the likeliest. 0: off.",
    "typical_p": "Keep the tokens closest to the entropy that make up this share of the mass. 1: off.",
    "xtc_probability": "How often to drop all likely tokens but the least likely of them. 0: off.",
    "xtc_threshold": "Least probability of a likely token.",
}
_PLAIN = SamplingParams()
params_options = options.all_of_options(
    *(
        click.option(
            f"--{name.replace('_', '-')}",
            default=getattr(_PLAIN, name),
            show_default=name == "temperature",  # the help of the others says what is off
            help=text,
        )
        for name, text in _HELP_OF_PARAMETERS.items()
    ),
    click.option(
        "--filter-order",
        type=click.Choice(FILTER_ORDERS),
        default=_PLAIN.filter_order,
        show_default=True,
        help="Whether top-p counts what top-k left, or both count everything; or filters at temperature 1.",
    ),
    click.option("--seed", type=int, help="Same seed, same tokens. Default: others in every run."),
)
"""Options for the fields of ``SamplingParams``, under the same names and with the same defaults."""


def _filter_values(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, float] | None:
    filters = {}
    for text in values:
        name, _, value = text.partition("=")
        try:
            filters[name] = float(value)
        except ValueError:
            raise click.BadParameter(
                f"{text!r} needs the form NAME=VALUE, such as top_n_sigma=1.0."
            ) from None
    return filters or None


filters_option = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_filter_values,
    help="A filter from moments, such as top_n_sigma=1.0; may be given again.",
)


def load(sampler: str | None, device: str | None, need: Need) -> Sampler:
    """Load the sampler chosen by the options, as :func:`tokendraw.load_sampler` does."""
    from tokendraw.providers import open_negotiator

    settings = _settings.read_settings()
    negotiator, discovery = open_negotiator(settings, settings.choice(sampler, options.SAMPLER), device, need)
    negotiator.select(operations.find_operation("sample"), discovery)
    from tokendraw.operations.row_methods import Sampler

    return Sampler(negotiator)


def sampler_json(sampler: Sampler) -> JsonObject:
    resolution = resolution_json(sampler.resolution)
    return {"sampler": sampler.name, "device": str(sampler.device), "resolution": resolution}


def drawn_by(sampler: Sampler) -> str:
    """Write the line ``drawn by NAMES on DEVICE: REASON`` from the rows that each sampler has drawn so far."""
    resolution, rows = sampler.resolution, sampler.stats()
    chosen, companions = resolution.chosen, resolution.companions
    reason = next(decision.reason for decision in resolution.decisions if decision.name == chosen)
    if list(rows) in [[name] for name in companions]:
        return f"drawn by {all_of(rows)} on {sampler.device}: it draws what {chosen} cannot ({reason})"
    names = chosen
    if len(rows) > 1:
        total = sum(rows.values())
        chosen_first = sorted(rows, key=lambda name: name != chosen)
        names = all_of(f"{name} ({rows[name]} of {total} rows)" for name in chosen_first)
    line = f"drawn by {names} on {sampler.device}: {reason}"
    return f"{line}; {' or '.join(companions)} draws what {chosen} cannot" if companions else line


# The logits in a file.

ENDINGS = (".npy", ".safetensors")
_NAMES_SHOWN = 8


class LogitsFileError(TokendrawError):
    """A file does not hold logits; the message names the file, the need and the content in one line."""


class LogitsFile(NamedTuple):
    """Logits with their name and dtype in the file."""

    logits: Tensor
    """[B, V] float32, bfloat16 or float16 on the CPU."""
    tensor: str | None
    """Name of the tensor inside the file; None if it has no name."""
    dtype: str
    """Dtype in the file by its torch name. ``logits`` has the same, but float32 in place of float64."""


def read_logits(path: Path, tensor: str | None = None) -> LogitsFile:
    """Read the logits in ``path``, a .npy or .safetensors file, or ``-`` for one on standard input."""
    is_pipe, ending = path == Path("-"), path.suffix.lower()
    if not is_pipe and not path.is_file():
        content = "a directory" if path.is_dir() else "something else" if path.exists() else "nothing there"
        raise LogitsFileError(f"'{path}' needs to be a file, found {content}. Check the path.")
    if not is_pipe and ending not in ENDINGS:
        content = f"the ending '{path.suffix}'" if ending else "no ending"
        raise LogitsFileError(f"'{path}' needs the ending {one_of(ENDINGS)}, found {content}. Convert it.")
    require_torch("Drawing")
    if not is_pipe:
        return _read(str(path), path, ending, tensor)
    if sys.stdin is None or sys.stdin.isatty():
        raise LogitsFileError(
            "'standard input' needs logits, found no file behind it. Redirect or pipe one into it."
        )
    with tempfile.TemporaryDirectory() as folder:
        received = Path(folder, "logits")
        with received.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        with received.open("rb") as file:
            ending = ".npy" if file.read(6) == b"\x93NUMPY" else ".safetensors"
        return _read("standard input", received, ending, tensor)


def _read(name: str, path: Path, ending: str, tensor: str | None) -> LogitsFile:
    try:
        if ending == ".npy":
            values = _read_npy(path, tensor)
        else:
            tensor, values = _read_safetensors(path, tensor)
        return _rows(values, tensor)
    except LogitsFileError as error:
        raise LogitsFileError(f"'{name}' {error}") from error.__cause__
    except PermissionError as error:
        raise LogitsFileError(f"'{name}' cannot be read: {error.strerror}. Check its permissions.") from error
    except Exception as error:  # which one of a damaged file depends on its library
        size = path.stat().st_size
        raise LogitsFileError(
            f"'{name}' needs to be a complete {ending} file of numbers, found {size} bytes that are not. "
            "Write it again."
        ) from error


def _read_npy(path: Path, tensor: str | None) -> Tensor:
    import torch

    numpy = _library("numpy")
    if tensor is not None:
        raise LogitsFileError(
            f"holds one array without a name, but '{tensor}' was asked for. Leave --tensor out."
        )
    # Mapped: a header that lies about the shape costs no memory.
    array = numpy.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise LogitsFileError(
            f"needs float32, float16 or float64 values, found {array.dtype}. Save the logits as one of these "
            "(bfloat16 fits into .safetensors)."
        )
    return torch.from_numpy(numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _read_safetensors(path: Path, tensor: str | None) -> tuple[str, Tensor]:
    with _library("safetensors").safe_open(path, framework="pt", device="cpu") as file:
        names = list(file.keys())
        listing = ", ".join(f"'{each}'" for each in names[:_NAMES_SHOWN])
        if len(names) > _NAMES_SHOWN:
            listing += f" and {len(names) - _NAMES_SHOWN} more"
        if not names:
            raise LogitsFileError("needs a tensor, found none in it. Write it again.")
        if tensor is None and len(names) > 1:
            raise LogitsFileError(f"needs a choice between its tensors {listing}. Pick one with --tensor.")
        if tensor is not None and tensor not in names:
            near = nearest(tensor, names)
            advice = "Pick one of them" if near is None else f"Try --tensor {near}"
            raise LogitsFileError(f"needs a tensor '{tensor}', found {listing}. {advice}.")
        picked = names[0] if tensor is None else tensor
        return picked, file.get_tensor(picked)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LogitsFileError(
            f"needs the library '{name}' to be read, found it not installed. Run `pip install {name}`."
        ) from error


def _rows(values: Tensor, tensor: str | None) -> LogitsFile:
    """Check shape and dtype, and lay out the rows; +inf wins every draw, so float64 has to fit float32."""
    shape, dtype = list(values.shape), str(values.dtype).removeprefix("torch.")
    if dtype not in (*INPUT_DTYPES, "float64"):
        needed = one_of(INPUT_DTYPES)
        raise LogitsFileError(f"needs {needed} values, found {dtype}. Save the logits as one of these.")
    if len(shape) not in (1, 2):
        raise LogitsFileError(
            f"needs shape [V] or [B, V], found rank {len(shape)}, shape {shape}. Save the rows to draw from."
        )
    if 0 in shape:
        raise LogitsFileError(f"needs at least one row and one token, found shape {shape}. Write it again.")
    rows = values.reshape(-1, shape[-1])
    if dtype == "float64":
        lost = rows[rows.float().isinf() & rows.isfinite()]
        if lost.numel():
            found = f"{lost[0].item():.3g} in float64"
            raise LogitsFileError(f"needs values within float32, found {found}. Scale the logits.")
        rows = rows.float()
    return LogitsFile(rows, tensor, dtype)


@click.command(cls=GuardedCommand, short_help="Draw tokens for the logits in a file.")
@click.argument("file", type=click.Path(path_type=Path))
@params_options
@filters_option
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
@_last_options
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
    params = SamplingParams(**fields).check()
    with progress("reading the logits, loading a sampler, drawing"):
        source = read_logits(file, tensor)
        from tokendraw.parameters.metadata import SamplingMetadata

        num_rows, vocab_size = source.logits.shape
        need = Need(
            logprobs_mode=logprobs_mode,
            filter_orders=(params.filter_order,),
            gumbel_dtype=gumbel_dtype,
            dtype=str(source.logits.dtype).removeprefix("torch."),
            vocab_size=vocab_size,
        )
        drawer = load(sampler, device, need)
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
        origin = {"file": str(file), "tensor": source.tensor, "shape": shape, "dtype": source.dtype}
        print_json({**origin, **sampler_json(drawer), "logprobs_mode": logprobs_mode, "rows": rows})
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
    if output.logprobs is not None:
        logprobs, masses = output.logprobs.cpu(), output.log_kept_mass
        for index, row in enumerate(rows):
            drawn, *best = logprobs.row(index)
            mass = None if masses is None else masses[index].item()
            row.update(logprob=drawn.logprob, rank=drawn.rank, log_kept_mass=mass)
            row["best"] = [{"token_id": each.token_id, "logprob": each.logprob} for each in best]
    return rows


def _print_rows(rows: Sequence[Mapping[str, Any]], mode: str) -> None:
    header = ["row", "token", "valid"]
    header += [mode, "rank", "kept mass", "best"] if "logprob" in rows[0] else []
    cells, valid = [], {True: "yes", False: "no", None: "-"}
    for d in rows:
        line = [str(d["row"]), str(d["token_id"]), valid[d["valid"]]]
        if "logprob" in d:
            best = ", ".join(f"{entry['token_id']} ({entry['logprob']:.4f})" for entry in d["best"])
            line += [f"{d['logprob']:.4f}", str(d["rank"]), f"{math.exp(d['log_kept_mass']):.4f}", best]
        cells.append(line)
    print_table(header, cells)


# Text.

PARAGRAPH = "\n\n"
"""The token between two paragraphs. Every sequence begins with it."""
_ORDER, _DISCOUNT = 4, 0.75
_WHOLE = "Leave it out: the text is printed when all of it is drawn"
# A token has the space before it. A word keeps what belongs to it: built-in, sys.path, f(x), a[i], don't.
_TOKEN = re.compile(r"\n\n| ?\w+(?:[-'\u2019./]\w+)*(?:\([^\s()]*\)|\[[^\s\[\]]*\])?| ?[^\w\s]")
_SENTENCES = re.compile(r"[A-Z](?!.*(?:::=|>>>|---|===))(?:\S+ ){5,}.*[.:)]")
_MARK_UP = re.compile(r'["“”]|\*+(?=\w)|(?<=\w)\*+')


def documentation() -> list[str]:
    """Return the paragraphs of prose behind ``help()``, each once and on one line, without mark-up."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise TokendrawError(
            "'generate' needs the help pages that ship with CPython, 'pydoc_data.topics', found none. "
            "Install Python's full standard library."
        ) from error
    blocks = re.split(r"\n\s*\n", PARAGRAPH.join(topics.values()))
    lines = (_MARK_UP.sub("", " ".join(block.split())) for block in blocks)
    return list(dict.fromkeys(line for line in lines if _SENTENCES.fullmatch(line)))


class DemoModel:
    """Continues prompts with words of the documentation, by absolute discounting (Ney, Essen and Kneser 1994).

    With h' the history h less its first word, c the counts of n-grams and N(h) the number of different words after h,
    ``p(w | h) = max(c(h w) - D, 0) / c(h) + D * N(h) / c(h) * p(w | h')``. The recursion ends in the uniform
    distribution, so every word has a finite logit.
    """

    def __init__(self, sampler: Sampler) -> None:
        words = _TOKEN.findall(PARAGRAPH.join(["", *documentation(), ""]))
        self._sampler = sampler
        self.vocabulary = sorted(set(words))
        self._ids = {word: index for index, word in enumerate(self.vocabulary)}
        self._counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        ids = [self._ids[word] for word in words]
        for end, word in enumerate(ids):
            for start in range(max(0, end - _ORDER + 1), end + 1):
                self._counts[tuple(ids[start:end])][word] += 1

    def write(self, prompt: str, params: SamplingParams, count: int) -> tuple[list[int], str]:
        """Continue ``prompt`` by ``count`` words; return their ids and text, without the prompt."""
        from tokendraw._torch.threads import one_thread
        from tokendraw.parameters.metadata import SamplingMetadata

        device = self._sampler.device
        # No history holds -1, the id of an unknown word: only the words after it count.
        sequence = [self._ids[PARAGRAPH], *(self._ids.get(word, -1) for word in _TOKEN.findall(prompt))]
        start = len(sequence)
        with one_thread():
            for position in range(start - 1, start - 1 + count):
                metadata = SamplingMetadata.from_params([params], device=device, positions=[position])
                output = self._sampler.sample(self.logits(sequence)[None].to(device), metadata)
                sequence += output.token_ids.tolist()
        text = "".join(self.vocabulary[token_id] for token_id in sequence[start:])
        return sequence[start:], text.lstrip(" ") if prompt[-1:] in ("", " ") else text

    def logits(self, sequence: Sequence[int]) -> Tensor:
        """Return the natural log-probabilities of the next token, [V] float32 on the CPU."""
        import torch

        row = torch.full((len(self.vocabulary),), 1 / len(self.vocabulary), dtype=torch.float64, device="cpu")
        for length in range(min(_ORDER, len(sequence) + 1)):
            followers = self._counts.get(tuple(sequence[len(sequence) - length :]))
            if followers is None:
                break  # a longer history holds this one, so no text has it either
            total = followers.total()
            row *= _DISCOUNT * len(followers) / total
            counts = torch.tensor([*followers.values()], dtype=torch.int64, device="cpu").double()
            row[list(followers)] += (counts - _DISCOUNT) / total
        return row.log_().float()


@click.command(cls=GuardedCommand, short_help="Draw text from a small language model.")
@click.argument("prompt")
@params_options
@click.option(
    "--model",
    "folder",
    type=click.Path(exists=True, file_okay=False),
    help="A folder with a Hugging Face model. Default: the n-gram model.",
)
@click.option(
    "-n", "--tokens", type=click.IntRange(min=1), default=80, show_default=True, help="How many to draw."
)
@filters_option
@options.removed_option("--compare", "Run it once for each setting, with the same --seed")
@options.removed_option("--stream", _WHOLE)
@options.removed_option("--no-stream", _WHOLE)
@options.removed_option("--samplers", "Name the filters, and the order by --filter-order")
@options.removed_option("--show-chain", "tokendraw.kept_ids lists what a row keeps")
@options.gumbel_dtype_option
@_last_options
def generate(
    prompt: str,
    folder: str | None,
    tokens: int,
    gumbel_dtype: GumbelDtype,
    sampler: str | None,
    device: str | None,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Continue PROMPT with words drawn from an n-gram model of Python's own documentation.

    The model is fitted to the help pages of this Python in about a second. It gives every word of its
    vocabulary a probability, so temperature, top-k, top-p and min-p do here what they do to a large model.
    With --seed the same text comes out in every run; without it, each run differs. With --model a Hugging Face
    model from disk writes, through tokendraw-transformers.

    \b
    tokendraw generate "The import statement" --temperature 0.7 --top-k 40 --top-p 0.9 --seed 42
    tokendraw generate "A class is" --model ./Qwen2.5-0.5B --top-p 0.9
    """  # noqa: D301 - the escape tells click to leave these lines as they are
    params = SamplingParams(**fields).check()
    with progress("loading a sampler and the language model"):
        require_torch("Drawing")
        drawer = load(sampler, device, Need(filter_orders=(params.filter_order,), gumbel_dtype=gumbel_dtype))
        if folder is None:
            model: Any = DemoModel(drawer)
        else:
            try:
                from tokendraw_transformers import ModelOnDisk
            except ModuleNotFoundError as error:
                raise TokendrawError(
                    "'--model' needs tokendraw-transformers, found it not installed; run "
                    f"{how_to_install('tokendraw-transformers')}."
                ) from error
            model = ModelOnDisk(folder, drawer)
    with progress("drawing"):
        token_ids, text = model.write(prompt, params, tokens)
    if as_json:
        entry = {"params": asdict(params), "token_ids": token_ids, "text": text}
        print_json({"prompt": prompt, **sampler_json(drawer), "texts": [entry]})
        return
    if not quiet:
        click.echo(drawn_by(drawer), err=True)
    click.echo(prompt + text)
