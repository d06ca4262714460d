"""The contenders that are timed: installed samplers and named baselines."""
