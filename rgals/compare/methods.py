"""The methods of a comparison: how each is built, and the ladders of values for its tuned parameters."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Real
from typing import Any

from sklearn.base import clone

from rgals.baselines import EASE, Popularity
from rgals.baselines.ease import ridge_of
from rgals.compare import outside
from rgals.estimator import RGALS
from rgals.files.journal import as_json
from rgals.losses import IALS, RG2, RGX, WRMF, Degrees, rule
from rgals.losses.base import Loss
from rgals.model_selection import RGALSCV
from rgals.runtime.checks import check_choice, check_real
from rgals.runtime.errors import InputTypeError, ParameterError
from rgals.sgd import SGDRanker
from rgals.sgd.defaults import setting

Params = Mapping[str, float]
Ladders = Mapping[str, tuple[float, ...]]  # by parameter: the values to try, ascending


def params_text(params: Params) -> str:
    """Parameters as text, for the keys of a journal."""
    return as_json(dict(sorted(params.items())))


def _rungs(low: float, high: float) -> tuple[float, ...]:
    """1, 1.5, 2, 3, 5 and 7 times powers of ten, from low to high."""
    values = [float(f"{m}e{power}") for power in range(-5, 6) for m in (1, 1.5, 2, 3, 5, 7)]
    return tuple(v for v in values if low <= v <= high)


_SMALL_ALPHA = _rungs(0.002, 2)
_REG = _rungs(0.0003, 1)
_SOFTMAX_RIDGE = 0.6  # of softmax over that of RG2; the best on MovieLens 1M are 0.06 and 0.1
_BETA = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
_ALPHA = _rungs(0.5, 100)
_LR = (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
_TEMPERATURE = (0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
_DECAY = (0.0, 1e-6, 1e-5, 3e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3)
_FREQUENCY = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3)


@dataclass(frozen=True)
class Method:
    """A method of a comparison.

    Parameters
    ----------
    name : str
        Identifies the method in results and in the folder.
    label : str
        Name in tables and figures.
    family : str
        "ALS", "SGD" or any other word. The objective is recorded for methods of "ALS".
    build : callable
        ``build(params, K=..., n_jobs=..., random_state=...)`` gives an estimator to fit, or a function of the
        training matrix.
    ladders : mapping of str to tuple of float, default {}
        The values of every tuned parameter in ascending order.
    start : mapping of str to float, default {}
        Values from which tuning starts; parameters without one start in the middle of their ladder.
    rule : callable, optional
        ``rule(train, K)`` gives starts that follow from the data, which replace those of ``start``.
    stops : bool, default False
        Whether fits stop when validation no longer improves: the estimator then needs scikit-learn's
        ``set_params`` with ``early_stopping`` and ``patience``.
    seeded : bool, default True
        Whether results depend on ``random_state``; a method without random choices runs once.
    settings : str, default ""
        Anything else that results depend on: results in a folder are reused only if it is the same.

    Examples
    --------
    >>> from rgals.baselines import Popularity
    >>> from rgals.compare import Method, compare
    >>> from rgals.datasets import make_implicit
    >>> popular = Method("popular", "Popularity", "baseline", lambda params, **_: Popularity(), seeded=False)
    >>> [row.label for row in compare(make_implicit(200, 100, random_state=0), popular, verbose=0).rows]
    ['Popularity']
    """

    name: str
    label: str
    family: str
    build: Callable[..., Any]
    ladders: Ladders = field(default_factory=dict)
    start: Params = field(default_factory=dict)
    rule: Callable[[Any, int], Mapping[str, float]] | None = None
    stops: bool = False
    seeded: bool = True
    settings: str = ""

    def __post_init__(self) -> None:
        for name, ladder in self.ladders.items():
            if not len(ladder) or list(ladder) != sorted(ladder):
                raise ParameterError(f"ladder of {name}", ladder, "give numbers to try, in ascending order")

    def start_for(self, train: Any, K: int) -> dict[str, float]:
        """Start of tuning for K factors, from a matrix or its `Degrees`."""
        known = {**self.start, **({} if self.rule is None else self.rule(train, K))}
        return {name: known.get(name, ladder[len(ladder) // 2]) for name, ladder in self.ladders.items()}

    def key(self, params: Params | None = None) -> str:
        """The method, with parameters if given, as part of a journal's keys."""
        parts = self.name, "" if params is None else params_text(params), self.settings
        return " ".join(filter(None, parts))


