"""``load_sampler``, ``load``, ``resolve``, ``discover``, and the objects that the first two return."""
