"""Who is timed: installed samplers and named baselines."""
