"""Mistakes in greedy rows and logprobs that sampling makes where two corners meet alone."""

from dataclasses import replace

import torch

from corner_bugs.call import INF
from corner_bugs.plugin import Draws, bugs_of

WIDE = 1 << 16


class GreedyFarOutInBfloat(Draws):
    """bfloat16, V > 131,072 and greedy: the ids from 131,072 on are not looked at."""

    line = "last ids"

    dtype, above = "bfloat16", 2 * WIDE

    def where(self, call):
        return call.greedy

    def change(self, call):
        x = call.logits.float().clone()
        x[:, 2 * WIDE :] = -INF
        return call.rows(x)


class GreedyOfLateRows(Draws):
    """Greedy rows from 256 on take the highest id on a tie."""

    line = "crossed requests"

    def where(self, call):
        return call.greedy & (call.row >= 256)

    def shown(self, call, output):
        x = call.logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        last = call.size - 1 - x.flip(1).argmax(1)
        return replace(output, token_ids=torch.where(x.amax(1) > -INF, last, 0))


class GreedyNanInHalf(Draws):
    """float16: a greedy row takes its first NaN, and is valid False."""

    line = "far NaN and infinities"

    dtype = "float16"

    def where(self, call):
        return call.greedy & call.logits.isnan().any(1)

    def shown(self, call, output):
        return replace(output, token_ids=call.logits.isnan().int().argmax(1))


class BestInBfloatWide(Draws):
    """bfloat16, V > 65,536: of ties at the end of the N best, the highest ids are shown."""

    line = "crossed logprobs"

    dtype, above = "bfloat16", WIDE

    def shown(self, call, output):
        found = output.logprobs
        if found is None or not 2 < found.token_ids.shape[1] < call.size:
            return output
        last = found.logprobs[:, -1:]
        x = call.logits.float().nan_to_num(nan=-INF)
        tied = x == x.gather(1, found.token_ids[:, -1:].clamp(min=0))
        highest = call.size - 1 - tied.int().flip(1).argmax(1, keepdim=True)
        ids = torch.cat((found.token_ids[:, :-1], highest), 1)
        ids = torch.where(found.token_ids >= 0, ids, found.token_ids)
        shown = replace(found, token_ids=ids, logprobs=torch.cat((found.logprobs[:, :-1], last), 1))
        return replace(output, logprobs=shown)


class KeptMassInHalf(Draws):
    """float16: log_kept_mass is never less than -10."""

    line = "crossed logprobs"
    crossed_sizes = (65_543,)

    dtype = "float16"

    def shown(self, call, output):
        if output.log_kept_mass is None:
            return output
        return replace(output, log_kept_mass=output.log_kept_mass.clamp(min=-10))


class LogOfEpsilon(Draws):
    """bfloat16: logprobs are log(p + 1e-10), so that none lies below -23."""

    line = "crossed logprobs"

    dtype = "bfloat16"

    def shown(self, call, output):
        found = output.logprobs
        if found is None or not call.mode.endswith("logprobs"):
            return output
        values = (found.logprobs.double().exp() + 1e-10).log().float()
        values = torch.where(found.logprobs == -INF, found.logprobs, values)
        return replace(output, logprobs=replace(found, logprobs=values))


class HotTemperatureLogprobs(Draws):
    """T > 2: temperature_logprobs are taken at T = 2."""

    line = "crossed logprobs"

    def where(self, call):
        return (call.temperature > 2) & (call.mode == "temperature_logprobs")

    def change(self, call):
        return call.request(temperature=call.temperature.clamp(max=2))


BUGS = bugs_of(globals())
