"""``load_sampler``, ``load``, ``resolve``, ``discover``, and ``Sampler``."""
