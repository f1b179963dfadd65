"""Factors and models in other programs' hands: implicit, faiss, npy, parquet."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RGALS, WRMF, Positions
from rgals.datasets import make_implicit
from rgals.model.export import augment_items, augment_queries, export_factors, export_index
from rgals.runtime.errors import (
    InputError,
    InputTypeError,
    MissingDependencyError,
    ParameterError,
    ShapeError,
)

M, N, K = 90, 70, 8


@pytest.fixture(scope="module")
def matrix():
    return make_implicit(M, N, n_clusters=4, mean_interactions=9, random_state=2).matrix


@pytest.fixture(scope="module")
def model(matrix):
    ids = [f"u{k}" for k in range(M)], np.arange(N) * 3
    return RGALS(K=K, loss=IALS(), n_iter=4, random_state=0).fit(matrix, user_ids=ids[0], item_ids=ids[1])


def test_implicit_recommends_the_same(matrix, model):
    pytest.importorskip("implicit")
    theirs = model.to_implicit()
    users = np.arange(M)
    ids, scores = theirs.recommend(users, sp.csr_matrix(matrix), N=10)
    mine, my_scores = model.recommend(Positions(users), 10)
    np.testing.assert_allclose(scores, my_scores, rtol=1e-5, atol=1e-6)
    assert (np.sort(ids, axis=1) == np.sort(mine, axis=1)).all()


@pytest.mark.parametrize("valued", [False, True])
def test_a_model_of_implicit_recommends_and_folds_in_as_it_did(tmp_path, valued):
    als = pytest.importorskip("implicit.cpu.als")
    X = make_implicit(M, N, n_clusters=4, mean_interactions=9, valued=valued, random_state=2).matrix
    theirs = als.AlternatingLeastSquares(
        factors=K, alpha=3.0, regularization=0.5, use_cg=False, random_state=0
    )
    theirs.fit(sp.csr_matrix(X), show_progress=False)
    mine = RGALS.from_implicit(theirs, X, user_ids=[f"u{k}" for k in range(M)])
    users = np.arange(M)
    ids, scores = theirs.recommend(users, sp.csr_matrix(X), N=10)
    got, got_scores = mine.recommend(Positions(users), 10)
    np.testing.assert_allclose(got_scores, scores, rtol=1e-5, atol=1e-6)
    want = np.vstack([theirs.recalculate_user(u, sp.csr_matrix(X[[u]])) for u in range(M)])
    np.testing.assert_allclose(mine.transform(mine.seen_), want, rtol=1e-3, atol=1e-4)
    why = mine.explain(Positions(3), Positions(8))
    folded = mine.transform(mine.seen_[[3]])[0] @ mine.item_factors_[8]
    assert why.score == pytest.approx(folded, abs=1e-5)
    mine.save(tmp_path / "m.npz")
    np.testing.assert_array_equal(RGALS.load(tmp_path / "m.npz").recommend(Positions(users), 10)[0], got)
    assert mine.loss == mine.get_params()["loss"] and isinstance(mine.loss, WRMF)
    taken = RGALS.load(tmp_path / "m.npz").params_  # it has no history to tell from
    assert taken["init"] == "auto" and taken["n_iter"] == theirs.iterations and taken["reg"] == 0.5
    back = mine.to_implicit()
    np.testing.assert_array_equal(back.item_factors, theirs.item_factors)
    assert valued or back.alpha == pytest.approx(3.0)


def test_what_cannot_come_from_implicit_is_named(matrix):
    als = pytest.importorskip("implicit.cpu.als")
    light = als.AlternatingLeastSquares(factors=K, alpha=0.5, random_state=0)
    light.fit(sp.csr_matrix(matrix), show_progress=False)
    with pytest.raises(InputError, match="loss="):
        RGALS.from_implicit(light, matrix)
    assert RGALS.from_implicit(light, matrix, loss=IALS(0.2)).transform(matrix).shape == (M, K)
    with pytest.raises(ShapeError, match="transposed"):
        RGALS.from_implicit(light, matrix.T, loss="ials")
    with pytest.raises(InputTypeError, match="fitted ALS model, not"):
        RGALS.from_implicit(als.AlternatingLeastSquares(), matrix)
    bpr = pytest.importorskip("implicit.cpu.bpr").BayesianPersonalizedRanking(factors=2, iterations=1)
    bpr.fit(sp.csr_matrix(matrix), show_progress=False)
    with pytest.raises(InputTypeError, match="fitted ALS model, not BayesianPersonalizedRanking"):
        RGALS.from_implicit(bpr, matrix)


def test_positives_that_weigh_as_much_as_others_come_from_implicit_if_all_do(matrix):
    """As `WRMF` without extra weight; of other values the lowest would be 0, which is no interaction."""
    rng = np.random.default_rng(0)
    factors = {"user_factors": rng.standard_normal((M, K)), "item_factors": rng.standard_normal((N, K))}
    theirs = SimpleNamespace(**factors, alpha=1.0, regularization=0.5, iterations=3)
    mine = RGALS.from_implicit(theirs, matrix)
    assert mine.loss_.alpha == 0.0 and mine.reg_ == 0.5
    valued = matrix.copy()
    valued.data = rng.integers(1, 4, matrix.nnz).astype(float)
    assert sorted(set(valued.data)) == [1, 2, 3]
    with pytest.raises(InputError, match="weigh alpha v, down to 1, .* loss="):
        RGALS.from_implicit(theirs, valued)
    theirs.user_factors[:] = theirs.item_factors[:] = 0  # as its next fit does
    assert mine.user_factors_.all() and mine.item_factors_.all()


def test_dislikes_come_from_implicit_with_a_loss_that_takes_them(matrix):
    """The error named this loss, and the call with it was refused, too."""
    als = pytest.importorskip("implicit.cpu.als")
    X = sp.csr_matrix(matrix, copy=True)
    X.data[::5] *= -1
    theirs = als.AlternatingLeastSquares(factors=K, alpha=3.0, random_state=0)
    theirs.fit(X, show_progress=False)
    with pytest.raises(InputError, match=r"WRMF\(dislikes=True\)"):
        RGALS.from_implicit(theirs, X)
    mine = RGALS.from_implicit(theirs, X, loss=WRMF(alpha=2.0, dislikes=True))
    users = np.arange(M)
    ids, scores = theirs.recommend(users, X, N=10)
    got, got_scores = mine.recommend(users, 10)
    np.testing.assert_allclose(got_scores, scores, rtol=1e-5, atol=1e-6)
    assert (np.sort(ids, axis=1) == np.sort(got, axis=1)).all()
    assert mine.transform(X).shape == (M, K) and (mine.seen_.data < 0).any()


def test_a_frame_in_an_order_of_its_own_is_not_what_implicit_was_fitted_to():
    """Its ids are sorted; factors of rows that were numbered as they came went to others, in silence."""
    als, pd = pytest.importorskip("implicit.cpu.als"), pytest.importorskip("pandas")
    frame = pd.DataFrame({"user": ["zoe", "zoe", "ann"], "item": ["tea", "rum", "tea"]})
    (rows, users), (columns, items) = frame["user"].factorize(), frame["item"].factorize()
    X = sp.csr_matrix((np.ones(3), (rows, columns)))
    theirs = als.AlternatingLeastSquares(factors=2, random_state=0)
    theirs.fit(X, show_progress=False)
    with pytest.raises(InputError, match="X is a frame, in its own order; give the matrix of the fit"):
        RGALS.from_implicit(theirs, frame)
    mine = RGALS.from_implicit(theirs, X, user_ids=users, item_ids=items)
    assert mine.recommend(["ann"], 1)[0].tolist() == [["rum"]]


def test_distances_of_augmented_vectors_rank_as_inner_products():
    rng = np.random.default_rng(0)
    items, queries = (
        rng.standard_normal((300, 5)) * rng.lognormal(0, 1, (300, 1)),
        rng.standard_normal((20, 5)),
    )
    a, b = augment_items(items), augment_queries(queries)
    np.testing.assert_allclose(np.linalg.norm(a, axis=1), np.linalg.norm(items, axis=1).max())
    distance = ((b[:, None] - a[None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(np.argsort(distance), np.argsort(-(queries @ items.T)))
    assert augment_items(items.astype(np.float32)).dtype == np.float32


def test_vectors_of_integers_and_lists_are_augmented_exactly():
    """The square root of 23 became 4, so that distances ranked otherwise than products."""
    np.testing.assert_array_equal(augment_items([[3, 4], [1, 1]]), [[3, 4, 0], [1, 1, np.sqrt(23)]])
    assert augment_items(np.array([[3, 4], [1, 1]])).dtype == np.float64
    np.testing.assert_array_equal(augment_queries([[1, 2]]), [[1, 2, 0]])
    with pytest.raises(ShapeError, match="items must have two dimensions"):
        augment_items(np.ones(3))


@pytest.mark.parametrize("space", ["ip", "l2"])
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_an_index_finds_what_recommend_finds(model, tmp_path, kind, space):
    faiss = pytest.importorskip("faiss")
    export_index(model, tmp_path / "items.index", kind=kind, space=space)
    index = faiss.read_index(str(tmp_path / "items.index"))
    queries = model.user_factors_ if space == "ip" else augment_queries(model.user_factors_)
    _, found = index.search(queries, 10)
    want, _ = model.recommend(Positions(np.arange(M)), 10, exclude=None)
    common = np.mean([len(set(a) & set(b)) for a, b in zip(found, want, strict=True)])
    assert common == 10 if kind == "flat" else common > 9


def test_factors_as_files(model, tmp_path):
    paths = export_factors(model, tmp_path / "npy")
    arrays = {path.rsplit("/", 1)[1]: np.load(path, allow_pickle=False) for path in paths}
    np.testing.assert_array_equal(arrays["user_factors.npy"], model.user_factors_)
    np.testing.assert_array_equal(arrays["item_ids.npy"], model.item_ids_)
    parquet = pytest.importorskip("pyarrow.parquet")
    users, items = map(parquet.read_table, export_factors(model, tmp_path / "pq", format="parquet"))
    assert users["id"].to_pylist() == model.user_ids_.tolist()
    assert items["id"].to_pylist() == model.item_ids_.tolist()
    np.testing.assert_array_equal(np.array(items["factors"].to_pylist(), np.float32), model.item_factors_)
    with pytest.raises(ParameterError, match="format='txt'"):
        export_factors(model, tmp_path, format="txt")
    for export in (export_index, lambda no_model: export_factors(no_model, tmp_path)):
        for wrong, what in ((RGALS, "the class RGALS"), (model.factors_, "a tuple")):
            with pytest.raises(InputTypeError, match=f"model is {what}: give a fitted model"):
                export(wrong)


@pytest.mark.parametrize("format", ["npy", "parquet"])
def test_no_two_ids_become_one(matrix, tmp_path, format):
    """1 and "1" are two users, as "a" and "a\\0" are, which a text of fixed width cannot tell apart."""
    if format == "parquet":
        pytest.importorskip("pyarrow")
    for first, second in ((1, "1"), ("a\0", "a"), ("a\0", "a\0\0")):
        ids = np.array([first, second, *(f"u{k}" for k in range(2, M))], object)
        model = RGALS(K=2, n_iter=1, random_state=0).fit(matrix, user_ids=ids, item_ids=np.arange(N))
        if format == "parquet" and first != 1:  # which holds any text
            users, _ = export_factors(model, tmp_path / "kept", format=format)
            parquet = pytest.importorskip("pyarrow.parquet")
            assert parquet.read_table(users)["id"].to_pylist() == model.user_ids_.tolist() == ids.tolist()
            continue
        with pytest.raises(InputError) as error:
            export_factors(model, tmp_path / "refused", format=format)
        written = str(first).rstrip("\0")
        assert str(error.value).startswith(f"the user {first!r} would be written as {written!r}")
    assert not (tmp_path / "refused").exists()


def test_a_missing_package_is_named(model, monkeypatch, tmp_path):
    for name in ("faiss", "implicit.cpu.als", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    for call in (
        lambda: export_index(model),
        model.to_implicit,
        lambda: export_factors(model, tmp_path / "f", format="parquet"),
    ):
        with pytest.raises(MissingDependencyError, match="pip install"):
            call()
    assert not (tmp_path / "f").exists()
