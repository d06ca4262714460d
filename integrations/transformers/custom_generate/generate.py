"""tokendraw as a decoding method of a model repository: copy this folder beside the model's weights."""

from typing import Any

from tokendraw_transformers import generate as draw


def generate(model: Any, **arguments: Any) -> Any:
    """Hand everything that ``model.generate(custom_generate="<repository>", ...)`` was given back to it."""
    return model.generate(custom_generate=draw, **arguments)
