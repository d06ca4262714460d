"""Stands in for SGLang's choice of a backend in deterministic inference."""


def _deterministic_sampling_backend(view):
    return {"sampling_backend": "pytorch"}
