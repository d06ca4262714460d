"""tokendraw as a decoding method of a model repository: copy this folder beside the model's weights."""

from typing import Any

from tokendraw_transformers import generate as draw


def generate(
    *arguments: Any,
    model: Any,
    custom_generate: Any = None,
    trust_remote_code: bool | None = None,
    **named: Any,
) -> Any:
    """Pass everything back to ``generate`` of transformers, to draw through tokendraw.

    A model that is loaded from a repository with this folder has this function as its ``generate``; any other model
    calls it for ``custom_generate="<repository>"``. A decoding method that the caller passes takes precedence.

    :raises InvalidParameterError: a ValueError: ``cache_implementation="paged"``, for which transformers leaves out
        every ``custom_generate``.
    """
    if named.get("cache_implementation") == "paged":
        from tokendraw import InvalidParameterError

        raise InvalidParameterError(
            "'cache_implementation' needs another value than 'paged', for which transformers calls no custom_generate. "
            "Leave it out, or use tokendraw_transformers.generate_batch."
        )
    method = draw if custom_generate is None else custom_generate
    if trust_remote_code is not None:
        named["trust_remote_code"] = trust_remote_code
    return type(model).generate(model, *arguments, custom_generate=method, **named)
