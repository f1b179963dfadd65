# Without types of scikit-learn mypy would accept any parameter and any method of the estimators. Pylance has
# such types, by whose functions estimators are taken if they have the bases named there.
MYPY = False  # mypy takes it as true
if MYPY:
    from rgals.runtime.untyped import BaseEstimator as BaseEstimator
    from rgals.runtime.untyped import ClassNamePrefixFeaturesOutMixin as ClassNamePrefixFeaturesOutMixin
    from rgals.runtime.untyped import TransformerMixin as TransformerMixin
else:
    from sklearn.base import BaseEstimator as BaseEstimator
    from sklearn.base import ClassNamePrefixFeaturesOutMixin as ClassNamePrefixFeaturesOutMixin
    from sklearn.base import TransformerMixin as TransformerMixin
