"""Moved to `rgals.model.export`; this name goes with the next release."""

import warnings

from rgals.model.export import *  # noqa: F403

warnings.warn("rgals.export is rgals.model.export now", DeprecationWarning, stacklevel=2)
