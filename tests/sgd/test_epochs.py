"""The chain rule of epochs, samplers and optimisers against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from instruments.scores import central

from rgals.datasets import make_implicit
from rgals.matrix.validate import as_csr
from rgals.runtime.errors import InputError, InputTypeError, NumericalError, ParameterError, ShapeError
from rgals.sgd import SGDRanker
from rgals.sgd.epochs import Batch, Epochs
from rgals.sgd.graph import LightGCN, XSimGCL
from rgals.sgd.losses import (
    LLPAUC,
    RG2,
    SML,
    UIB,
    Adversary,
    AdvInfoNCE,
    SampledSoftmaxAtK,
    SampledTalos,
    State,
    get_loss,
)
from rgals.sgd.losses._base import Full, List, Sampled
from rgals.sgd.optimizers import SGD, Adagrad, Adam, LazyAdam, SideState, get_optimizer, get_schedule
from rgals.sgd.samplers import Sampler, alias_table


def matrix(rng, n_users=12, n_items=9, valued=False, density=0.35):
    dense = (rng.random((n_users, n_items)) < density).astype(float)
    dense[0], dense[1] = 0, 0
    dense[1, 3] = 1
    if valued:
        dense *= rng.integers(1, 4, dense.shape)
    return as_csr(sp.csr_array(dense), dtype=np.float64)


def trainer(
    X,
    P,
    Q,
    loss,
    score="dot",
    *,
    optimizer=None,
    layers=0,
    encoder="lightgcn",
    n=4,
    shared=False,
    **params,
):
    params = {"temperature": 0.7, "offset": 0.0, "batch_size": 64, "lr": 0.5, "init_scale": 1.0, **params}
    graph = {"encoder": encoder, "n_layers": layers} if layers else {}
    sampling = {"n_negatives": n, "shared_negatives": shared}
    model = SGDRanker(
        4,
        loss,
        score=score,
        optimizer=optimizer or SGD(),
        n_epochs=5,
        n_jobs=1,
        **graph,
        **sampling,
        **params,
    )
    return Epochs(model, X, (P.copy(), Q.copy()), seed=3)


def slopes(f, x, grad, rng, n=8):
    """Along n random directions, the slopes that a gradient gives and those of central differences."""
    ways, h = rng.standard_normal((n, *x.shape)), 1e-6
    return [(way * grad).sum() for way in ways], [(f(x + h * way) - f(x - h * way)) / (2 * h) for way in ways]


def whole(run):
    """Values and the gradients of users and items of a loss over the catalogue, of all users."""
    batch = Batch(np.uint64(0), np.arange(run.X.n_rows), block=run.X)
    values, ((_, users), (_, items)) = run.full_gradient(batch)
    return values, users, items


CASES = [
    ("softmax", {}),
    ("rgx", {}),
    ("sampled_softmax", {}),
    ("bpr", {"n": 1, "exclude_positives": True}),
    ("sampled_softmax", {"sampler": "popularity", "gamma": 0.5, "replacement": False}),
    ("sampled_softmax", {"sampler": "in_batch"}),
    ("bce", {"shared": True, "exclude_positives": True, "n": 5}),
    ("bce", {"offset": 1.5}),
    ("bce", {"shared": True, "offset": 1.5}),
    ("full_bce", {"offset": -1.5}),
    ("full_bce", {}),
    (LLPAUC(), {"n": 3}),
    (UIB(), {"shared": True}),
    (AdvInfoNCE(every=2), {}),
    ("list_ndcg", {"n": 2}),
    ("list_nrbp", {"n": 3, "replacement": False}),
]


@pytest.mark.few(16)
@pytest.mark.parametrize("layers, encoder", [(0, "mf"), (1, "lightgcn"), (3, "lightgcn"), (3, "xsimgcl")])
@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("loss, sampling", CASES, ids=str)
def test_one_step_follows_the_gradient_of_the_whole_objective(loss, sampling, score, layers, encoder, rng):
    """A step of plain SGD is -lr times the slopes of the mean loss, down to the factors."""
    X = matrix(rng, valued=True)
    P, Q = rng.standard_normal((12, 4)), rng.standard_normal((9, 4))

    def mean_loss(P, Q):
        run = trainer(X, P, Q, loss, score, layers=layers, encoder=encoder, **dict(sampling))
        value = run.epoch(0)  # one batch: the value before the step
        ridge = getattr(run.loss, "penalties", lambda X: None)(X)
        if ridge is not None:
            weighted = ridge[0] @ (P**2).sum(axis=1) + ridge[1] @ (Q**2).sum(axis=1)
            value += weighted / X.row_sums.sum()
        return value

    stepped = trainer(X, P, Q, loss, score, layers=layers, encoder=encoder, **dict(sampling))
    stepped.epoch(0)
    for before, after, f in (
        (P, stepped.users.param, lambda F: mean_loss(F, Q)),
        (Q, stepped.items.param, lambda F: mean_loss(P, F)),
    ):
        found, numeric = slopes(f, before, (before - after) / 0.5, rng)
        assert np.abs(numeric).max() > 1e-3
        np.testing.assert_allclose(found, numeric, rtol=2e-6, atol=1e-8)


def dense_graph(X):
    """The normalised adjacency of users and items together."""
    pattern = (X.to_scipy(np.float64).toarray() > 0).astype(float)
    graph = np.block([[np.zeros((12, 12)), pattern], [pattern.T, np.zeros((9, 9))]])
    root = np.maximum(graph.sum(axis=1), 1) ** -0.5
    return graph * root[:, None] * root


def encoded(X, kind, layers, cosine, rng, **options):
    """An encoder of random factors, and these."""
    sides = [SideState(rng.standard_normal((n, 4)), False, SGD()) for n in X.shape]
    score = "cosine" if cosine else "dot"
    model = SGDRanker(4, score=score, n_layers=layers, **options)
    return kind(X, sides, model), np.concatenate([side.param for side in sides])


def scored(encoder):
    return np.concatenate([side.effective for side in encoder.sides])


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind, first", [(LightGCN, 0), (XSimGCL, 1)])
def test_propagated_factors_are_the_mean_over_powers_of_the_normalised_graph(
    kind, first, layers, cosine, rng
):
    X = matrix(rng, valued=True)  # with a user and items that nobody is connected to
    encoder, start = encoded(X, kind, layers, cosine, rng)
    powers = [np.linalg.matrix_power(dense_graph(X), power) for power in range(first, layers + 1)]
    expected = sum(powers) @ start / len(powers)
    if cosine:
        norms = np.linalg.norm(expected, axis=1, keepdims=True)
        expected = np.divide(expected, norms, out=np.zeros_like(expected), where=norms > 0)
    np.testing.assert_allclose(scored(encoder), expected, rtol=1e-12, atol=1e-14)


def test_noise_is_a_tenth_long_away_from_zero_and_no_part_of_what_is_published(rng):
    X = matrix(rng)
    encoder, start = encoded(X, XSimGCL, 1, False, rng)
    clean = scored(encoder)
    encoder.encode(np.uint64(3))
    moved = scored(encoder) - clean
    connected = clean.any(axis=1)
    assert not connected.all() and not moved[~connected].any()
    np.testing.assert_allclose(np.linalg.norm(moved[connected], axis=1), 0.1)
    assert (moved * np.sign(clean) >= 0).all() and (np.ptp(np.abs(moved[connected]), axis=1) > 1e-3).all()
    encoder.encode(np.uint64(4))
    assert np.abs(scored(encoder) - clean - moved).max() > 1e-3
    encoder.encode()
    np.testing.assert_array_equal(scored(encoder), clean)
    run = trainer(X, start[:12], start[12:], "softmax", layers=2, encoder="xsimgcl")
    run.epoch(0)
    graph, after = dense_graph(X), np.concatenate([run.users.param, run.items.param])
    expected = (graph @ after + graph @ graph @ after) / 2
    np.testing.assert_allclose(np.concatenate([run.user_factors(), run.item_factors()]), expected, atol=1e-13)


@pytest.mark.parametrize("cosine", [False, True])
def test_contrast_is_the_mean_cross_entropy_of_two_views(cosine, rng, monkeypatch):
    """Over distinct users and items of the batch, whole and in pieces; beside the gradient of the loss."""
    X = matrix(rng)
    encoder, start = encoded(X, XSimGCL, 3, cosine, rng, contrast=0.7)
    monkeypatch.setattr("rgals.sgd.graph._ROWS", 3)  # several pieces, a shorter last one
    graph, users, items = dense_graph(X), np.array([5, 2, 7, 2, 9, 4]), np.array([1, 3, 0, 1, 7])
    first = graph @ start
    means = (first + graph @ first + graph @ graph @ first) / 3
    expected = 0.0
    for rows in (np.unique(users), 12 + np.unique(items)):
        views = [part[rows] / np.linalg.norm(part[rows], axis=1, keepdims=True) for part in (means, first)]
        logits = views[0] @ views[1].T / 0.1
        expected += (np.log(np.exp(logits).sum(axis=1)) - np.diag(logits)).mean()
    nothing = [(None, np.zeros_like(side.param)) for side in encoder.sides]
    value, grads = encoder.chain(nothing, [users, items], 2.0)
    assert value == pytest.approx(0.7 * 2.0 * expected, rel=1e-12)
    assert all(np.abs(grad).max() > 1e-3 for grad in grads)


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("n_users, n_items", [(40, 700), (3, 1), (600, 130), (5, 65)])
def test_fused_softmax_in_float32_is_the_loss_in_float64(n_users, n_items, valued, score, rng):
    """Several tiles, a last one that is shorter, users without positives, one item; both sides' gradients."""
    X = matrix(rng, n_users, max(n_items, 4), valued)
    if n_items == 1:
        X = as_csr(sp.csr_array(np.array([[0.0], [1.0], [0.0]])), dtype=np.float64)
    P, Q = 2 * rng.standard_normal((n_users, 5)), 2 * rng.standard_normal((X.n_cols, 5))
    exact = trainer(X, P, Q, "softmax", score)
    single = as_csr(X.to_scipy(), dtype=np.float32)
    fused = trainer(single, P.astype(np.float32), Q.astype(np.float32), "softmax", score)
    expected, found = whole(exact), whole(fused)
    for ours, theirs, what in zip(found, expected, ("values", "users", "items"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=4e-6 * max(np.abs(theirs).max(), 1), err_msg=what)
    assert n_items == 1 or np.abs(expected[2]).max() > 0.1


def test_fused_softmax_takes_extreme_scores_and_shows_infinite_ones(rng):
    X = as_csr(matrix(rng, 6, 200).to_scipy(), dtype=np.float32)
    P, Q = np.zeros((6, 2), np.float32), np.zeros((200, 2), np.float32)
    P[:, 0], Q[::7, 0] = 100, [(-1) ** i * 100 for i in range(29)]  # scores of -1e4, 0 and 1e4
    run = trainer(X, P, Q, "softmax", temperature=1.0)
    exact = trainer(X, P.astype(float), Q.astype(float), "softmax", temperature=1.0)
    for ours, theirs in zip(whole(run), whole(exact), strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)
    run.users.param[3] = 1e38
    with pytest.raises(NumericalError, match="user 3 became nan"):
        run.epoch(0)


@pytest.mark.parametrize("sampling", [{}, {"shared": True}])
@pytest.mark.parametrize("loss", [LLPAUC(), LLPAUC(ascend=False), UIB(), SML(gamma=0.7)], ids=str)
def test_what_a_loss_keeps_follows_its_gradient(loss, sampling, rng):
    """Down or up, times its rate, for each user or for the model; weighted rows; then clipped."""
    X = matrix(rng, valued=True)
    P, Q = rng.standard_normal((12, 4)), rng.standard_normal((9, 4))
    start = []

    def mean_loss(k, values):
        run = trainer(X, P, Q, loss, "cosine", temperature=1.0, lr=0.01, **sampling)
        for side, old in zip(run.kept.sides, start, strict=False):
            side.param[:] = old
        run.kept.sides[k].param[:] = values
        return run.epoch(0)

    stepped = trainer(X, P, Q, loss, "cosine", temperature=1.0, lr=0.01, **sampling)
    for side in stepped.kept.sides:
        side.param += 0.3 * rng.random(side.param.shape) - 0.4 * (side.param > 0.5)
        start.append(side.param.copy())
    stepped.epoch(0)
    moved = 0.0
    for k, (state, side) in enumerate(zip(loss.state, stepped.kept.sides, strict=True)):
        numeric = central(lambda values, k=k: mean_loss(k, values), start[k]) + state.drift / len(start[k])
        by = 0.01 * state.rate * (-1 if state.ascend else 1) * numeric
        expected = np.clip(start[k] - by, state.low, state.high)
        np.testing.assert_allclose(side.param, expected, rtol=1e-6, atol=1e-9)
        moved = max(moved, np.abs(by).max())
    assert moved > 1e-3


@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_the_adversary_climbs_in_its_epochs_and_the_model_rests(score, rng):
    X = matrix(rng, valued=True)
    P, Q = rng.standard_normal((12, 4)), rng.standard_normal((9, 4))
    loss = AdvInfoNCE(every=2, adversary_lr=0.3, temperature=0.7)

    def one(factors=None):
        run = trainer(X, P, Q, loss, score, temperature=1.0)
        for side, F in zip(run.adversaries, factors or (), strict=False):
            side.param[:] = F
            side.refresh()
        return run, run.epoch(1)

    first = [side.param.copy() for side in trainer(X, P, Q, loss, score).adversaries]
    run, _ = one()
    np.testing.assert_array_equal(run.users.param, P)
    np.testing.assert_array_equal(run.items.param, Q)
    for k, side in enumerate(run.adversaries):

        def value(F, k=k):
            return one([*first[:k], F, *first[k + 1 :]])[1]

        found, numeric = slopes(value, first[k], (side.param - first[k]) / 0.3, rng)
        assert np.abs(numeric).max() > 1e-3
        np.testing.assert_allclose(found, numeric, rtol=2e-6, atol=1e-8)
    rests = trainer(X, P, Q, loss, score)
    rests.epoch(0)
    np.testing.assert_array_equal(rests.adversaries[0].param, first[0])
    assert np.abs(rests.users.param - P).max() > 1e-3
    last = trainer(X, P, Q, AdvInfoNCE(every=2, adversary_epochs=1), score)
    last.epoch(3)
    np.testing.assert_array_equal(last.adversaries[0].param, first[0])


@pytest.mark.parametrize("threshold", ["exact", "sampled"])
def test_thresholds_are_estimated_when_they_are_due(threshold, rng):
    """The K-th largest score; that of positives and a sample is never above it, as a part's K-th largest."""
    X = matrix(rng, 40, 60, density=0.2)
    P, Q = rng.standard_normal((40, 4)), rng.standard_normal((60, 4))
    loss = SampledSoftmaxAtK(k=5, every=3, threshold=threshold)
    run = trainer(X, P, Q, loss, lr=1e-12, n=20, exclude_positives=True)
    for epoch in range(3):
        run.epoch(epoch)
        assert not run.kept.sides[0].param.any(), "published: 0 until the first estimate"
    run.epoch(3)
    found, active = run.kept.sides[0].param[:, 0], X.row_counts > 0
    scores = P @ Q.T / 0.7
    exact = np.sort(scores, axis=1)[:, -5]
    if threshold == "exact":
        np.testing.assert_allclose(found[active], exact[active], rtol=1e-6)
    else:
        assert (found <= exact + 1e-6)[active].all() and (found < exact - 1e-3)[active].any()
        own = X.to_scipy().toarray() > 0
        sure = np.array(
            [np.sort(s[o])[-5] if o.sum() >= 5 else -np.inf for s, o in zip(scores, own, strict=True)]
        )
        assert (found >= sure - 1e-6)[active].all()
    assert not found[~active].any()


def test_thresholds_are_of_scores_less_the_offset_and_samples_of_each_users_own(rng, monkeypatch):
    X, P, Q = matrix(rng, n_users=100), rng.standard_normal((100, 4)), rng.standard_normal((9, 4))
    keys, lists = [], Sampler.lists
    own = lambda self, key, *args, **how: keys.append(int(key)) or lists(self, key, *args, **how)  # noqa: E731
    monkeypatch.setattr(Sampler, "lists", own)
    run = trainer(X, P, Q, SampledSoftmaxAtK(k=2), offset=1.5)
    run._refresh(0, "exact")
    active = np.flatnonzero(X.row_counts)
    expected = np.sort(P @ Q.T / 0.7 - 1.5, axis=1)[active, -2]
    np.testing.assert_allclose(run.kept.of(active)[:, 0], expected)
    run._refresh(0, "sampled")
    assert len(keys) == len(set(keys)) == 2  # of 64 users, and of the others


def test_a_restored_adversary_scores_with_its_factors(rng):
    X, P, Q = matrix(rng), rng.standard_normal((12, 4)), rng.standard_normal((9, 4))
    loss = AdvInfoNCE(every=1, adversary_lr=0.1)
    run, other = (trainer(X, P, Q, loss, "cosine", temperature=1.0) for _ in range(2))
    run.epoch(0)
    state = {name: array.copy() for name, array in run.state().items()}
    assert (run.adversaries[1].effective != other.adversaries[1].effective).any()
    other.restore(state)
    for one, two in zip(run.adversaries, other.adversaries, strict=True):
        np.testing.assert_array_equal(one.effective, two.effective)


def test_an_adversary_has_so_many_epochs_and_steps_forward():
    turns = [Adversary(2, 0.1, epochs=2).turn(epoch) for epoch in range(8)]
    assert turns == [False, True, False, True, False, False, False, False]
    with pytest.raises(ParameterError, match="lr=-0.1"):
        Adversary(2, -0.1)


def test_schedules_fall_within_an_epoch(rng):
    X, P, Q = matrix(rng), rng.standard_normal((12, 4)), rng.standard_normal((9, 4))
    done, n = [], -(-np.count_nonzero(X.row_counts) // 4)
    run = trainer(X, P, Q, "softmax", batch_size=4, schedule=lambda share: done.append(share) or 1.0)
    run.epoch(0), run.epoch(1)
    assert n > 1 and done == pytest.approx([(epoch + k / n) / 5 for epoch in (0, 1) for k in range(n)])


def test_factors_that_are_not_finite_are_named_on_either_side(rng):
    """Also after the last batch, whose loss was finite."""
    run = trainer(matrix(rng), rng.standard_normal((12, 4)), rng.standard_normal((9, 4)), "softmax")
    run.epoch = lambda epoch: 0.5
    assert run.step(1) == 0.5
    for side, factors in (("user", run.users), ("item", run.items)):
        factors.param[3, 0] = np.inf
        with pytest.raises(NumericalError, match=f"epoch 2: the factors of {side} 3 are not finite"):
            run.step(2)
        factors.param[3, 0] = 1.0


def test_learned_thresholds_find_the_k_th_score(rng):
    """Quantile regression from one positive and a few negatives a row; the factors stand still.

    The positives have weights, heavy ones at high scores. When these entered it, it found the 11th of 20.
    """
    X = matrix(rng, 6, 200, density=0.1)
    P, Q = rng.standard_normal((6, 4)), rng.standard_normal((200, 4))
    X = as_csr(X.to_scipy().multiply(np.exp(2 * P @ Q.T)).tocsr(), dtype=np.float64)
    loss = SampledTalos(k=20, start=0.0, threshold_lr=6.0)
    run = trainer(
        X, P, Q, loss, "cosine", temperature=1.0, lr=1e-12, n=20, batch_size=8, exclude_positives=True
    )
    late = []
    for epoch in range(120):
        run.epoch(epoch)
        late.append(run.kept.sides[0].param[:, 0].copy())
    found, active = np.mean(late[60:], axis=0), X.row_counts > 1
    scores = run.users.effective @ run.items.effective.T
    assert np.ptp(np.sort(scores, axis=1)[active, -20]) > 0.01
    above = (scores > found[:, None]).sum(axis=1)[active]
    assert (np.abs(above - 20) <= 7).all() and abs(above.mean() - 20) <= 3


def test_a_state_without_a_gradient_must_be_answered():
    class Broken(Sampled):
        state = (State("scale"),)

        def value_and_grad(self, pos, neg, rows):
            return np.zeros(len(pos)), pos, neg

    X = make_implicit(40, 30, mean_interactions=6, random_state=0).matrix
    with pytest.raises(ShapeError, match=r"Broken.value_and_grad returned .* are needed"):
        SGDRanker(K=4, loss=Broken(), n_epochs=1, random_state=0).fit(X)


class Outside(List):
    """A list loss made elsewhere: how far the mean negative is above the mean positive."""

    def value_and_grad(self, scores, indptr, n_positives, weights):
        lists = np.repeat(np.arange(len(n_positives)), np.diff(indptr))
        own = np.arange(len(scores)) - indptr[lists] < n_positives[lists]
        rest = np.maximum(np.diff(indptr) - n_positives, 1)
        grad = np.where(own, -1 / n_positives[lists], 1 / rest[lists]).astype(scores.dtype)
        return np.bincount(lists, grad * scores), grad


@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam"])
def test_losses_from_outside_need_no_edit(optimizer):
    class Own(Sampled):
        """Softmax of a temperature that it learns."""

        state = (State("heat", scope="model", start=1.0, low=0.05, high=5.0),)

        def value_and_grad(self, pos, neg, rows):
            heat = rows.state[:, 0]
            value, dpos, dneg = get_loss("sampled_cce").value_and_grad(pos * heat, neg * heat[:, None])
            return value, dpos * heat, dneg * heat[:, None], (dpos * pos + (dneg * neg).sum(axis=1))[:, None]

    X = make_implicit(60, 40, mean_interactions=8, random_state=0).matrix
    for loss in (Own(), Outside()):
        history = (
            SGDRanker(K=4, loss=loss, score="cosine", optimizer=optimizer, n_epochs=8, random_state=0)
            .fit(X)
            .history_
        )
        assert history[-1]["objective"] < history[0]["objective"] - 0.05


def test_cosine_ignores_the_length_of_factors(rng):
    X = matrix(rng)
    P, Q = rng.standard_normal((12, 4)), rng.standard_normal((9, 4))
    values = [trainer(X, a * P, b * Q, "softmax", "cosine").epoch(0) for a, b in ((1, 1), (3, 0.1))]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-12)
    assert abs(values[0] - trainer(X, P, Q, "softmax", "dot").epoch(0)) > 1e-3


def test_a_zero_factor_has_cosine_zero_and_stays(rng):
    X = matrix(rng)
    P, Q = rng.standard_normal((12, 4)), rng.standard_normal((9, 4))
    P[4] = 0
    run = trainer(X, P, Q, "softmax", "cosine")
    assert np.isfinite(run.epoch(0))
    assert not run.users.param[4].any() and np.isfinite(run.items.param).all()


@pytest.mark.parametrize(
    "loss, sampling",
    [
        ("softmax", {}),
        ("sampled_softmax", {"n": 30, "sampler": "popularity", "gamma": 0.5}),
        ("bpr", {"n": 7, "exclude_positives": True, "replacement": False}),
        ("sampled_cce", {"sampler": "in_batch"}),
        (SampledSoftmaxAtK(every=1), {"n": 30}),
        ("lambda_rank", {"n": 2}),
    ],
)
def test_results_do_not_depend_on_threads(loss, sampling, rng):
    X = matrix(rng, 400, 300, density=0.1)
    P = rng.standard_normal((400, 8)).astype(np.float32)
    Q = rng.standard_normal((300, 8)).astype(np.float32)
    results = []
    for n_jobs in (1, 2):
        run = trainer(X, P, Q, loss, "cosine", optimizer=Adam(), batch_size=3000, lr=0.01, **dict(sampling))
        run.n_threads = run._pair_threads = run.users.n_threads = run.items.n_threads = n_jobs
        value = [run.epoch(0), run.epoch(1)]
        results.append((value, run.users.param, run.items.param))
    assert results[0][0] == results[1][0]
    for a, b in zip(results[0][1:], results[1][1:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_not_a_number_is_noticed_in_its_batch_and_named(rng):
    X = matrix(rng)
    P, Q = rng.standard_normal((12, 4)), rng.standard_normal((9, 4))
    P[5] = np.nan
    with pytest.raises(NumericalError, match="user 5 .*batch 0"):
        trainer(X, P, Q, "softmax").epoch(0)


# Samplers.


def test_alias_table_keeps_the_probabilities(rng):
    probability = rng.random(37) ** 3
    probability[4] = 0
    probability /= probability.sum()
    accept, alias = alias_table(probability)
    share = accept / 2.0**32
    mass = share / 37
    np.add.at(mass, alias, (1 - share) / 37)
    np.testing.assert_allclose(mass, probability, atol=1e-8)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_negatives_follow_the_proposal(gamma, rng):
    X = matrix(rng, 50, 20, density=0.2)
    sampler = Sampler(X, "popularity", 200, gamma=gamma)
    items = np.zeros((500, 201), np.int32)
    sampler.draw(np.uint64(9), np.zeros(500, np.int32), items)
    seen = np.bincount(items[:, 1:].ravel(), minlength=20) / 1e5
    wanted = X.col_counts**gamma
    wanted = wanted / wanted.sum()
    assert np.ptp(X.col_counts) > 3
    np.testing.assert_allclose(seen, wanted, atol=5 * np.sqrt(wanted.max() / 1e5))
    np.testing.assert_allclose(sampler.correction, np.log(20 * wanted), atol=1e-12)


def test_an_item_that_is_never_proposed_is_no_negative():
    """A user who has all that is proposed is left with an item of probability 0, of infinite correction."""
    X = np.ones((30, 5))
    X[:, 4] = 0
    how = {"sampler": "popularity", "exclude_positives": True, "n_negatives": 3, "n_epochs": 2}
    model = SGDRanker(K=4, loss="sampled_softmax", random_state=0, **how).fit(X)
    assert [row["objective"] for row in model.history_] == [0.0, 0.0]


def test_rare_items_first_leaves_items_without_interactions_out():
    X = np.zeros((20, 5))
    X[:, :4] = np.arange(20)[:, None] % 5 >= np.arange(4)  # the last item has none
    sampler = Sampler(as_csr(X), "popularity", 6, gamma=-1.0)
    items = np.zeros((400, 7), np.int32)
    with np.errstate(all="raise"):
        sampler.draw(np.uint64(3), np.zeros(400, np.int32), items)
    share = np.bincount(items[:, 1:].ravel(), minlength=5) / 2400
    wanted = 1 / X[:, :4].sum(axis=0)
    np.testing.assert_allclose(share, [*(wanted / wanted.sum()), 0], atol=0.05)
    assert np.isposinf(sampler.correction[4]) and np.ptp(wanted) > 0.05
    for gamma in (1000.0, -1000.0):
        with pytest.raises(ParameterError, match=f"gamma={gamma}"):
            Sampler(as_csr(X), "popularity", 6, gamma=gamma)


def test_uniform_negatives_need_no_correction(rng):
    assert not Sampler(matrix(rng), "uniform", 3).correction.any()


def test_every_epoch_has_an_order_and_negatives_of_its_own(rng, monkeypatch):
    drawn, draw = [], Sampler.draw

    def seen(self, key, users, items, *threads):
        draw(self, key, users, items, *threads)
        drawn.append(np.column_stack([users, items]))

    monkeypatch.setattr(Sampler, "draw", seen)
    run = trainer(matrix(rng), rng.standard_normal((12, 4)), rng.standard_normal((9, 4)), "bpr")
    run.epoch(0), run.epoch(1)  # a batch each
    (first, negatives), (second, others) = (np.split(rows, [2], axis=1) for rows in drawn)
    assert sorted(map(tuple, first)) == sorted(map(tuple, second))
    assert (first != second).any() and (negatives != others).any()


def test_negatives_of_a_batch_are_of_all_items_whatever_the_first_user_has(rng):
    X = as_csr(sp.csr_array(np.eye(3, 9) + np.eye(3, 9, 3)), dtype=np.float64)
    assert X.row_counts[0] == 2
    drawn = Sampler(X, "uniform", 400, shared=True).draw_shared(np.uint64(3), np.arange(3))
    assert set(drawn.tolist()) == set(range(9))


def test_lists_can_be_drawn_with_the_largest_key(rng):
    X = matrix(rng)
    lists = Sampler(X, "uniform", 3, for_lists=True).lists(np.uint64((1 << 64) - 1), np.arange(12), 3)
    assert ((lists >= 0).sum(axis=1) == X.row_counts + 3).all()


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("n_items, n_rows", [(30, 300), (4000, 40)])
def test_excluded_and_distinct_negatives(n_items, n_rows, replacement, rng):
    """Positives are marked in the catalogue where many rows are drawn, and searched where few are."""
    X = matrix(rng, 40, n_items, density=0.3)
    n = 5
    sampler = Sampler(X, "uniform", n, exclude_positives=True, replacement=replacement)
    some = rng.choice(X.nnz, n_rows, replace=False)
    users, items = sampler.users[some], np.empty((n_rows, 1 + n), np.int32)
    items[:, 0] = X.indices[some]
    sampler.draw(np.uint64(1), users, items)
    dense = X.to_scipy().toarray()
    assert not dense[users[:, None], items[:, 1:]].any()
    distinct = np.array([len(set(row)) for row in items])
    assert (distinct == 1 + n).all() if not replacement else (distinct < 1 + n).any() or n_items > 1000


def test_all_other_items_can_be_drawn_without_replacement(rng):
    X = matrix(rng)
    items = np.empty((X.nnz, 9), np.int32)
    items[:, 0] = X.indices
    sampler = Sampler(X, "popularity", 8, replacement=False)
    sampler.draw(np.uint64(1), sampler.users, items)
    assert (np.sort(items, axis=1) == np.arange(9)).all()


def test_too_many_negatives_are_refused(rng):
    X = matrix(rng)
    with pytest.raises(ParameterError, match="n_negatives=9 .*only 8 items"):
        Sampler(X, "uniform", 9, replacement=False)
    Sampler(X, "uniform", 9, replacement=False, shared=True)
    most = X.row_counts.max()
    with pytest.raises(ParameterError, match=f"only {9 - most} items for the user with most positives"):
        Sampler(X, "uniform", int(10 - most), replacement=False, exclude_positives=True)


def test_a_user_of_everything_leaves_no_negative():
    X = as_csr(sp.csr_array(np.array([[1, 0, 0], [1, 1, 1]])))
    with pytest.raises(InputError, match="user 1 has interacted with all 3 items"):
        Sampler(X, "uniform", 2, exclude_positives=True)


@pytest.mark.parametrize("sampler", ["uniform", "popularity"])
@pytest.mark.parametrize("replacement", [True, False])
def test_lists_hold_the_positives_and_what_others_there_are(replacement, sampler, rng):
    dense = (rng.random((30, 25)) < rng.choice([0.1, 0.4, 0.9], 30)[:, None]).astype(float)
    dense[3], dense[4] = 0, 1
    X = as_csr(sp.csr_array(dense))
    users = rng.permutation(30).astype(np.int32)
    drawn = Sampler(X, sampler, 3, replacement=replacement, for_lists=True)
    lists = drawn.lists(np.uint64(5), users, 3 * X.row_counts[users])
    assert lists.dtype == np.int32 and len(np.unique(X.row_counts)) > 8
    again = drawn.lists(np.uint64(6), users, 3 * X.row_counts[users])
    assert again.shape == lists.shape and (again != lists).any(), "the key decides"
    for user, row in zip(users, lists, strict=True):
        count = int(dense[user].sum())
        own, rest, none = row[:count], row[count:][row[count:] >= 0], row[row < 0]
        np.testing.assert_array_equal(own, np.flatnonzero(dense[user]))
        assert not dense[user, rest].any()
        room = 25 - count
        wanted = min(3 * count, room) if not replacement else 3 * count * (room > 0)
        assert len(rest) == wanted and len(own) + len(rest) + len(none) == len(row)
        assert replacement or len(set(rest)) == len(rest)


def test_in_batch_negatives_never_hold_the_own_positive(rng):
    X = matrix(rng)
    P, Q = rng.standard_normal((12, 4)), rng.standard_normal((9, 4))
    run = trainer(X, P, Q, "sampled_cce", sampler="in_batch")
    users, positives = run.sampler.users, X.indices
    values, _ = run.shared_gradient(Batch(np.uint64(0), users, positives=positives))
    scores = P @ Q.T / 0.7
    for value, user, item in zip(values, users, positives, strict=True):
        others = scores[user, positives[positives != item]]
        np.testing.assert_allclose(value, np.log1p(np.exp(others - scores[user, item]).sum()))


# Optimisers.


def reference(kind, param, grads, lr):
    """Textbook updates of one row, written out."""
    p, m, v = param.copy(), 0.0, 0.0
    for t, g in enumerate(grads, start=1):
        if kind == "sgd":
            m = 0.8 * m + g
            p = p - lr * m
        elif kind == "adagrad":
            v = v + g * g
            p = p - lr * g / (np.sqrt(v) + 1e-10)
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            p = p - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return p


@pytest.mark.parametrize(
    "optimizer, kind",
    [(SGD(0.8), "sgd"), (Adagrad(), "adagrad"), (Adam(), "adam"), (LazyAdam(), "adam")],
)
def test_optimisers_against_their_formulas(optimizer, kind, rng):
    param, grads = rng.standard_normal((6, 3)), rng.standard_normal((4, 6, 3))
    out = SideState(param.copy(), False, optimizer)
    for g in grads:
        out.step(g, 0.1)
    np.testing.assert_allclose(out.param, reference(kind, param, grads, 0.1), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "optimizer", [Adagrad(eps=0), Adam(eps=0), LazyAdam(eps=0), Adam(beta1=1 - 1e-9, beta2=1 - 1e-9)], ids=str
)
def test_what_has_no_gradient_takes_no_step_and_rates_stay_below_one(optimizer, dtype, rng):
    param, grad = rng.standard_normal((2, 4, 3)).astype(dtype)
    grad[:, 1] = 0
    out = SideState(param.copy(), False, optimizer)
    for _ in range(2):
        out.step(grad, 0.01)
    np.testing.assert_array_equal(out.param[:, 1], param[:, 1])
    moved = (param - out.param)[:, [0, 2]] * np.sign(grad[:, [0, 2]])
    assert np.isfinite(out.param).all() and (moved > 0.01).all()


def test_dense_and_lazy_differ_exactly_in_rows_without_gradient(rng):
    """Row 2 gets a gradient in steps 0 and 2 only."""
    param, grads = rng.standard_normal((4, 3)), rng.standard_normal((3, 4, 3))
    results = {}
    for optimizer in (Adam(), LazyAdam()):
        out = SideState(param.copy(), False, optimizer)
        for step, g in enumerate(grads):
            ids = np.array([0, 1, 3]) if step == 1 else np.arange(4)
            out.step(g[ids], 0.1, ids)
        results[optimizer.lazy] = out.param
    padded = grads.copy()
    padded[1, 2] = 0
    np.testing.assert_allclose(results[False], reference("adam", param, padded, 0.1), rtol=1e-10)
    seen = [0, 1, 3]
    np.testing.assert_allclose(results[True][seen], results[False][seen], rtol=1e-12)
    np.testing.assert_allclose(results[True][2], reference("adam", param, grads[[0, 2]], 0.1)[2], rtol=1e-10)


def test_weight_decay_coupled_and_decoupled(rng):
    param, grad = rng.standard_normal((5, 3)), rng.standard_normal((5, 3))
    for numbers, expected in (
        ({"coupled": 0.2}, param - 0.1 * (grad + 0.2 * param)),
        ({"decoupled": 0.2}, param - 0.1 * 0.2 * param - 0.1 * grad),
        (
            {"ridge": np.arange(5.0), "ridge_scale": 0.5},
            param - 0.1 * (grad + np.arange(5)[:, None] * param / 2),
        ),
    ):
        out = SideState(param.copy(), False, SGD())
        out.step(grad, 0.1, **numbers)
        np.testing.assert_allclose(out.param, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: get_optimizer("rmsprop"),
        lambda: get_optimizer("sgd", 1.0),
        lambda: Adam(beta1=1).validate(),
        lambda: get_optimizer(Adagrad(eps=-1e-8)),
    ],
)
def test_wrong_optimisers_are_refused(make):
    with pytest.raises(ParameterError):
        make()


def test_schedules():
    ends = {"constant": (1, 1), "linear": (1, 0.5), "cosine": (1, 0.5), "sqrt": (1, 1 - np.sqrt(0.5))}
    for name, (start, half) in ends.items():
        factor = get_schedule(name)
        np.testing.assert_allclose([factor(0.0), factor(0.5)], [start, half])
    assert get_schedule(lambda p: 1 - p * p, warmup=0.5)(0.75) == 0.75
    with pytest.raises(ParameterError, match="schedule='step'"):
        get_schedule("step")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("wrong", ["values", "pos", "neg"])
def test_a_sampled_loss_whose_answer_has_another_shape_is_refused(wrong, shared):
    class Broken(Sampled):
        def value_and_grad(self, pos, neg):
            out = {"values": np.zeros(len(pos)), "pos": pos, "neg": neg}
            out[wrong] = out[wrong][:1]  # numpy would spread it over the rows
            return tuple(out.values())

    X = make_implicit(40, 30, mean_interactions=6, random_state=0).matrix
    with pytest.raises(ShapeError, match=r"Broken.value_and_grad returned .* are needed"):
        SGDRanker(K=4, loss=Broken(), shared_negatives=shared, n_epochs=1, random_state=0).fit(X)


def test_what_a_loss_from_outside_declares_wrongly_is_named():
    """A scope that is none made steps at rows that did not exist, in memory that was not its own."""
    with pytest.raises(ParameterError, match="scope='users' is not valid: choose one of 'user', 'model'"):
        State("margin", scope="users")
    for wrong in ({"every": 0, "lr": 0.1}, {"every": 1, "lr": 0.1, "score": "cos"}):
        with pytest.raises(ParameterError, match="every=0|score='cos'"):
            Adversary(**wrong)

    class Broken(Sampled):
        state = (State("threshold"),)

        def refresh(self, epoch):
            return "exactly"

        def value_and_grad(self, pos, neg, rows):
            return None

    X = make_implicit(40, 30, mean_interactions=6, random_state=0).matrix
    with pytest.raises(ParameterError, match="refresh='exactly'"):
        SGDRanker(K=4, loss=Broken(), n_epochs=1, random_state=0).fit(X)
    Broken.refresh = Sampled.refresh
    with pytest.raises(ShapeError, match="Broken.value_and_grad returned .* NoneType; .* are needed"):
        SGDRanker(K=4, loss=Broken(), n_epochs=1, random_state=0).fit(X)


def odd(base=Sampled, **what):
    """A loss of a base with attributes of other kinds; by default BPR."""
    return type("Odd", (base,), {"value_and_grad": lambda self, pos, neg: bpr(pos, neg), **what})()


def answered(change):
    return odd(value_and_grad=lambda self, pos, neg: change(*bpr(pos, neg)))


def penalised(users):
    of = {"value_and_grad": lambda self, scores, positives: (np.zeros(len(scores)), scores)}
    return odd(Full, penalties=lambda self, X: (np.full(40, users), np.ones(30)), **of)


def with_rows(self, pos, neg, rows):
    return *bpr(pos, neg), np.zeros_like(rows.state)


bpr = get_loss("bpr").value_and_grad
THRESHOLD = {"value_and_grad": with_rows, "state": (State("threshold"),)}
EXACT = {**THRESHOLD, "refresh": lambda self, epoch: "exact"}


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (answered(lambda v, p, n: v), ShapeError, "grad returned no tuple but a ndarray"),
        (answered(lambda v, p, n: (v, p, n * 1j)), InputTypeError, "Odd.value_and_grad .* complex64; real"),
        (answered(lambda v, p, n: (v, p.astype(str), n)), InputTypeError, "grad .* <U32; real"),
        (answered(lambda v, p, n: (v, p, n * np.nan)), NumericalError, "Odd.value_and_grad .* not finite"),
        (odd(value_and_grad=lambda self, pos: 0), InputTypeError, r"a method value_and_grad\(pos, neg\)"),
        (odd(state=(State("b"),)), InputTypeError, r"needs a method value_and_grad\(pos, neg, rows\)"),
        (odd(refresh=lambda self: None), InputTypeError, r"needs a method refresh\(epoch\)"),
        (odd(**THRESHOLD | {"state": ("b",)}), InputTypeError, r"Odd.state is \('b',\); give a tuple"),
        (odd(adversary=3), InputTypeError, "Odd.adversary is 3; give an Adversary, or None"),
        (odd(score="cosin"), ParameterError, "Odd.score='cosin' is not valid: choose one of 'cosine', 'dot'"),
        (odd(lr=-1.0), ParameterError, "Odd.lr=-1.0 is not valid: give a finite number > 0"),
        (odd(n_negatives="many"), ParameterError, "Odd.n_negatives='many' is not valid"),
        (odd(**EXACT, estimate=lambda self, s: s[:, :1] * np.nan), InputError, "Odd.estimate .* are NaN"),
        (penalised(-1.0), InputError, "Odd.penalties returned numbers that are NaN or below 0"),
        (penalised("1"), InputTypeError, "Odd.penalties returned an array of <U1; real numbers"),
        (odd(penalties=lambda self, X: None), InputTypeError, "Odd.penalties is for losses of kind 'full'"),
        (odd(Full, state=(State("b"),)), InputTypeError, "Odd.state is for losses of kind 'sampled', not"),
    ],
)  # fmt: skip
def test_what_a_loss_from_outside_gives_is_checked_and_named(loss, error, message):
    """Crashes of numpy and Python's, steps that climbed, imaginary parts and words that were ignored."""
    X = make_implicit(40, 30, mean_interactions=6, random_state=0).matrix
    with pytest.raises(error, match=message):
        SGDRanker(K=4, loss=loss, n_epochs=1, random_state=0).fit(X)


