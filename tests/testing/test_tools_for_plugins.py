"""The kit's tools for tests of plugins: fixtures, and fake distributions with the files of an installer."""

import textwrap

import pytest
import torch

from tokendraw_testing import fake_dist

pytest_plugins = ["pytester", "tokendraw_testing.fixtures"]

INF = float("inf")


@pytest.fixture
def outcome(pytester):
    """``outcome(source)`` runs pytest on a test module with the fixtures."""

    def run(source):
        pytester.makepyfile('pytest_plugins = ["tokendraw_testing.fixtures"]\n' + textwrap.dedent(source))
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rs")

    return run


class TestPoisonedBuffer:
    def test_all_around_the_rows_are_inf_and_nan(self, poisoned_buffer):
        logits = poisoned_buffer(2, 3, stride=5, offset=1)
        around = logits.as_strided((12,), (1,), 0).tolist()
        assert [x for i, x in enumerate(around) if i in (0, 4, 10)] == [INF, INF, INF]
        assert all(around[i] != around[i] for i in (5, 9, 11))

    def test_a_stride_below_the_size_is_refused(self, poisoned_buffer):
        with pytest.raises(ValueError, match="stride") as error:
            poisoned_buffer(2, 6, stride=5)
        assert str(error.value) == ("'stride' needs to be at least the size, 6, found 5. Pass a larger one.")

    def test_writing_around_them_fails_the_test_and_says_where(self, outcome):
        result = outcome(
            """
            def test_it(poisoned_buffer):
                logits = poisoned_buffer(3, 5, stride=8, offset=2)
                storage = logits.as_strided((30,), (1,), 0)
                storage[1] = 0.0    # before the first row
                storage[15] = 0.0   # behind the second
                storage[29] = 0.0   # behind the last
            """
        )
        result.assert_outcomes(passed=1, errors=1)
        result.stdout.fnmatch_lines(
            [
                "E * what lies around 3 rows of 5 logits needs to be left alone, "
                "found it written to at these (row, column)",
                "E * assert [[](0, -1), (1, 5), (2, 11)] == []",  # by the rewriting of the kit's own asserts
            ]
        )


class TestFakeDist:
    def test_two_versions_of_a_fake_distribution_are_separate(self, outcome):
        result = outcome(
            """
            import sys
            import pytest

            @pytest.mark.parametrize("value", [1, 2])
            def test_it(fake_dist, value):
                folder = fake_dist("acme", "2.0", modules={"acme_fake.part": f"value = {value}"})
                import acme_fake.part
                assert acme_fake.part.value == value
                assert str(folder) in sys.path

            def test_nothing_is_left():
                assert not [name for name in sys.modules if name.startswith("acme_fake")]
                assert not [folder for folder in sys.path if folder.endswith("acme-2.0")]
            """
        )
        result.assert_outcomes(passed=3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda_the_fixtures_for_it_skip_with_a_reason(outcome):
    result = outcome(
        """
        def test_one(no_sync): ...
        def test_two(busy_device): ...
        """
    )
    result.assert_outcomes(skipped=2)
    assert result.stdout.str().count("needs a CUDA device, torch finds none") == 2


@pytest.mark.gpu
class TestOnCuda:
    def test_no_sync_raises_where_torch_would_wait(self, no_sync):
        flags = torch.ones(3, device="cuda")
        with no_sync():
            doubled = 2 * flags
            with pytest.raises(RuntimeError, match="synchroniz"):
                flags.nonzero()
        assert doubled.tolist() == [2.0, 2.0, 2.0]  # waiting is allowed again

    def test_busy_device_distinguishes_queued_work_from_waiting_work(self, busy_device):
        flag = torch.zeros(1, device="cuda")
        seconds, slept = busy_device(flag.exp)
        assert slept
        assert seconds < 0.02
        seconds, slept = busy_device(flag.item)
        assert not slept
        assert seconds > 0.1


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_distribution_is_metadata_entry_points_and_dedented_modules(tmp_path):
    source = """
        import os

        plugin = os
    """
    folder = fake_dist(
        tmp_path, "acme-tokendraw", "2.1", plugins={"acme": "fake:plugin"}, modules={"fake": source}
    )
    assert folder == tmp_path / "acme-tokendraw-2.1"
    assert files(folder) == {
        "acme_tokendraw-2.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-tokendraw\nVersion: 2.1\n",
        "acme_tokendraw-2.1.dist-info/entry_points.txt": "[tokendraw.plugins]\nacme = fake:plugin\n",
        "fake.py": "\nimport os\n\nplugin = os\n",
    }


def test_metadata_can_be_given_and_left_out(tmp_path):
    given = fake_dist(tmp_path, "acme", metadata="Name: {name}\nSummary: {braces} {version}\n", where="given")
    assert files(given) == {"acme-1.0.dist-info/METADATA": "Name: acme\nSummary: {braces} 1.0\n"}
    assert files(fake_dist(tmp_path, "acme", metadata=None, where="left out")) == {}
