"""Fits on a Dask cluster: the same models, by blocks of rows on its workers."""

from rgals.cluster.estimator import DaskRGALS

__all__ = ["DaskRGALS"]
