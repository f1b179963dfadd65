"""Shim for tools that still call setup.py; the metadata are in pyproject.toml."""

from setuptools import setup

setup()
