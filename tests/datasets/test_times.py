"""Dates in their usual forms, from files, frames and as cuts of `temporal_split`."""

from __future__ import annotations

import datetime as dt
import warnings
from email.utils import format_datetime

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from rgals import RGALS
from rgals.datasets import read_interactions
from rgals.datasets.times import moments
from rgals.model_selection import temporal_split
from rgals.runtime.errors import FileFormatError, InputError, ParameterError

UTC = dt.UTC
ZONE = dt.timezone(dt.timedelta(hours=5, minutes=30))


def ns(*when, zone=UTC):
    """Nanoseconds since 1970, by Python's datetime."""
    since = dt.datetime(*when, tzinfo=zone) - dt.datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


DAY, NOON = ns(2024, 1, 31), ns(2024, 1, 31, 12, 5, 9)
FORMS = [
    ("2024-01-31", DAY),
    ("2024/01/31", DAY),
    ("2024.1.31", DAY),
    ("31.01.2024", DAY),
    ("31/01/2024", DAY),
    ("01/31/2024", DAY),
    ("1-31-2024", DAY),
    ("01 31, 2024", DAY),
    ("Jan 31, 2024", DAY),
    ("January 31 2024", DAY),
    ("31 Jan 2024", DAY),
    ("31-JAN-2024", DAY),
    ("Wed, 31 Jan 2024", DAY),
    ("2024-01-31T12:05:09", NOON),
    ("2024-01-31 12:05:09", NOON),
    ("2024-01-31T12:05:09Z", NOON),
    ("2024-01-31 12:05:09 UTC", NOON),
    ("2024-01-31T12:05", NOON - 9 * 10**9),
    ("2024-01-31T12:05:09.25", NOON + 25 * 10**7),
    ("2024-01-31T12:05:09,123456789Z", NOON + 123456789),
    ("2024-01-31T12:05:09+05:30", ns(2024, 1, 31, 12, 5, 9, zone=ZONE)),
    ("2024-01-31 12:05:09+0530", ns(2024, 1, 31, 12, 5, 9, zone=ZONE)),
    ("2024-01-31T12:05:09-08", ns(2024, 1, 31, 20, 5, 9)),
    ("31.01.2024 12:05:09", NOON),
    ("1/31/2024 12:05:09 PM", NOON),
    ("1/31/2024, 12:05:09 am", ns(2024, 1, 31, 0, 5, 9)),
    ("Jan 31, 2024, 1:05 p.m.", ns(2024, 1, 31, 13, 5)),
    ("Wed, 31 Jan 2024 12:05:09 +0530", ns(2024, 1, 31, 12, 5, 9, zone=ZONE)),
    ("Wed Jan 31 12:05:09 +0000 2024", NOON),
    ("1677-12-31", None),
    ("1969-12-31T23:59:59", -(10**9)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), [form for form in FORMS if form[1] is not None])
@pytest.mark.parametrize("engine", ["auto", "numpy", "python"])
def test_every_usual_form(tmp_path, text, wanted, engine):
    path = tmp_path / "x.tsv"
    path.write_text(f"user\titem\tdate\na\tx\t{text}\nb\tx\t{text}\n")
    assert read_interactions(path, engine=engine).timestamp.tolist() == [wanted] * 2
    assert moments([f" {text} "]).tolist() == [wanted]


def test_dates_of_two_centuries_agree_with_python(rng):
    days = [dt.date(1800, 1, 1) + dt.timedelta(days=int(k)) for k in rng.integers(0, 150_000, 300)]
    wanted = [ns(day.year, day.month, day.day) for day in days]
    for form in ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%B %d, %Y", "%Y-%m-%dT00:00:00+00:00"):
        assert moments([day.strftime(form) for day in days]).tolist() == wanted, form
    mails = [
        format_datetime(dt.datetime(2024, 1 + k % 12, 1 + k % 28, k % 24, tzinfo=ZONE)) for k in range(99)
    ]
    assert moments(mails).tolist() == [ns(2024, 1 + k % 12, 1 + k % 28, k % 24, zone=ZONE) for k in range(99)]


