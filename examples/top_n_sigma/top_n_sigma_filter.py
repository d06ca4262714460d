"""Top-n-sigma with the deviation of a sample: its squares are divided by n - 1, as ``torch.std`` does."""

from tokendraw.filters import Filter


class TopNSigmaSample(Filter):
    """Keep tokens at most n sample deviations below the largest."""

    name = "top_n_sigma_sample"
    moments = ("count", "std")

    def floor(self, moments, value):
        """Return ``-n std``, with n - 1 in place of n under the root."""
        return -value * moments.std * (moments.count / (moments.count - 1)).sqrt()
