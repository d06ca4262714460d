"""The command as a process: imports, exit codes, pipes, interrupts, a terminal."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from command_line import call
from fake_dists import fake_dists, plugin
from tokendraw.cli import main
from tokendraw_testing import fake_dist

COMMAND = (sys.executable, "-m", "tokendraw")
ON_CPU = ("--sampler", "native", "--device", "cpu")


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, encoding="utf-8", timeout=120, check=False, **options
    )


@pytest.fixture
def dists(tmp_path, monkeypatch):
    """Fake distributions for this process and its children."""
    with fake_dists(tmp_path, monkeypatch) as distributions:
        add = distributions.add

        def add_for_children(*arguments, **options):
            folder = add(*arguments, **options)
            monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
            return folder

        distributions.add = add_for_children
        yield distributions


def test_help_lists_every_command_as_a_newcomer_meets_them():
    lines = call("--help").stdout.partition("Commands:\n")[2].splitlines()
    assert lines == [
        "  list      Every sampler, and why some cannot serve.",
        "  show      Everything about one sampler or filter.",
        "  resolve   Which sampler is chosen here, and why.",
        "  doctor    What is wrong here, and what mends it.",
        "  check     Test a sampler: every property, with figures.",
        "  bench     Time samplers against each other, and a read.",
        "  sample    Draw tokens for the logits in a file.",
        "  generate  Draw text from a small language model.",
        "  new       Start a plugin of your own.",
    ]


IN_ONE_PROCESS = """
import json, sys, warnings
from click.testing import CliRunner
from tokendraw.cli import main

warnings.simplefilter("ignore")  # torch warns of a missing numpy
results = []
for without, line in json.loads(sys.argv[1]):
    if without:
        sys.modules[without] = None
    result = CliRunner().invoke(main, line.split(), prog_name="tokendraw")
    results.append([line, result.exit_code, result.stderr])
    if without:
        del sys.modules[without]