def test_other_dates_of_the_column_tell_the_day_from_the_month():
    assert moments(["01/02/2024", "31/01/2024"]).tolist() == [ns(2024, 2, 1), DAY]
    assert moments(["01/02/2024", "01/31/2024"]).tolist() == [ns(2024, 1, 2), DAY]
    assert moments(["05/05/2024"]).tolist() == [ns(2024, 5, 5)]


@pytest.mark.parametrize(
    ("dates", "words"),
    [
        (["01/02/2024", "03/04/2024"], "cannot be told apart; write 2024-01-31"),
        (["31/01/2024", "01/31/2024"], "some dates have the day first"),
        (["31/01/2024", "13/13/2024"], r"line 3 .*13/13/2024.*month must be in 1..12"),
        (["2024-01-31", "2024-02-30"], r"line 3 .*2024-02-30"),
        (["2024-01-31", "2024-13-01"], r"line 3 .*2024-13-01"),
        (["2024-01-31", "now"], r"line 3 .*'now'"),
        (["2024-01-31", "24:00"], r"line 3 .*'24:00'"),
        (["2024-01-31 25:00", "2024-01-31"], r"line 2 .*25:00"),
        (["2024-01-31 13:00 pm", "2024-01-31"], r"line 2 .*13:00 pm"),
        (["2024-01-31", "3000-01-01"], "line 3 .*1678 and 2262"),
        (["12", "2024-01-31"], r"line 3 .*2024-01-31"),
        (["31.01.24", "31.01.24"], r"line 2 .*31.01.24"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "numpy", "python"])
def test_what_is_no_date_is_refused_with_its_line(tmp_path, dates, words, engine):
    path = tmp_path / "x.tsv"
    path.write_text("user\titem\tdate\n" + "".join(f"u{k}\tx\t{date}\n" for k, date in enumerate(dates)))
    with pytest.raises(FileFormatError, match=words):
        read_interactions(path, engine=engine)


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_dates_in_frames(package):
    frames = pytest.importorskip(package)
    make = frames.table if package == "pyarrow" else frames.DataFrame
    naive = [dt.datetime(2024, 1, 31, 12, 5, 9), dt.datetime(2024, 1, 30)]
    aware = [when.replace(tzinfo=ZONE) for when in naive]
    days = [dt.date(2024, 1, 31), dt.date(2024, 1, 30)]
    texts = ["31.01.2024 12:05:09", "30.01.2024"]
    for column, zone in ((naive, UTC), (aware, ZONE), (days, UTC), (texts, UTC)):
        got = read_interactions(make({"user": [1, 2], "item": [1, 1], "time": column})).timestamp
        noon = (0, 0, 0) if column is days else (12, 5, 9)
        assert got.tolist() == [ns(2024, 1, 31, *noon, zone=zone), ns(2024, 1, 30, zone=zone)]


def test_dates_that_nanoseconds_cannot_hold_are_refused_in_frames():
    pd = pytest.importorskip("pandas")
    when = np.array(["2024-01-01", "3000-01-01"], "M8[s]")
    with pytest.raises(InputError, match="row 1: the timestamp 3000-01-01.* 1678 to 2262"):
        read_interactions(pd.DataFrame({"user": [1, 2], "item": [1, 2], "time": when}))


@pytest.mark.parametrize("unit", ["Y", "D", "h", "s", "us"])
@pytest.mark.parametrize("kind", [None, object])
def test_what_nanoseconds_cannot_hold_is_refused_and_never_wrapped(unit, kind):
    def read(*years):
        when = np.array([f"{year}-01-01" for year in years], f"M8[{unit}]")
        boxed = np.array([*when], object) if kind else when
        return read_interactions((["a"] * len(years), [*range(len(years))], None, boxed)).timestamp.tolist()

    assert read(1678, 2262) == [ns(1678, 1, 1), ns(2262, 1, 1)]
    for year in (1600, 2263, 3000, 9999):
        with pytest.raises(InputError, match=rf"row 1: the timestamp '?{year}.*1678 (to|and) 2262"):
            read(2024, year)
    for when in ("2262-04-12", "1677-09-20") if unit != "Y" else ():  # of years that others fit
        found = np.array(["2024-01-01", when], f"M8[{unit}]")
        found = np.array([*found], object) if kind else found
        with pytest.raises(InputError, match="row 1: the timestamp"):
            read_interactions((["a", "a"], [0, 1], None, found))
    last = np.array([2**63 - 1], f"M8[{unit}]")  # "for ever": in days, its seconds wrap to 1969
    with pytest.raises(InputError, match="row 0: the timestamp"):
        read_interactions((["a"], ["b"], None, np.array([*last], object) if kind else last))


# ------------------------------------------------------------------ cuts

CUTS = ["2024-06-01", "01.06.2024", dt.date(2024, 6, 1), dt.datetime(2024, 6, 1), np.datetime64("2024-06-01")]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_a_date_cuts_timestamps_in_any_unit(cut, unit):
    if isinstance(cut, str) and "." in cut:
        cut = "1.6.2024"
    at = ns(2024, 6, 1) // 10**9 * unit
    X = sp.csr_array(np.ones((1, 4)))
    train, test = temporal_split(X, cut, timestamp=[at - 1, at, at + 1, at - unit])
    assert train.toarray().tolist() == [[1, 0, 0, 1]] and test.toarray().tolist() == [[0, 1, 1, 0]]


def test_cuts_with_zones_stamps_and_several(rng):
    pd = pytest.importorskip("pandas")
    when = pd.Timestamp("2024-06-01", tz="America/New_York")
    hours = pd.date_range("2024-05-31", periods=72, freq="h")
    frame = pd.DataFrame({"user": np.arange(72) % 5, "item": np.arange(72) % 9, "time": hours})
    frame = frame.sample(frac=1, random_state=0).drop_duplicates(["user", "item"])
    for cut in (when, when.to_pydatetime(), when.isoformat(), "2024-06-01T04:00Z"):
        train, test = temporal_split(frame, cut)
        early = frame.time.dt.tz_localize("UTC") < when
        assert (train.nnz, test.nnz) == (early.sum(), (~early).sum())
    parts = temporal_split(frame, ["2024-06-01", pd.Timestamp("2024-06-02")])
    assert [part.nnz for part in parts] == frame.time.dt.day.map(
        {31: 0, 1: 1, 2: 2}
    ).value_counts().sort_index().tolist()


@pytest.mark.parametrize(
    ("cut", "times", "words"),
    [
        ("soon", [1, 2], "'soon' is no date"),
        ("2024-01-01", [1, 2], "no times since 1970; give the cut as a number"),
        (["2024-02-01", "2024-01-01"], [1.7e9, 1.8e9], "increase"),
        (["2024-02-01", 7], [1.7e9, 1.8e9], "unit of the timestamps"),
        (5, np.array(["2024-01-01", "2024-01-02"], "M8[s]"), "unit of the timestamps"),
        ("02/03/2024", [1.7e9, 1.8e9], "cannot be told apart"),
        (None, [1, 2], "give one time"),
    ],
)
def test_bad_cuts_are_named(cut, times, words):
    with pytest.raises(ParameterError, match=f"cut=.*{words}"):
        temporal_split(sp.csr_array(np.ones((1, 2))), cut, timestamp=times)
    with pytest.raises(InputError, match="no timestamps"):
        temporal_split(sp.csr_array(np.ones((1, 2))), cut)


@pytest.mark.parametrize(
    "text", ["2024-01-9", "2024-01-09 5:07", "2024-01-09, 05:07", "2024-01-09T05:07:00,25"]
)
def test_a_form_means_the_same_alone_and_beside_others(text):
    """A column of one form is read fast; what that does not know is no error for it."""
    alone, beside = moments([text]), moments([text, "9.1.2024", "13.1.2024"])
    assert alone[0] == beside[0] and str(np.datetime64(int(alone[0]), "ns")).startswith("2024-01-09T0")


def test_seconds_among_thousandths_are_warned_of(tmp_path):
    """What came last was whatever had the finer unit, in silence."""
    path = tmp_path / "events.csv"
    path.write_text("user,item,time\na,x,1700000000\na,y,0\nb,x,1700000001000\n")
    with pytest.warns(UserWarning, match="of 1700000000 and 1700000001000 are in different units") as told:
        read_interactions(path)
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="different units"):
        read_interactions((["a", "b"], ["x", "x"], None, [1.7e12, 1.7e15]))
    dates = ["1970-01-01T01:00", "2024-01-31"]  # of something that is not known
    fine = [[1, 1_700_000_000], [-1, 1_700_000_000_000], [0, 5], [0, 0], [400_000_000, 5_000_000_000], dates]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for times in fine:
            read_interactions((["a", "b"], ["x", "x"], None, times))


