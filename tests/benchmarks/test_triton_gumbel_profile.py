"""``benchmarks/triton_gumbel profile``: a table of Nsight Compute's counters in ``profile-run``."""

import csv

STALLED = "smsp__pcsamp_warps_issue_stalled_"
COUNTED = {
    "gpu__time_duration.sum": "8,300",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "41.6",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "12.4",
    "smsp__inst_executed.sum": "48,000",
    "launch__grid_size": "8",
    "launch__block_size": "128",
}
STALLS = {"selected": 10, "not_selected": 10, "long_scoreboard": 40, "no_instructions": 30, "barrier": 10}


def printed(path, *names):
    """Write the profiler's output: log lines, names and units of columns, and launches."""
    columns = ["ID", "Kernel Name", *COUNTED, *(STALLED + stall for stall in STALLS)]
    figures = [*COUNTED.values(), *STALLS.values()]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("==PROF== Connected to process 1\n")
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(columns)
        writer.writerow(["" for _ in columns])
        writer.writerows([number, name, *figures] for number, name in enumerate(names))


END = "vectorized_elementwise_kernel<bitwise_not_kernel_cuda>"


def test_each_launch_of_a_call_is_a_line(call, tmp_path):
    path = tmp_path / "counters.csv"
    printed(path, "tile_statistics", "draw_rows", END)
    result = call("profile", "--counters", path)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.startswith("| ")][2:]
    cell = "| 2 x 3000 | float32 | both | gaussian |"
    figures = "8.3 | 42 | 12 | 1,500 | 20 | 40 | 0 | 0 | 30 | 10 | 0 | 0 |"
    assert lines == [f"{cell} tile_statistics | {figures}", f"{cell} draw_rows | {figures}"]


def test_counters_of_other_calls_are_no_table(call, tmp_path):
    path = tmp_path / "counters.csv"
    printed(path, "draw_rows", END, "draw_rows", END)
    result = call("profile", "--counters", path)
    assert result.exit_code == 1
    assert f"{path} has 2 calls in place of 1." in result.stdout


def test_the_profiled_run_draws_once_from_each_cell(call):
    result = call("profile-run")
    assert result.exit_code == 0, result.output
    assert "1 profiled draws." in result.stdout