def _copies(thing: Any, ladders: Ladders, name: str, label: str, family: str, **how: Any) -> Method:
    """A method that fits copies of an estimator; ``ladders`` are of its parameters or of its loss's."""
    own = thing.get_params()

    def build(params: Params, K: int = 64, random_state: int = 0, n_jobs: int | None = None) -> Any:
        changes: dict[str, Any] = {k if k in own else f"loss__{k}": v for k, v in params.items()}
        changes |= {"K": K} if "K" in own else {}
        return outside.copied(thing, changes, random_state, n_jobs)

    return Method(name, label, family, build, ladders, **how)


def _als(name: str, label: str, loss: Loss, ladders: Ladders, ruled: bool = True, **fixed: Any) -> Method:
    """A method by alternating least squares; ``ladders`` are of parameters of the loss, and of ``reg``."""
    known, start = partial(rule, loss) if ruled else None, fixed.pop("start", {})
    model = RGALS(loss=loss, n_iter=60, **fixed)
    return _copies(model, ladders, name, f"{label} (ALS)", "ALS", start=start, rule=known, stops=True)


def _sgd(loss: str, label: str, score: str, **fixed: Any) -> Method:
    """A method by stochastic gradient descent on cosines with a temperature, or on inner products."""
    by_frequency = fixed.get("decay") == "frequency"
    ladders: Ladders = {"temperature": _TEMPERATURE, "lr": _LR}
    if score == "dot":
        fixed["temperature"] = 1.0
        ladders = {"lr": _LR, "weight_decay": _FREQUENCY if by_frequency else _DECAY}
    model = SGDRanker(loss=loss, n_epochs=200, score=score, **fixed)

    def known(train: Any, K: int) -> dict[str, float]:
        """The defaults of `SGDRanker`; softmax's ridge follows RG2, its second-order approximation."""
        degrees = train if isinstance(train, Degrees) else Degrees.of(train)
        found = {"weight_decay": 1e-4, **setting(clone(model).set_params(K=K), degrees)}
        if by_frequency:
            found["weight_decay"] = _SOFTMAX_RIDGE * rule(RG2, train, K)["reg"]
        found["lr"] *= fixed.get("init_scale", 0.1) / 0.1  # steps in proportion to the initial factors
        return found

    name, label = loss if score == "cosine" else f"{loss}_dot", f"{label}, {score} (SGD)"
    return _copies(model, ladders, name, label, "SGD", rule=known, stops=True)


