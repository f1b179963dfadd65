"""Moved to `rgals.files.archive`; this name goes with the next release."""

import warnings

from rgals.files.archive import *  # noqa: F403

warnings.warn("rgals.persistence is rgals.files.archive now", DeprecationWarning, stacklevel=2)
