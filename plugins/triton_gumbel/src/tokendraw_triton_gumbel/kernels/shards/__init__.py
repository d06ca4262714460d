"""The launches over the columns of one rank, where the vocabulary lies on several: what it tells the others."""