_RG = {"alpha": _SMALL_ALPHA, "reg": _REG}
# Without beta = 1, at which the published form puts no penalty on the scores of unobserved pairs.
_GRAMIAN = {**_RG, "beta": _BETA[:-1]}
_PLAIN: dict[str, Any] = {"ruled": False, "start": {"alpha": 3.0, "reg": 50.0}, "reg_exponent": 0.0}
_RIDGE = {"reg": _rungs(1, 7e5)}
_ALL = (
    _als("rg2", "RG2", RG2(), _RG),
    _als("rgx", "RGx", RGX(), {**_RG, "beta": _BETA}, start={"beta": 0.9}),
    _als("rgx_gramian", "RGx as published", RGX(form="gramian"), _GRAMIAN),
    _als("ials", "iALS", IALS(), {"alpha0": _SMALL_ALPHA, "reg": _REG}),
    _als("wrmf", "WRMF, frequency-scaled", WRMF(), {"alpha": _ALPHA, "reg": _REG}),
    _als("wrmf_plain", "WRMF, plain ridge", WRMF(), {"alpha": _ALPHA, "reg": _rungs(0.1, 1000)}, **_PLAIN),
    _sgd("softmax", "Softmax", "cosine"),
    _sgd("sampled_softmax", "Sampled softmax", "cosine", n_negatives=100),
    _sgd("bpr", "BPR", "cosine", n_negatives=10),
    _sgd("bce", "BCE", "cosine", n_negatives=10),
    _sgd("sampled_cce", "Sampled CCE", "cosine", n_negatives=100),
    _sgd("softmax", "Softmax", "dot", decay="frequency", batch_size=1024),
    _sgd("sampled_softmax", "Sampled softmax", "dot", n_negatives=100),
    _sgd("bpr", "BPR", "dot", n_negatives=10),
    _sgd("bce", "BCE", "dot", n_negatives=10),
    _sgd("sparsemax", "Sparsemax", "dot", decay="frequency", init_scale=0.01),
    _copies(
        EASE(), _RIDGE, "ease", "EASE", "closed form", rule=lambda X, K: {"reg": ridge_of(X)}, seeded=False
    ),
    _copies(Popularity(), {}, "popularity", "Popularity", "counts", seeded=False),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
DEFAULT = ("rg2", "rgx", "ials", "wrmf", "wrmf_plain", "softmax", "softmax_dot", "sampled_softmax", "bpr_dot")


def _is_pair(given: Any) -> bool:
    """Whether this is an estimator or function with its ladders."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)


def _estimator_method(given: Any) -> Method:
    """A given estimator or function, run unchanged, or tuned if it comes in a pair with ladders."""
    thing, ladders = given if _is_pair(given) else (given, {})
    if isinstance(thing, type) or not (hasattr(thing, "fit") or callable(thing)):
        estimator = "an estimator with fit and recommend or predict (an object, not its class)"
        function = "a function of the training matrix, or a pair of one of these and its ladders"
        raise ParameterError("methods", given, f"give a name, a Loss, {estimator}, {function}")
    if getattr(thing, "half_life", None) is not None:
        raise ParameterError("methods", given, "parts of a comparison have no times; set half_life=None")
    if hasattr(thing, "_get_loss") and any(name.startswith("loss__") for name in ladders):
        # A loss that is given by name has no parameters to set.
        thing = clone(thing).set_params(loss=thing._get_loss(thing.loss))
    own = outside.settings_of(thing) if ladders else {}
    rungs, start, whole = {}, {}, set()
    for name, values in ladders.items():
        now = own[check_choice("ladder", name, tuple(own))]
        listed = list(values) if isinstance(values, Iterable) else [values]
        rungs[name] = tuple(sorted(check_real(f"ladder of {name}", value) for value in listed))
        if isinstance(now, Real) and not isinstance(now, bool):
            start[name] = float(now)
        whole |= {name} if all(isinstance(value, Integral) for value in listed) else set()

    def build(params: Params, random_state: int = 0, n_jobs: int | None = None, **_: Any) -> Any:
        typed = {name: int(value) if name in whole else value for name, value in params.items()}
        return outside.copied(thing, typed, random_state, n_jobs)

    name = getattr(thing, "__name__", type(thing).__name__)
    als = isinstance(thing, RGALS) and not isinstance(thing, RGALSCV)
    family = "ALS" if als else "SGD" if isinstance(thing, SGDRanker) else "other"
    seeded, settings = bool(outside.seeds_of(thing)), outside.digest(thing)
    return Method(name, name, family, build, rungs, start, seeded=seeded, settings=settings)


def _method(given: Any, name: str | None) -> Method:
    if isinstance(given, str):
        if given.strip() not in METHODS:
            advice = "give a Loss, an estimator, a function, or choose from " + ", ".join(METHODS)
            raise ParameterError("methods", given, advice)
        given = METHODS[given.strip()]
    if isinstance(given, Loss):  # the parameters of its rule that are not set are tuned, except exponents
        names = given.defaults(Degrees.even(1000, 1000, 100_000), 64)
        own, plain = given.get_params(), type(given)().get_params()
        free = [one for one in names if not one.endswith("_exponent") and own.get(one) == plain.get(one)]
        ladders = {one: _rungs(1e-5, 7e3) for one in free}
        given = replace(_als(given.name, given.name, given, ladders), settings=outside.digest(given))
    elif not isinstance(given, Method):
        given = _estimator_method(given)
    if name in (None, given.name):
        return given
    # A folder must tell two methods by name apart, though the caller's name is the same.
    return replace(given, name=str(name), label=str(name), settings=given.settings or given.name)


def get_methods(given: Any) -> list[Method]:
    """Methods from names (also comma-separated), losses, estimators, functions, or a mapping by name."""
    if len(getattr(given, "shape", ())) == 2:
        what = f"methods are names, losses, estimators or functions, not {type(given).__name__}"
        raise InputTypeError(f"{what}; the interactions come first: compare(X, methods)")
    if isinstance(given, str):
        given = given.split(",")
    elif hasattr(given, "fit") or _is_pair(given) or not isinstance(given, Iterable):
        given = [given]
    pairs = given.items() if isinstance(given, Mapping) else ((None, one) for one in given)
    found = [_method(one, name) for name, one in pairs]
    names = [method.name for method in found]
    if not len(set(names)) == len({method.label for method in found}) == len(found) > 0:
        words = "give at least one, each once, of its own label; a dict gives names: {'a': ..., 'b': ...}"
        raise ParameterError("methods", names, words)
    return found
