"""native packs bit for bit as real releases of FlashInfer do: as their scale functions, and as their kernels' text."""

import functools
import os
import shutil

import pytest
import torch

import flashinfer_wheels
import tokendraw
from flashinfer_wheels import Kernels, NotFetchedError, offers, scale_function
from tokendraw_flashinfer.packing import FORMATS
from tokendraw_flashinfer.upstream import layout_by_number

RELEASES = flashinfer_wheels.unpacked() or ("0.6.9", "0.6.10", "0.6.18")
"""One without the functions, and the smallest wheel of each layout."""
BOTH = [(0, 64, 128), (1, 64, 128), (3, 128, 384), (2, 192, 1024), (2, 5760, 2944), (2, 2880, 3072)]
"""Experts, rows and columns that both layouts allow. The last two are GPT-OSS's, whose 2880 columns are padded."""
SCALES = {"v1": [*BOTH, (2, 48, 256)], "v2": BOTH}
WEIGHTS = {"v1": [*BOTH, (1, 16, 64), (2, 48, 192), (2, 5760, 2880), (2, 2880, 2880)], "v2": BOTH}


def of(shapes):
    """A case for each release with packing, and each shape of its layout."""
    return [
        pytest.param(release, layout, shape, id=f"{release}-{layout}-{'x'.join(map(str, shape))}")
        for release in RELEASES
        if (layout := layout_by_number(release))
        for shape in shapes[layout]
    ]


@pytest.fixture(scope="session")
def source(pytestconfig, tmp_path_factory):
    """Returns the folder of a release's files."""
    kept = getattr(pytestconfig, "cache", None)  # not there under `-p no:cacheprovider`
    cache = kept.mkdir("flashinfer_wheels") if kept else tmp_path_factory.mktemp("flashinfer_wheels")

    @functools.cache
    def fetch(release):
        try:
            return flashinfer_wheels.fetch(release, cache)
        except NotFetchedError as error:
            return error

    def folder(release):
        found = fetch(release)
        if isinstance(found, NotFetchedError):
            pytest.skip(f"FlashInfer {release} cannot be fetched: {found}")
        return found

    return folder


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def kernels(request, source, tmp_path_factory):
    """Returns the kernels of a release, compiled once for a kind of device, and the kind."""
    compiler = "nvcc" if request.param == "cuda" else os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}, found none")
    compiled = {}

    def of_release(release):
        if release not in compiled:
            build = tmp_path_factory.mktemp("kernels")
            compiled[release] = Kernels(source(release), build, cuda=request.param == "cuda")
        return compiled[release], request.param

    return of_release


def random_bytes(*shape):
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(sum(shape)))


def native(device):
    return tokendraw.load("pack_sm90_w4", "native", device=device)


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_a_release_has_the_functions_promised_by_its_number(source, release):
    assert offers(source(release)) is (layout_by_number(release) is not None)


@pytest.mark.slow
@pytest.mark.parametrize(("release", "layout", "shape"), of(SCALES))
def test_scales_are_packed_as_by_a_release(source, release, layout, shape):
    experts, rows, columns = shape
    scales = random_bytes(experts, rows, columns // 32)
    needed = scale_function(source(release))(scales)
    packed = native("cpu").pack_scales(scales, layout=layout)
    assert packed.shape == needed.shape
    assert torch.equal(packed, needed)


@pytest.mark.slow
@pytest.mark.parametrize(("release", "layout", "shape"), of(WEIGHTS))
def test_weights_are_packed_as_by_the_kernels_of_a_release(kernels, release, layout, shape):
    built, device = kernels(release)
    assert sorted(built.formats) == sorted(FORMATS[layout])
    experts, rows, columns = shape
    weights, packer = random_bytes(experts, rows, columns // 2).to(device), native(device)
    for name in built.formats:
        packed = packer.pack_weights(weights, format=name, layout=layout)
        assert torch.equal(packed, built.pack(weights, name)), name
        assert torch.equal(packer.unpack_weights(packed, format=name, layout=layout), weights), name