def test_periods_and_durations_are_said_to_be_no_points_in_time():
    """They were answered by an attribute that they lack."""
    days = pd.Series(pd.period_range("2024-01-31", periods=2, freq="D"))
    with pytest.raises(FileFormatError, match=r"a Period is no point in time; give \.dt\.to_timestamp\(\)"):
        read_interactions((["a", "b"], ["x", "y"], None, days))
    with pytest.raises(FileFormatError, match="a timedelta is no point in time"):
        read_interactions((["a"], ["x"], None, [dt.timedelta(hours=1)]))


@pytest.mark.parametrize("missing", [None, pd.NaT, np.datetime64("NaT", "s"), float("nan")])
@pytest.mark.parametrize("box", [list, pd.Series, np.array])
def test_times_that_hold_nothing_are_told_to_be_left_out(missing, box):
    """Surprise's ratings are (user, item, rating, None); what `fit` advised for them ended in a dead end."""
    records = [("a", "x", 5.0, missing), ("b", "y", 4.0, missing)]
    with pytest.raises(InputError, match=r"give rgals.datasets.read_interactions\(tuple\(zip\(\*X\)\)\)"):
        RGALS(K=2).fit(records)
    users, items, values, times = zip(*records, strict=True)
    columns = users, items, values, box(times)
    with pytest.raises(InputError, match="row 0: the timestamp is .*; timestamp=None reads no times"):
        read_interactions(columns)
    assert read_interactions(columns, timestamp=None).matrix.sum() == 9


