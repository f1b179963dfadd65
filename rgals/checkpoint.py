"""Moved to `rgals.training.checkpoint`; this name goes with the next release."""

import warnings

from rgals.training.checkpoint import *  # noqa: F403

warnings.warn("rgals.checkpoint is rgals.training.checkpoint now", DeprecationWarning, stacklevel=2)
