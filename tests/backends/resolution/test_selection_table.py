"""Who is chosen on every platform, with every upstream version, choice and logprobs mode, and every word about it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import tokendraw_aiter
import tokendraw_flashinfer
import tokendraw_native
import tokendraw_triton_gumbel
from fake_candidates import GFX1250, MI300X, nvidia
from tokendraw import Need, SamplerUnavailableError, resolve
from tokendraw.plugin import Host
from tokendraw.resolution import Candidate, Choice, State
from tokendraw_flashinfer import kernels, signatures


def test_every_choice_and_every_message_is_as_written():
    written = (Path(__file__).parent / "selection_table.txt").read_text(encoding="utf-8")
    assert list(lines()) == written.splitlines()


# What is chosen where: every platform, upstream version, choice and logprobs mode, as one readable text.


NO_KERNELS = (
    "needs FlashInfer's sampling module prebuilt, or nvcc, ninja and a C++ compiler to build it, found no nvcc and no "
    "ninja; run `pip install flashinfer-jit-cache==0.7.2.post1` from FlashInfer's index, or install a CUDA toolkit"
)
"""As :func:`tokendraw_flashinfer.kernels.find` says where there is neither."""


class Upstream(NamedTuple):
    """A version of the library behind a plugin, and why its kernels cannot be had, if so."""

    label: str
    version: str | None
    no_kernels: str | None = None


FLASHINFERS = (
    Upstream("absent", None),
    Upstream("too old", "0.6.5"),
    Upstream("tested", "0.7.2.post1"),
    Upstream("untested", "0.7.3"),
    Upstream("too new", "0.8.0"),
    Upstream("JIT impossible", "0.7.2.post1", NO_KERNELS),
)
AITERS = (Upstream("absent", None), Upstream("too old", "0.1.12"), Upstream("untested", "0.1.13"))
"""No version of it was run, so that none is tested; the range has no end."""

RTX5090 = nvidia(12, 0, "RTX 5090", 170)
NVIDIA = {
    "no GPU": Host(device_type="cpu"),
    "CUDA 7.0": nvidia(7, 0, "V100", 80),
    "CUDA 7.5": nvidia(7, 5, "T4", 40),
    "CUDA 8.0": nvidia(8, 0, "A100", 108),
    "CUDA 9.0": nvidia(9, 0, "H100", 132),
    "CUDA 10.0": nvidia(10, 0, "B200", 148),
    "CUDA 12.0 with CUDA 12.8": replace(RTX5090, cuda_version=(12, 8)),
    "CUDA 12.0 with CUDA 12.9": RTX5090,
    "16 SMs": nvidia(8, 7, "Orin NX", 16),
}
AMD = {
    "ROCm gfx90a": Host(device_type="rocm", name="MI250X", rocm_arch="gfx90a"),
    "ROCm gfx942": MI300X,
    "ROCm gfx1250": GFX1250,
}
MODES = ("raw_logprobs", "processed_logprobs")


def _candidate(module: object, host: Host, installed: Upstream) -> Candidate:
    plugin = module.plugin  # type: ignore[attr-defined]
    info = plugin.tokendraw_describe()
    probe_reason = installed.no_kernels
    if info.name == "flashinfer" and installed.version is not None and probe_reason is None:
        with mock.patch.object(
            kernels, "_toolkit", return_value=None
        ):  # the driver's version is all that is known
            probe_reason = kernels.unnamed_target(host)
    return Candidate(
        name=info.name,
        state=State.LOADED,
        distribution=f"tokendraw-{info.name}",
        version="0.1.0",
        entry_point=f"tokendraw_{info.name.replace('-', '_')}:plugin",
        first_party=True,
        info=info,
        upstream_version=installed.version,
        probe_reason=probe_reason,
    )


def _outcomes(vendor, name, host, installed):
    """(The choice and mode, the chosen plugin, the warnings) for a platform and version."""
    torch, triton = Upstream("", "2.11.0"), Upstream("", "3.6.0")
    choices = {
        "default": Choice(),
        "default, without triton-gumbel": Choice(),
        f"sampler={name!r}": Choice(sampler=name, source="the argument sampler="),
        f"TOKENDRAW_SAMPLER={name}": Choice(sampler=name, source="TOKENDRAW_SAMPLER"),
        f"TOKENDRAW_DISABLE={name}": Choice(disabled=(name,)),
    }
    for label, choice in choices.items():
        for mode in MODES:
            need = Need(logprobs_mode=mode)
            found = [
                _candidate(tokendraw_native, host, torch),
                _candidate(vendor, host, installed),
            ]
            if "without" not in label:
                found.append(_candidate(tokendraw_triton_gumbel, host, triton))
            if name in choice.disabled:
                found[1] = replace(
                    found[1], state=State.DISABLED, info=None, reason="TOKENDRAW_DISABLE names it"
                )
            try:
                made = resolve(found, host, need, choice)
            except SamplerUnavailableError as error:
                yield f"{label}, {mode}", "refused", [str(error)]
            else:
                chosen = ", beside ".join(filter(None, (made.chosen, " or ".join(made.companions))))
                yield f"{label}, {mode}", chosen, list(made.warnings)


def lines() -> Iterator[str]:
    """Write the table, and behind the table the numbered texts. A FlashInfer that is installed is not looked at."""
    nowhere = Path("flashinfer is not installed")
    with (
        mock.patch.object(signatures, "package_folder", return_value=nowhere),
        mock.patch.object(kernels, "package_folder", return_value=nowhere),
    ):
        yield from _lines()


def _lines() -> Iterator[str]:
    texts: dict[str, int] = {}
    yield "Chosen, and who serves the rows that it cannot. Numbers: what the user hears; the texts stand at the end."
    for platforms, vendor, name, versions in (
        (NVIDIA, tokendraw_flashinfer, "flashinfer", FLASHINFERS),
        (AMD, tokendraw_aiter, "aiter", AITERS),
    ):
        for platform, host in platforms.items():
            blocks: dict[tuple[str, ...], list[str]] = {}
            for installed in versions:
                body = []
                for asked, chosen, heard in _outcomes(vendor, name, host, installed):
                    numbers = [texts.setdefault(text, len(texts) + 1) for text in heard]
                    body.append(f"  {asked:<54}{chosen:<33} {', '.join(map(str, numbers))}".rstrip())
                label = f"{installed.label} ({installed.version})" if installed.version else installed.label
                blocks.setdefault(tuple(body), []).append(label)
            for body, labels in blocks.items():
                yield ""
                yield f"{platform}; {name} {', '.join(labels)}"
                yield from body
    yield ""
    for text, number in texts.items():
        yield ""
        yield f"{number}. {text}"


if __name__ == "__main__":
    print("\n".join(lines()))
