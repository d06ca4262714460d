"""Plugins that are the native sampler with one mistake, made in one corner alone: a file for each class of corner."""
