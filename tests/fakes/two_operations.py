"""A plugin that serves both operations as native does, and fails where a test says so."""


def serving_both(*, build: str = "pass", sample: str = "pass", verify: str = "pass") -> str:
    """Source of a plugin ``acme``.

    :param build: statements that run before an operation is built; ``operation`` is its name.
    :param sample: statements that run before each draw after the proof; ``self.calls`` counts them.
    :param verify: the same for verifications.
    """
    return f"""\
import tokendraw

BUILT, PROBED, DESCRIBED = [], [], []


def build(device, need):
    import torch
    from tokendraw_native.sampler import NativeSampler

    class Native(NativeSampler):
        calls = -1

        def sample(self, *arguments, **options):
            self.calls += 1
            if self.calls > 0:
                {sample}
            return super().sample(*arguments, **options)

        def verify(self, *arguments, **options):
            self.calls += 1
            if self.calls > 0:
                {verify}
            return super().verify(*arguments, **options)

    return Native(device, need)


class Plugin:
    @tokendraw.plugin.hookimpl
    def tokendraw_describe(self):
        import tokendraw_native

        DESCRIBED.append(1)
        native = tokendraw_native.plugin.tokendraw_describe().operations
        return tokendraw.plugin.PluginInfo(
            name="acme", api_version=1, priority=50, operations={{name: native[name] for name in ("sample", "verify")}}
        )

    @tokendraw.plugin.hookimpl
    def tokendraw_probe(self, operation, host, need):
        PROBED.append(operation)

    @tokendraw.plugin.hookimpl
    def tokendraw_build(self, operation, device, need):
        BUILT.append(operation)
        {build}
        return build(device, need)


plugin = Plugin()
"""