@pytest.mark.parametrize("unit", ["ns", "us", "s", "D"])
@pytest.mark.parametrize("box", [np.asarray, pd.Series])
def test_columns_of_durations_are_refused_in_any_unit(unit, box):
    """Those in nanoseconds were taken as numbers."""
    with pytest.raises(InputError, match=r"row 0: the timestamp \d+ \w+ is a duration, no point in time"):
        read_interactions((["a"], ["x"], None, box(np.array([1], f"m8[{unit}]"))))


def test_one_day_beyond_the_twelfth_tells_which_number_is_the_month():
    assert moments(["12/13/2024", "01/02/2024"]).tolist() == [ns(2024, 12, 13), ns(2024, 1, 2)]
    assert moments(["13/12/2024", "01/02/2024"]).tolist() == [ns(2024, 12, 13), ns(2024, 2, 1)]


@pytest.mark.parametrize("hour", ["0:30 am", "0:30 pm", "13:30 am", "13:30 pm"])
def test_hours_of_a_clock_of_twelve_run_from_1_to_12(hour):
    halves = [ns(2024, 1, 31) + minutes * 60 * 10**9 for minutes in (30, 750, 810)]
    assert (
        moments([f"2024-01-31 {known}" for known in ("12:30 am", "12:30 pm", "1:30 pm")]).tolist() == halves
    )
    with pytest.raises(ValueError, match="is no hour"):
        moments([f"2024-01-31 {hour}"])
