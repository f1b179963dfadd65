"""Plots of fits, searches and recommendations; matplotlib is needed, ``pip install "rgals[plot]"``.

Every function takes what a fit or a search leaves, draws into ``ax`` or into a new figure, and returns the
axes, to be changed or saved: ``plots.learning_curve(model).figure.savefig("curve.png")``.
"""

from rgals.plots.catalogue import popularity_bias, spectrum
from rgals.plots.curves import learning_curve, sweep, time_to_quality

__all__ = ["learning_curve", "popularity_bias", "spectrum", "sweep", "time_to_quality"]
