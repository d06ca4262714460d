"""Launches over the columns of one rank of a split vocabulary: statistics, surveys, histograms, draws."""
