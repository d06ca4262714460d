"""A plugin of native's sampler and processor that ends its process in calls that a test chooses."""

DEADLY = """\
import os
import signal

import tokendraw


def built(operation, device, need):
    from tokendraw_native.logits_processing import NativeProcessor
    from tokendraw_native.sampler import NativeSampler

    class Sampler(NativeSampler):
        def sample(self, logits, metadata, **options):
            if {in_sample}:
                {death}
            return super().sample(logits, metadata, **options)

    class Processor(NativeProcessor):
        def process(self, logits, slots, row_index, bitmask=None, drafts=None):
            if {in_process}:
                {death}
            return super().process(logits, slots, row_index, bitmask, drafts)

    if operation == "sample":
        return Sampler(device, need)
    return Processor()


class Plugin:
    @tokendraw.plugin.hookimpl
    def tokendraw_describe(self):
        import tokendraw_native

        native = tokendraw_native.plugin.tokendraw_describe().operations
        return tokendraw.plugin.PluginInfo(
            name="acme", api_version=1, priority=50, operations={{name: native[name] for name in {operations}}}
        )

    @tokendraw.plugin.hookimpl
    def tokendraw_build(self, operation, device, need):
        return built(operation, device, need)


plugin = Plugin()
"""


def deadly(
    *,
    death: str = "os._exit(3)",
    in_sample: str = "False",
    in_process: str = "False",
    operations: tuple[str, ...] = ("sample", "process_logits"),
) -> str:
    """Source of a plugin ``acme``.

    :param death: the statement that ends the process.
    :param in_sample: expression of ``logits`` and ``metadata``: the calls that do.
    :param in_process: the same for edits of ``logits``.
    :param operations: those that it offers.
    """
    return DEADLY.format(death=death, in_sample=in_sample, in_process=in_process, operations=operations)
