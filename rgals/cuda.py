"""Moved to `rgals.solvers.cuda`; this name goes with the next release."""

import warnings

from rgals.solvers.cuda import *  # noqa: F403

warnings.warn("rgals.cuda is rgals.solvers.cuda now", DeprecationWarning, stacklevel=2)
