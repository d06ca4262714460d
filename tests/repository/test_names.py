"""Names in pages, docstrings and comments exist: files, definitions, targets, options, entry points, counts."""

import functools
import re
import subprocess

import click
import pytest

from pages import ROOT, text_of
from tokendraw.backends.discovery.discover import HookSpecs
from tokendraw.cli.app import main
from tokendraw.plugin import LOGPROBS_MODES

PAST = re.compile(r"^benchmarks/results/|^CHANGELOG|HISTORY|\.svg$")  # names what there was
OTHERS = """
_gumbel_sample_kernel register_kernels DEFAULT_VOCAB_PADDING_SIZE prompt_logprob_token_ids vllm_xargs use_mtp
verify_tree_greedy renormalize_logits HIP_VISIBLE_DEVICES cum_seq_lens_kv paged_kv_indptr DataLoader vllm dispatcher
output_accepted_token_num output_emitted_draft_token_num DeprecationWarning broadcast_shapes manylinux_2_17
nanovllm/layers/sampler.py tests/generation/test_logits_process.py build/site flashinfer/data/aot/sampling/sampling.so
tests/definition.py tokendraw_acme test_inf_is_drawn_evenly plugins/acme tests/plugins/test_acme.py
tests/test_conformance.py all_gather_into_tensor
"""
"""Names of other libraries, and of what a reader of the pages makes."""
PROSE = re.compile(r'^ *r?"""(.*?)"""|(?:^ *|  )# (.*?)$|"""(.*?)"""', re.MULTILINE | re.DOTALL)
PATH = r"(?:core|testing|bench|engine_ops|plugins|integrations|examples|docs|tests|site)/[\w./-]*+"
PATH = re.compile(rf"(?<![\w/.-]){PATH}(?!\*|`? (?:at|in commit) )")
NAME = re.compile(r"(?:\./)?\w[\w.-]*(?:/[\w.-]+)+/?|_?[A-Za-z]\w+(?:\.\w+)+|\w\w+_\w+|_\w+|\w+[a-z][A-Z]\w*")
COMMAND = re.compile(r"(`|^\$ |^)(make|tokendraw) ([a-z][^`\n]*)", re.MULTILINE)
CLI = click.Context(main)
TARGETS = {f"make {name}" for name in re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE)}
COUNTS = {
    r"(\w+)\s+hooks\b": sum(name.startswith("tokendraw_") for name in vars(HookSpecs)),
    r"\ball\s+(\w+)\s+modes\b": len(LOGPROBS_MODES),
}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


@functools.cache
def checkout():
    """Return the prose of each page and Python file, the other words of each file, groups, and all words."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    prose, words, groups = {}, {}, set()
    for path in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        read = (ROOT / path).is_file() and not PAST.search(path)
        code = (ROOT / path).read_text(encoding="utf-8", errors="replace") if read else ""
        groups |= set(re.findall(r'^\[project.entry-points."(.+)"\]', code, re.MULTILINE))
        if read and path.endswith(".md"):
            prose[path], code = code, ""
        elif path.endswith(".py"):
            prose[path] = "\n".join(doc + comment for doc, comment, _ in PROSE.findall(code))
            code = PROSE.sub(lambda match: match[3] or "", code)
        words[path] = set(re.findall(r"\w+", code))
    return prose, words, groups, set(OTHERS.split()).union(*words.values())


@functools.cache
def is_there(name):
    """Whether a path or a dotted name exists: a name that begins with a module, in the code of the module."""
    _, words, groups, every_word = checkout()
    if "/" in name or re.search(r"\.(?:py|md|toml|txt|h|cpp|yml)$", name):
        part = f"/{name.removeprefix('./').rstrip('./')}/"
        return name in OTHERS.split() or any(part in f"/{path}/" for path in words)
    parts = name.lstrip(".").split(".")
    for count in range(len(parts) if name.startswith((".", "tokendraw")) else 0, 0, -1):
        ends = tuple("/".join(["", *parts[:count]]) + end for end in (".py", "/__init__.py"))
        if files := [path for path in words if f"/{path}".endswith(ends)]:
            return name in groups or not parts[count:] or any(parts[count] in words[path] for path in files)
    return name[0] != "." and every_word.issuperset(parts)


def stale(prose, page):
    """Yield the names in the prose of a page or a Python file that do not exist."""
    spans = re.findall(r"(:\w+:)?(?<!`)`{1,2}~?([^`]+?)(?:\(\))?`(?! in commit)", prose)
    named = {span for role, span in spans if (role or NAME.fullmatch(span)) and page != "docs/parameters.md"}
    yield from (name for name in named | set(PATH.findall(prose)) if not is_there(name))
    for mark, program, words in COMMAND.findall(prose):
        name, *rest = words.split()
        if program == "make":
            yield from {f"make {target}" for target in re.match("[a-z -]*", words)[0].split()} - TARGETS
        elif name in main.list_commands(CLI):
            flags = {
                flag for it in main.get_command(CLI, name).params for flag in it.opts + it.secondary_opts
            }
            yield from {word.partition("=")[0] for word in rest if word.startswith("--")} - flags - {"--help"}
        elif mark:
            yield f"tokendraw {name}"
    yield from set(re.findall(r"entry point group\s+`+([^`]+)`", prose)) - checkout()[2]
    for phrase, count in COUNTS.items():
        yield from {*re.findall(phrase, prose)} & {*NUMBERS} - {NUMBERS[count]}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the files that git has")
def test_every_name_is_there():
    found = {page: sorted(set(stale(prose, page))) for page, prose in checkout()[0].items()}
    assert {page: names for page, names in found.items() if names} == {}
