"""Imports torch, uploads columns, and heeds forks, graphs and threads: all that is not computing."""