def test_a_full_loss_whose_answer_has_another_shape_is_refused():
    class Broken(Full):
        def value_and_grad(self, scores, positives):
            return 0.0, scores

    X = make_implicit(40, 30, mean_interactions=6, random_state=0).matrix
    with pytest.raises(ShapeError, match=r"Broken.value_and_grad returned .*\(\)"):
        SGDRanker(K=4, loss=Broken(), n_epochs=1, random_state=0).fit(X)


@pytest.mark.parametrize("wrong", [np.zeros(30), np.zeros((1, 1)), 0.0], ids=["B", "one", "number"])
def test_estimates_of_another_shape_are_refused(wrong):
    """One for everybody was spread over the users in silence, (B,) was numpy's error."""

    class Broken(Sampled):
        state = (State("threshold"),)

        def refresh(self, epoch):
            return "exact"

        def estimate(self, scores):
            return wrong

        def value_and_grad(self, pos, neg, rows):
            return np.zeros(len(pos)), pos, neg, rows.state

    X = make_implicit(30, 30, mean_interactions=6, random_state=0).matrix
    with pytest.raises(ShapeError, match=r"Broken.estimate returned .*; \[\(30, 1\)\] are needed"):
        SGDRanker(K=4, loss=Broken(), n_epochs=1, random_state=0).fit(X)


