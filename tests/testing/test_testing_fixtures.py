"""The conformance kit's fixtures for authors of plugins."""

import importlib
import textwrap

import pytest
import torch

import tokendraw
from fake_candidates import LAPTOP

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
    def test_is_a_view_of_the_stride_and_offset_that_were_asked_for(self, poisoned_buffer):
        logits = poisoned_buffer(3, 5, stride=8, offset=2, dtype=torch.bfloat16)
        assert (logits.shape, logits.stride(), logits.storage_offset()) == ((3, 5), (8, 1), 2)
        assert logits.dtype == torch.bfloat16
        assert not logits.any()

    def test_all_around_the_rows_are_inf_and_nan(self, poisoned_buffer):
        logits = poisoned_buffer(2, 3, stride=5, offset=1)
        around = logits.as_strided((12,), (1,), 0).tolist()
        assert [x for i, x in enumerate(around) if i in (0, 4, 10)] == [INF, INF, INF]
        assert all(around[i] != around[i] for i in (5, 9, 11))

    def test_a_read_behind_a_row_wins_the_argmax(self, poisoned_buffer):
        logits = poisoned_buffer(1, 6, stride=8)
        assert int(logits.as_strided((1, 7), (8, 1)).argmax()) == 6

    def test_a_stride_below_the_size_is_refused(self, poisoned_buffer):
        with pytest.raises(ValueError, match="stride") as error:
            poisoned_buffer(2, 6, stride=5)
        assert str(error.value) == ("'stride' needs to be at least the size, 6, found 5. Pass a larger one.")

    def test_writing_the_logits_is_allowed(self, outcome):
        result = outcome(
            """
            import pytest, torch

            @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
            def test_it(poisoned_buffer, dtype):
                for rows, size, stride in [(3, 5, 8), (3, 5, 5), (0, 5, 8), (1, 1, 1)]:
                    poisoned_buffer(rows, size, stride, 1, dtype).fill_(float("nan"))
            """
        )
        result.assert_outcomes(passed=3)

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
    def test_a_fake_distribution_is_discovered_and_importable(self, fake_dist, tmp_path):
        folder = fake_dist(
            "acme-tokendraw", plugins={"acme": "acme_fake:plugin"}, modules={"acme_fake": "x = 7"}
        )
        assert folder.parent == tmp_path
        assert importlib.import_module("acme_fake").x == 7
        (result,) = [c for c in tokendraw.discover(host=LAPTOP) if c.name == "acme"]
        assert (result.distribution, result.version) == ("acme-tokendraw", "1.0")

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

    def test_guards_on_the_device_are_watched_too(self, poisoned_buffer):
        logits = poisoned_buffer(4, 1000, stride=1024, device="cuda")
        logits.normal_()
        assert logits.device.type == "cuda"
