"""The base classes of scikit-learn. Its types are unknown to checkers: the stub beside this file has them."""

from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin  # noqa: F401