SHORT, TURNED = lambda X: (X.row_sums, X.col_sums[:3]), lambda X: (X.col_sums, X.row_sums)


@pytest.mark.parametrize("wrong", [SHORT, TURNED], ids=["short", "turned"])
def test_penalties_of_another_shape_are_refused(wrong):
    """Those of items that were missing were read from memory behind the array."""

    class Broken(Full):
        penalties = staticmethod(wrong)

        def value_and_grad(self, scores, positives):
            return np.zeros(len(scores)), scores

    X = make_implicit(40, 30, mean_interactions=6, random_state=0).matrix
    with pytest.raises(ShapeError, match=r"Broken.penalties returned .*; \[\(40,\), \(30,\)\] are needed"):
        SGDRanker(K=4, loss=Broken(), n_epochs=1, random_state=0).fit(X)


def test_a_ridge_that_falls_with_the_degrees_holds_nobody_without_interactions():
    """Their degree of 0 was divided by, with a warning of numpy."""
    X = as_csr(sp.csr_array([[1.0, 1, 0], [0, 0, 0], [0, 1, 1]]))
    with np.errstate(divide="raise"):
        users, _ = RG2(reg=0.1, reg_exponent=-1.0).penalties(X)
    np.testing.assert_allclose(users, [0.1 / 1.1, 0.0, 0.1 / 1.1])


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, "a", None])
def test_a_schedule_gives_factors(wrong, rng):
    """NaN was told as a learning rate that is too high, and -1 climbed."""
    with pytest.raises(ParameterError, match=r"schedule\(0\)=.*>= 0"):
        SGDRanker(K=2, n_epochs=2, schedule=lambda done: wrong).fit(matrix(rng))
