"""First hours of three users, step by step: each step gives what it should, or says the line that is right.

One has a frame of events (of five kinds), one serves, one compares. What single functions do with odd input
is tested beside them; here one thing follows from the other.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp

import rgals
from rgals import RGALS, ModelFileError, Positions, UnknownIdError
from rgals.baselines import EASE, Popularity
from rgals.cli import main
from rgals.compare import Effort, compare
from rgals.datasets import Interactions, read_interactions
from rgals.metrics import evaluate
from rgals.model_selection import leave_last_out, split_interactions, temporal_split
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, RgalsError, ShapeError
from rgals.scoring import recommend_all

pandas = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

FAR = 2**40  # ids that 32 bits do not hold
N_USERS, N_ITEMS = 60, 30


def log() -> dict[str, list]:
    """Two groups with a taste each; in some order, some events twice. Days of 2024 in the order of events."""
    rng = np.random.default_rng(3)
    users = rng.integers(0, N_USERS, 700)
    items = np.where(
        rng.random(700) < 0.9, users % 2 * 15 + rng.integers(0, 15, 700), rng.integers(0, 30, 700)
    )
    users, items = np.append(users, np.arange(60)), np.append(items, np.arange(60) % 30)
    order = rng.permutation(len(users))
    days = np.sort(rng.integers(0, 360, len(users)))
    return {
        "user": [f"u{k:02}" for k in users[order]],
        "item": (items[order] + FAR).tolist(),
        "value": rng.integers(1, 3, len(users)).astype(float).tolist(),
        "time": (np.datetime64("2024-01-01") + days).astype(str).tolist(),
    }


LOG = log()
SUMS = Counter()
for user, item, value in zip(LOG["user"], LOG["item"], LOG["value"], strict=True):
    SUMS[user, item] += value
assert max(Counter(zip(LOG["user"], LOG["item"], strict=True)).values()) > 1


def of_pandas(log):
    frame = pandas.DataFrame(log)[["time", "item", "value", "user"]]
    frame["user"], frame["item"] = frame["user"].astype("category"), frame["item"].astype("Int64")
    frame["time"] = pandas.to_datetime(frame["time"])
    names = {"user": "Customer ID", "item": "ASIN", "value": "Quantity", "time": "Order-Date"}
    return frame.rename(columns=names).sample(frac=1, random_state=0)


def of_polars(log):
    frame = pl.DataFrame(log, schema_overrides={"user": pl.Categorical, "item": pl.UInt64})
    frame = frame.with_columns(pl.col("time").str.to_datetime())
    return frame.rename({"user": "userId", "item": "movieId", "value": "rating"}).select(
        "rating", "movieId", "time", "userId"
    )


def of_arrow(log):
    columns = {name: pa.array(values) for name, values in log.items()}
    columns["user"] = columns["user"].dictionary_encode()
    columns["time"] = columns["time"].cast(pa.timestamp("s"))
    return pa.table({f"{name}_id" if name in ("user", "item") else name: columns[name] for name in columns})


def of_arrays(log):
    return read_interactions(tuple(np.array(log[name]) for name in ("user", "item", "value", "time")))


def of_sparse(log):
    """A matrix, with ids and times beside it."""
    made = of_arrays(log)
    return Interactions(sp.csr_matrix(made.matrix), made.user_ids, made.item_ids, made.timestamp)


KINDS = {f.__name__.removeprefix("of_"): f for f in (of_pandas, of_polars, of_arrow, of_arrays, of_sparse)}


class Hour:
    """Steps, counted."""

    def __init__(self) -> None:
        self.steps = 0

    def gives(self, found, expected) -> None:
        """A step with an answer."""
        self.steps += 1
        found = found.tolist() if isinstance(found, np.ndarray) else found
        assert found == expected, f"step {self.steps}"

    def says(self, error, words, call) -> None:
        """A step with an error that says what would be right."""
        self.steps += 1
        with pytest.raises(error, match=words):
            call()


@pytest.fixture
def hour():
    return Hour()


def model(**more):
    return RGALS(K=4, n_iter=3, random_state=0, values="raw", **more)


def as_dict(fitted):
    rows, cols = fitted.seen_.nonzero()
    names = zip(fitted.user_ids_[rows].tolist(), fitted.item_ids_[cols].tolist(), strict=True)
    return dict(zip(names, fitted.seen_.data.tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_one_with_a_frame(hour, kind, tmp_path):
    make = KINDS[kind]
    X = make(LOG)
    if kind not in ("arrays", "sparse"):
        broken = make(
            {
                name: [*values[:5], None, *values[6:]] if name == "user" else values
                for name, values in LOG.items()
            }
        )
        hour.says(InputError, r"row \d+: the user is missing", lambda: model().fit(broken))
    hour.says(ParameterError, "K=0", lambda: RGALS(K=0).fit(X))
    fitted = model().fit(X)
    hour.gives(as_dict(fitted), dict(SUMS))
    hour.gives(fitted.user_ids_, sorted({*LOG["user"]}))
    hour.gives(fitted.item_ids_, sorted({*LOG["item"]}))

    mine = {item for user, item in SUMS if user == "u01"}
    items, scores = fitted.recommend(["u01"], n=5)
    hour.gives(mine & {*items[0]}, set())
    hour.gives([item >= FAR + 15 for item in items[0]], [True] * 5)  # the taste of odd users
    hour.gives(fitted.recommend("u01", n=5)[0][0], items[0].tolist())
    hour.gives(fitted.recommend(Positions([1]), n=5)[1], scores.tolist())
    hour.says(UnknownIdError, r"1 .*Positions\(\[1\]\)", lambda: fitted.recommend([1]))
    hour.says(UnknownIdError, "'u99'", lambda: fitted.recommend(["u99"]))
    hour.gives(np.isclose(fitted.predict(["u01"], [items[0][0]]), scores[0, :1]), [True])
    hour.gives([i >= FAR + 15 for i in fitted.similar_items([FAR + 20], n=3)[0][0]], [True] * 3)
    why = fitted.explain("u01", items[0][0])
    hour.gives((why.user, why.item, {*why.items} <= mine), ("u01", items[0][0], True))
    frame = fitted.recommend(["u01"], n=2).to_frame()
    hour.gives(frame["item"].tolist(), items[0][:2].tolist())

    newcomer = pandas.DataFrame({"user": ["zoe"] * 3, "item": [FAR + 2, FAR + 4, FAR + 6]})
    found = fitted.recommend_new(newcomer, n=4)[0]
    hour.gives([i < FAR + 15 for i in found[0]], [True] * 4)
    hour.says(UnknownIdError, "item 5 is not known", lambda: fitted.recommend_new(newcomer.assign(item=5)))

    train, test = split_interactions(X, (0.8, 0.2), random_state=0)
    hour.gives(train.nnz + test.nnz, len(SUMS))
    judged = model().fit(train)
    figures = evaluate(judged, train, test, ("ndcg@10", "hr@5"))
    hour.gives(([*figures], figures["ndcg@10"] > 0.2), (["ndcg@10", "hr@5"], True))
    same = evaluate(judged, train, test, per_user=True)[1]
    hour.gives({*same} <= {*fitted.user_ids_}, True)
    hour.says(ParameterError, "ndcg", lambda: evaluate(judged, train, test, "ndgc@10"))
    past, future = temporal_split(X, "2024-10-01")
    hour.gives((past.nnz + future.nnz, past.timestamp.max() < future.timestamp.min()), (len(SUMS), True))
    hour.gives(leave_last_out(X)[1].nnz, len({user for user, _ in SUMS}))
    hour.says(RgalsError, "2024-13-01", lambda: temporal_split(X, "2024-13-01"))

    fitted.save(tmp_path / "model.npz")
    hour.gives(RGALS.load(tmp_path / "model.npz").recommend(["u01"], n=5)[0], items.tolist())
    day = {"user": ["zoe", "u01", "zoe"], "item": [FAR + 3, FAR + 3, FAR + 99], "value": [1.0] * 3}
    day["time"] = ["2025-01-01"] * 3
    fitted.partial_fit(make(day))
    later = Counter(SUMS)
    later.update(dict.fromkeys(zip(day["user"], day["item"], strict=True), 1.0))
    hour.gives(as_dict(fitted), dict(later))
    hour.gives((fitted.user_ids_[-1], fitted.item_ids_[-1]), ("zoe", FAR + 99))
    hour.gives({FAR + 3, FAR + 99} & {*fitted.recommend(["zoe"], n=30)[0][0]}, set())
    assert hour.steps >= 27


def test_the_one_who_serves(hour, tmp_path, capsys):
    data = of_arrays(LOG)
    path = tmp_path / "model.npz"
    hour.says(InputTypeError, r'read_interactions\("events.csv"\)', lambda: model().fit("events.csv"))
    fitted = model().fit(data)
    fitted.save(path)
    hour.says(FileNotFoundError, "nothing.npz", lambda: RGALS.load(tmp_path / "nothing.npz"))
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:-100])
    hour.says(ModelFileError, "cut.npz", lambda: RGALS.load(tmp_path / "cut.npz"))
    served = RGALS.load(path)
    hour.gives(served.fingerprint(), fitted.fingerprint())

    users = served.user_ids_[:3].tolist()
    items = served.recommend(users, n=4)[0]
    hour.gives(served.recommend(users, n=4, candidates=items[0])[0][0], items[0].tolist())
    left = served.recommend(users[:1], n=4, exclude_items=items[0][:1])[0][0]
    hour.gives(left[:3], items[0][1:].tolist())
    hour.gives(served.recommend(users[:1], n=N_ITEMS + 5)[0].shape, (1, N_ITEMS + 5))
    hour.says(UnknownIdError, "17", lambda: served.recommend(users, n=4, candidates=[17]))
    hour.says(ParameterError, "n=0", lambda: served.recommend(users, n=0))
    popular = Popularity().fit(data).recommend(users[:1], n=3, exclude=None)[0][0]
    found = served.recommend_ids(["nobody"], n=3, unknown="popular")[0][0]
    hour.gives(found, popular.tolist())
    hour.gives({*served.recommend_ids(["nobody"], n=3, unknown="empty")[0][0]}, {None})
    hour.says(UnknownIdError, "'nobody'", lambda: served.recommend_ids(["nobody"]))

    hour.says(ParameterError, "xlsx", lambda: recommend_all(served, tmp_path / "lists.xlsx"))
    written = recommend_all(served, tmp_path / "lists.parquet", n=4)
    hour.gives((written.served, written.rows), (len(served.user_ids_), 4 * len(served.user_ids_)))
    rows = pandas.read_parquet(tmp_path / "lists.parquet")
    hour.gives(rows[rows["user"] == users[0]]["item"].tolist(), items[0].tolist())
    command = ["recommend", str(path), "--user", users[0], "-n", "4", "-q"]
    hour.gives(main(command), 0)
    lines = capsys.readouterr().out.splitlines()
    hour.gives([int(line.split(",")[1]) for line in lines[1:]], items[0].tolist())
    hour.gives(main(["recommend", str(path), "--user", "nobody"]), 1)
    hour.gives("'nobody'" in capsys.readouterr().err, True)
    hour.gives(main(["info", str(path)]), 0)
    hour.gives(f"{len(users) and len(served.user_ids_)}" in capsys.readouterr().out, True)

    before = served.fingerprint()
    hour.says(ParameterError, "merge='sum'", lambda: served.partial_fit(data, merge="sum"))
    hour.says(InputError, "list of records", lambda: served.partial_fit([("u01", FAR)]))
    hour.gives(served.partial_fit(data, merge="drop").fingerprint(), before)
    served.partial_fit(read_interactions((["eve", "eve"], [FAR, FAR + 2])))
    hour.gives((served.user_ids_[-1], round(served.drift().merged * served.seen_.nnz)), ("eve", 2))
    hour.says(UnknownIdError, "'mallory'", lambda: served.forget_users(["eve", "mallory"]))
    hour.gives("eve" in served.forget_users(["eve"]).user_ids_, False)
    hour.says(UnknownIdError, "'eve'", lambda: served.recommend(["eve"]))
    hour.gives(FAR + 2 in served.forget_items([FAR + 2]).item_ids_, False)
    assert hour.steps >= 25


def test_the_one_who_compares(hour, capsys):
    data = of_arrays(LOG)
    few = {"effort": Effort(max_trials=0, objective_iterations=0), "seeds": 1, "K": 4, "verbose": 0}
    hour.says(ParameterError, "rg3.*rg2", lambda: compare(data, "rg3"))
    hour.says(ParameterError, "an object, not its class", lambda: compare(data, [EASE]))
    hour.says(RgalsError, "ndcg", lambda: compare(data, "popularity", metric="ngcd@10"))
    hour.says(
        InputError, r"pandas.DataFrame\(data\)", lambda: compare([{"user": 1, "item": 2}], "popularity")
    )

    def nothing(X):
        return np.full(X.shape, np.nan)

    hour.says(InputError, "NaN.*-inf", lambda: compare(data, nothing, **few))
    hour.says(ShapeError, "users x items", lambda: compare(data, lambda X: np.ones((2, 2)), **few))

    def neighbours(X):
        return X @ (X.T @ X)

    methods = {"ours": model(), "EASE": EASE(), "neighbours": neighbours, "popular": "popularity"}
    result = compare(data, methods, metric="hr@5,ndcg@10", **few)
    hour.gives({row.method for row in result.rows}, {*methods})
    figures = [row.test["hr@5"][0] for row in result.rows]
    hour.gives((sorted(figures, reverse=True), result.rows[-1].method), (figures, "popular"))
    split = rgals.compare.prepare(data)
    known = Interactions(split.known.to_scipy(), data.user_ids, data.item_ids)
    alone = evaluate(Popularity().fit(split.train.to_scipy()), split.known.to_scipy(), split.test.to_scipy())
    hour.gives(result.rows[-1].test["ndcg@10"][0], pytest.approx(alone["ndcg@10"], abs=1e-12))
    hour.gives(known.nnz + split.test.nnz, len(SUMS))
    against = result.against()
    hour.gives({*against}, {*methods} - {result.rows[0].method})
    hour.gives(against["popular"].corrected < 0.05, True)
    frame = result.to_frame()
    hour.gives(frame["best"].sum(), 1)
    hour.gives("neighbours" in result.text() and "| " in result.markdown(), True)
    hour.gives(main(["metrics"]), 0)
    hour.gives("ndcg" in capsys.readouterr().out, True)
    hour.gives(main(["compare", "nowhere.csv", "-o", "there"]), 1)
    hour.gives("nowhere.csv" in capsys.readouterr().err, True)
    assert hour.steps >= 16


# ------------------------------------------------------------------ the line that is right

SIMPLE = {"user": LOG["user"][:200], "item": LOG["item"][:200], "value": LOG["value"][:200]}
NUMBERS = {"user": [int(name[1:]) + 10 for name in SIMPLE["user"]], "item": SIMPLE["item"]}
PAIRS = np.array([NUMBERS["user"], NUMBERS["item"]]).T


def named(*names, of=SIMPLE):
    """The log with other names of its columns."""
    return dict(zip(names, of.values(), strict=False))


def wrong(folder):
    """What is given now and then, none of it as it should be."""
    frames = {"pandas": pandas.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}
    for name, frame in frames.items():
        yield f"{name}: strange names", frame(named("who", "what"))
        yield f"{name}: integers", frame(named("a", "b", of=NUMBERS))
        yield f"{name}: half of the names", frame(named("user", "thing"))
        yield f"{name}: the other half", frame(named("person", "item"))
        yield f"{name}: a value beside", frame(named("who", "what", "rating"))
        yield (
            f"{name}: integers and a value",
            frame(named("who", "what", "rating", of={**NUMBERS, "v": SIMPLE["value"]})),
        )
    table = pandas.DataFrame(SIMPLE)
    yield "numbered columns", pandas.DataFrame(PAIRS)
    yield "nullable numbered columns", pandas.DataFrame(PAIRS).astype("Int64")
    yield "ids in the index", table.set_index(["user", "item"])
    yield "users in the index", table.set_index("user")
    yield "a series", table.groupby(["user", "item"])["value"].sum()
    yield "a lazy frame", pl.DataFrame(SIMPLE).lazy()
    yield "a dict", SIMPLE
    yield "a dict, items first", {name: SIMPLE[name] for name in ("value", "item", "user")}
    yield "two arrays", (np.array(SIMPLE["user"]), np.array(SIMPLE["item"]))
    yield "three columns", tuple(pandas.Series(column) for column in SIMPLE.values())
    yield "records", list(zip(*SIMPLE.values(), strict=True))
    yield "records by name", table.to_dict("records")
    yield "an iterator", zip(*SIMPLE.values(), strict=True)
    yield "an array of pairs", PAIRS
    yield "an array of pairs as numbers", PAIRS.astype(np.float64)
    yield "an array with values", np.column_stack([PAIRS, SIMPLE["value"]])
    yield "an array of text", np.array([SIMPLE["user"], list(map(str, SIMPLE["item"]))]).T
    yield "an array of objects", np.array([SIMPLE["user"], SIMPLE["item"]], object).T
    yield (
        "a structured array",
        table.astype({"user": "U3"}).to_records(index=False, column_dtypes={"user": "U3"}).view(np.ndarray),
    )
    table.to_csv(folder / "events.csv", index=False)
    yield "a path", folder / "events.csv"
    yield "a path as text", str(folder / "events.csv")


LINES = (
    r'columns=(\{"user": [^.}]*\})',
    r"give (X\.\w+\(\))",
    r"give (rgals\.datasets\.read_interactions\(.*?\))(?: if|$)",
    r"give (pandas\.DataFrame\(X\))",
)


def follow(X, error):
    """The fit that an error asks for."""
    for line in LINES:
        if told := re.search(line, str(error)):
            made = eval(told[1], {"X": X, "rgals": rgals, "pandas": pandas})
            return (X, made) if isinstance(made, dict) else (made, None)
    raise AssertionError(f"no line in: {error}")


@pytest.mark.filterwarnings("ignore:no column of X is called like a value")
def test_wrong_inputs_are_answered_by_the_line_that_is_right(tmp_path):
    count = 0
    for what, given in wrong(tmp_path):
        X, columns, errors = given, None, []
        while len(errors) < 3:
            try:
                fitted = RGALS(K=2, n_iter=1, random_state=0, values="raw").fit(X, columns=columns)
                break
            except RgalsError as error:
                errors.append(error)
                X, columns = follow(X, error)
        assert errors, f"{what} is trained in silence"
        count += 1
        numbers = "integers" in what or "numbered" in what or "pairs" in what or "with values" in what
        users = NUMBERS["user"] if numbers else SIMPLE["user"]
        assert fitted.user_ids_.tolist() == sorted({*users}), what
        items = map(str, SIMPLE["item"]) if what == "an array of text" else SIMPLE["item"]
        rows, cols = fitted.seen_.nonzero()
        found = zip(fitted.user_ids_[rows].tolist(), fitted.item_ids_[cols].tolist(), strict=True)
        assert set(found) == set(zip(users, items, strict=True)), what
    assert count >= 30
