"""The way from a decision to an output: build, prove, route, watch, count, fall back."""
