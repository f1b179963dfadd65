"""Backends: each solves half-steps."""
