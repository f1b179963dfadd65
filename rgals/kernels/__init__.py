"""Compiled building blocks: plain functions on arrays, numpy and numba only."""
