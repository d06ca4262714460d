"""Mistakes in filters and logprobs that sampling makes alone where the vocabulary lies on several ranks."""

from dataclasses import replace

import torch

from corner_bugs.call import INF
from corner_bugs.plugin import bugs_of
from corner_bugs.ranks import Columns, Ranks, Talk


class LocalMaximumOfMinP(Ranks):
    """Over ranks: min-p is relative to the largest probability on the rank."""

    class Columns(Columns):
        def bounds(self, bounds):
            own, p = self._params, self._params.min_p
            if p is None:
                return bounds
            floor = (self.argmax()[0] + own.temperature * p.clamp(max=1).log()).float()
            return bounds._replace(
                threshold=torch.where(p > 0, bounds.threshold.minimum(floor), bounds.threshold)
            )


class LocalKth(Ranks):
    """Over ranks: each rank keeps its own k largest."""

    class Columns(Columns):
        def bounds(self, bounds):
            k = self._params.top_k
            if k is None:
                return bounds
            x = self._logits.float().nan_to_num(nan=-INF).sort(-1, descending=True).values
            kth = x.gather(-1, (k - 1).clamp(0, x.shape[-1] - 1))
            return bounds._replace(
                threshold=torch.where(k > 0, bounds.threshold.minimum(kth), bounds.threshold)
            )


class TiesOfTheLastOnce(Ranks):
    """Over ranks: of the tokens that tie with the last of the largest, those that are not among them do not count."""

    class Columns(Columns):
        def largest(self, count, masses, fresh):
            found = super().largest(count, masses, fresh)
            return found._replace(ties=torch.zeros_like(found.ties))


class JointBySurvivors(Ranks):
    """Over ranks: top-p counts what top-k leaves, in the joint order too."""

    def params(self, params):
        return replace(params, joint=None)


class MassOfSecondRankTwice(Ranks):
    """Over ranks: top-p counts the mass of the second one twice."""

    line = "sharded logprobs"

    class Columns(Columns):
        def largest(self, count, masses, fresh):
            found = super().largest(count, masses, fresh)
            mass = found.mass
            return found._replace(mass=None if mass is None else mass * (1 + (self.rank == 1)))


class HistogramOfFirstRank(Ranks):
    """Over ranks: a nucleus that is wider than what they send is searched for in the columns of the first one."""

    line = "sharded logprobs"

    def talk(self, talk):
        def all_sum(tensor):
            if tensor.dim() > 1 and talk.rank:
                tensor.zero_()
            talk.all_sum(tensor)

        own = Talk(talk)
        own.all_sum = all_sum
        return own


class RankOnOneRank(Ranks):
    """Over ranks: the rank of the token is counted among the columns of the last one."""

    line = "sharded logprobs"

    class Columns(Columns):
        def count(self, least):
            is_last = self._layout.ids.end == self._layout.vocab_size and self._layout.ids.size
            return super().count(least) * bool(is_last)


class MassOfOneRank(Ranks):
    """Over ranks: raw log-probabilities are normalised by the mass of the first one."""

    line = "sharded logprobs"

    class Columns(Columns):
        def drawn(self, draws, seeds):
            return draws if draws.raw is None else draws._replace(raw=draws.raw * (self.rank == 0))


class KeptMassOfOneRank(Ranks):
    """Over ranks: log_kept_mass leaves out the mass that the last one keeps."""

    line = "sharded logprobs"

    class Columns(Columns):
        def drawn(self, draws, seeds):
            is_last = self._layout.ids.end == self._layout.vocab_size
            return draws if draws.kept is None else draws._replace(kept=draws.kept * (not is_last))


class BestOfColumns(Ranks):
    """Over ranks: the N best have the numbers of their columns."""

    line = "sharded logprobs"

    class Columns(Columns):
        def drawn(self, draws, seeds):
            ids = draws.best_ids
            return draws if ids is None else draws._replace(best_ids=ids - self._layout.ids.start)


BUGS = bugs_of(globals())
