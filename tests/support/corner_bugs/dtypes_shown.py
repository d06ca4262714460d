"""Mistakes in greedy rows, ranks and logprobs that sampling makes in one dtype of logits alone."""

from dataclasses import replace

import torch

from corner_bugs.call import INF, places
from corner_bugs.plugin import Draws, bugs_of, native


class BfloatLogprobs(Draws):
    """bfloat16: logprobs are rounded to bfloat16."""

    line = "crossed logprobs"

    dtype = "bfloat16"

    def shown(self, call, output):
        values = output.logprobs
        if values is None:
            return output
        return replace(output, logprobs=replace(values, logprobs=values.logprobs.bfloat16().float()))


class StrictRank(Draws):
    """bfloat16: the rank counts the tokens that are strictly larger, and the drawn one."""

    line = "crossed logprobs"

    dtype = "bfloat16"

    def shown(self, call, output):
        if output.logprobs is None or output.logprobs.ranks is None:
            return output
        x = call.logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        own = x.gather(1, output.token_ids.unsqueeze(1))
        return replace(output, logprobs=replace(output.logprobs, ranks=(x > own).sum(1) + 1))


class GreedyTakesTheLast(Draws):
    """float16: a greedy row takes the highest id on a tie."""

    line = "crossed requests"

    dtype = "float16"

    def where(self, call):
        return call.greedy

    def shown(self, call, output):
        x = call.logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        last = call.size - 1 - x.flip(1).argmax(1)
        return replace(output, token_ids=torch.where(x.amax(1) > -INF, last, 0))


class BestTokensByHighestId(Draws):
    """float16: of tied tokens among the N best, the highest id comes first."""

    line = "crossed logprobs"

    dtype = "float16"

    def where(self, call):
        return call.metadata.facts.max_logprobs is not None

    def change(self, call):
        return call.rows(call.logits.flip(1))

    def shown(self, call, output):
        # the N best of the row read backwards, beside the token that the right call drew
        right = native(self.device, self.need).sample(call.logits, call.metadata, draft=call.draft)
        ids = torch.where(output.logprobs.token_ids >= 0, call.size - 1 - output.logprobs.token_ids, -1)
        own = right.logprobs
        shown = replace(
            own,
            token_ids=torch.cat((own.token_ids[:, :1], ids[:, 1:]), 1),
            logprobs=torch.cat((own.logprobs[:, :1], output.logprobs.logprobs[:, 1:]), 1),
        )
        return replace(right, logprobs=shown)


class GreedyNegativeZero(Draws):
    """bfloat16: a greedy row orders bit patterns, by which -0.0 lies below 0.0."""

    line = "crossed logprobs"

    dtype = "bfloat16"

    def where(self, call):
        return call.greedy

    def change(self, call):
        x = call.logits.float()
        return call.rows(torch.where((x == 0) & x.signbit(), -1e-30, x))


class GreedyHalfRows(Draws):
    """float16: greedy rows of a batch beside others take the k-th largest token, by their own ignored top_k."""

    line = "crossed requests"

    dtype = "float16"

    def where(self, call):
        return call.greedy & (call.top_k > 1) & (call.top_k < call.size)

    def change(self, call):
        place = (call.top_k.long() - 1).clamp(min=0).unsqueeze(1)
        return call.only(places(call.logits) == place)


BUGS = bugs_of(globals())