heavy = {"torch", "numpy", "triton", "safetensors", "flashinfer", "aiter", "hypothesis"}
print(json.dumps([results, sorted(heavy & set(sys.modules))]))
"""


def in_one_process(*lines):
    """Run command lines in one interpreter: [line, exit code, stderr] of each, and the heavy modules it imported.

    :param lines: pairs of a module that is not installed, or None, and a command line.
    """
    command = [sys.executable, "-c", IN_ONE_PROCESS, json.dumps(lines)]
    return json.loads(subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout)


def test_looking_imports_no_torch_and_a_mistake_is_told_before_it_is_imported():
    lines = [(None, line) for line in ("list", "show native", "resolve --explain", "doctor")]
    mistakes = {
        "sample nofile.npy": "'nofile.npy' needs to be a file, found nothing there. Check the path.\n",
        "sample - --top-p 90": "'--top-p' needs a number in (0, 1] (1: off), found 90.0.\n",
        "generate The --top-p 90": "'--top-p' needs a number in (0, 1] (1: off), found 90.0.\n",
        "check nope": "'nope' needs to be an installed sampler, found native. Try: tokendraw list\n",
    }
    results, heavy = in_one_process(*lines, *((None, line) for line in mistakes))
    assert [code for _, code, _ in results] == [0, 0, 0, 0, 1, 2, 2, 1]
    assert {line: stderr for line, _, stderr in results[4:]} == mistakes
    assert heavy == []


NO_TORCH = "{} needs torch, found it not installed; run `pip install torch`."
FOR_CHECK = (
    "Checking needs numpy and scipy, found no {}; run `pip install ./testing` in tokendraw's checkout."
)


MISSING = {
    ("torch", "generate The"): NO_TORCH.format("Drawing"),
    ("torch", "sample -"): NO_TORCH.format("Drawing"),
    ("torch", "bench"): NO_TORCH.format("A sampler"),
    ("torch", "check native"): NO_TORCH.format("Checking"),
    ("scipy", "check native"): FOR_CHECK.format("scipy"),
    ("numpy", "check native"): FOR_CHECK.format("numpy"),
}


def test_a_missing_library_is_told_in_one_sentence():
    results, _ = in_one_process(*MISSING)
    assert [stderr.splitlines()[-1] for _, _, stderr in results] == [*MISSING.values()]
    assert {code for _, code, _ in results} == {1}


@pytest.mark.fast_first
@pytest.mark.parametrize(
    "command", [["list"], ["show", "noisy"], ["resolve"], ["doctor"], ["generate", "The", "-n", "2"]]
)
def test_what_plugins_print_does_not_spoil_json(dists, command):
    capabilities = "dtypes=('float32',), logprobs_modes=('raw_logprobs',)"
    source = plugin("noisy", capabilities=capabilities, build="print('building'); return ArgmaxSampler()")
    dists.add_plugin("noisy", "print('loading')\n" + source)
    result = call(*command, "--json")
    assert result.stderr.splitlines()[0] == "loading"
    assert isinstance(json.loads(result.stdout), dict)


def test_a_closed_pipe_ends_the_command_without_a_traceback():
    read, write = os.pipe()
    os.close(read)
    command = [*COMMAND, "list"]
    try:
        result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    finally:
        os.close(write)
    assert (result.stderr, result.returncode) == ("", 141)


FULL = "'stdout' cannot be written to: No space left on device. Write to another place.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    ("line", "stderr", "status"),
    [
        ("list >/dev/full", FULL, 1),
        ("list --json >/dev/full", FULL, 1),
        ("--help >/dev/full", FULL, 1),
        ("show nobody 2>/dev/full", "", 1),
        ("list >&-", "", 0),
        ("list 2>&-", "", 0),
        ("list >&- 2>&-", "", 0),
    ],
)
def test_a_full_disk_is_one_line_and_a_closed_stream_no_error(line, stderr, status):
    command = f"{shlex.join(COMMAND)} {line}"
    result = subprocess.run(["sh", "-c", command], capture_output=True, encoding="utf-8", check=False)
    assert (result.stderr, result.returncode) == (stderr, status)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
class TestAnInterruptAtStartUp:
    """Ctrl-C during imports: an extension module may raise an ImportError instead, or nothing."""

    @staticmethod
    def interrupted(at, then="", arguments=("generate", "The", *ON_CPU)):
        """Run the command in an interpreter with a SIGINT at the lookup of the module ``at``."""
        code = (
            "import os, signal, sys, time\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name == {at!r}:\n"
            "            sys.meta_path.remove(self)\n"
            f"            {then or 'os.kill(os.getpid(), signal.SIGINT)'}\n"
            "sys.meta_path.insert(0, Finder())\n"
            "from tokendraw.cli import main\n"
            f"main({list(arguments)!r})"
        )
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a suite in the background ignores it
        options = {"capture_output": True, "encoding": "utf-8", "timeout": 120, "preexec_fn": heed}
        result = subprocess.run([sys.executable, "-c", code], check=False, **options)
        return result.stdout, result.stderr.strip(), result.returncode

    @pytest.mark.parametrize(
        "module", ["click", "tokendraw.cli.drawing", "torch._C", "tokendraw_native.sampler"]
    )
    @pytest.mark.fast_first
    def test_it_ends_with_130_wherever_it_comes(self, module):
        assert self.interrupted(module) == ("", "", 130)

    @pytest.mark.parametrize("becomes", ["raise ImportError('numpy failed')", "pass"])
    def test_an_import_that_swallows_it_changes_nothing(self, becomes):
        then = f'exec("try: os.kill(os.getpid(), 2); time.sleep(9)\\nexcept BaseException: {becomes}")'
        assert self.interrupted("torch", then) == ("", "", 130)


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (("ch",), ["check"]),
        (("sample", "--logprobs-mode", "raw_"), ["raw_logprobs", "raw_logits"]),
        (("check", "nat"), ["native"]),
        (("bench", "--sampler", "nat"), ["native"]),
        (("bench", "--op", "proc"), ["process_logits"]),
        (("bench", "--verify-m"), ["--verify-mode"]),
    ],
)
def test_commands_options_and_samplers_are_completed(words, completions):
    completion = BashComplete(main, {}, "tokendraw", "_TOKENDRAW_COMPLETE")
    *before, last = words
    assert [item.value for item in completion.get_completions(before, last)] == completions


def on_a_terminal(*command, **variables):
    """Return the lines that a program of this interpreter writes, stdout and stderr together."""
    ours, theirs = pytest.importorskip("pty", reason="needs a POSIX terminal").openpty()
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "80"} | variables
    written = b""
    with subprocess.Popen([sys.executable, *command], stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # how Linux ends a terminal
            while part := os.read(ours, 4096):
                written += part
    os.close(ours)
    assert process.returncode == 0
    return written.decode().split("\r\n")


def test_a_table_takes_the_width_of_the_terminal():
    lines = on_a_terminal("-m", "tokendraw", "show", "native", TERM="dumb")
    assert max(map(len, lines)) <= 80
    assert any("device types" in line for line in lines)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("work", ["progress('at work')", "progress_bar(2, 'steps')"])
def test_what_is_said_during_work_stands_on_a_line_of_its_own(work, encoding):
    code = (
        "import click, time, warnings; from tokendraw.commands import progress, progress_bar\n"
        f"with {work}:\n    time.sleep(0.3); click.echo('a warning', err=True); print('by a plugin')"
    )
    written = on_a_terminal("-c", code, PYTHONIOENCODING=f"{encoding}:backslashreplace")
    assert {"a warning", "by a plugin"} <= {line.rpartition("\x1b[2K")[2].strip() for line in written}
    assert "\\u28" not in "".join(written)


LOADS = {
    "ends": ("import os; os._exit(3)", 3, "The process ended while it loaded {}."),
    "crashes": (
        "import ctypes; ctypes.string_at(0)",
        -signal.SIGSEGV,
        "The process ended while it loaded {}.",
    ),
    "takes long": ("import time; time.sleep(1.5)", None, "{} is still being loaded after 0.5 s."),
}
"""Source of a module, exit status and message of a command that loads it."""


@pytest.mark.parametrize(
    ("command", "group", "what"),
    [
        ("list", "filters", "ends"),
        ("list", "filters", "takes long"),
        ("show native", "plugins", "crashes"),
        ("resolve --explain", "plugins", "takes long"),
        ("doctor --no-build", "plugins", "ends"),
        ("--help", "commands", "ends"),
    ],
)
def test_a_plugin_filter_or_command_that_ends_the_process_or_hangs_is_named(tmp_path, command, group, what):
    source, status, message = LOADS[what]
    folder = fake_dist(tmp_path, "acme-tokendraw", modules={"fake_acme": source})
    (info,) = folder.glob("*.dist-info")
    (info / "entry_points.txt").write_text(f"[tokendraw.{group}]\nacme = fake_acme:it\n", encoding="utf-8")
    code = (
        "from tokendraw.cli import main, terminal\nterminal.SECONDS_OF_A_LOAD = 0.5\n"
        f"main({command.split()}, prog_name='tokendraw')"
    )
    environ = os.environ | {"PYTHONPATH": str(folder), "TOKENDRAW_DISABLE": "beta"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ, timeout=60
    )
    advice = "Uninstall acme-tokendraw" if group == "commands" else "Set TOKENDRAW_DISABLE=beta,acme"
    assert f"{message.format(repr('acme'))} {advice} to do without it.\n" in run.stderr
    assert status in (None, run.returncode)
