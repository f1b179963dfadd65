"""Parameters that are no usable numbers are refused by name; parameters that classes declare once."""

from __future__ import annotations

import inspect
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from rgals import RGALS
from rgals.runtime.checks import (
    RANGES,
    Declared,
    check_choice,
    check_int,
    check_real,
    parameter,
    plain_number,
)
from rgals.runtime.errors import ParameterError


def test_numbers_of_any_type_are_taken():
    for value in (0.5, Fraction(1, 2), np.float32(0.5), np.float64(0.5)):
        found = check_real("share", value, 0.0, 1.0)
        assert found == 0.5 and type(found) is float


@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), np.nan, np.inf, "0.5", None, True, Decimal("0.5"), 1j],
    ids=lambda value: str(value)[:9],
)
def test_what_is_no_finite_number_is_refused_by_name(value):
    with pytest.raises(ParameterError, match="share=.*give a finite number"):
        check_real("share", value)


@pytest.mark.parametrize("value", [np.True_, np.False_])
def test_booleans_of_numpy_are_those_of_python(value):
    assert check_choice("user_mean", value, ("auto", True, False)) is bool(value)
    RANGES["bool"]("signed", value)
    assert plain_number(value) is bool(value)
    with pytest.raises(ParameterError, match="choose one of 'auto', None"):
        check_choice("user_mean", value, ("auto", None))


@pytest.mark.parametrize("value", [1, 0, 1.0])
def test_numbers_are_no_truth_values(value):
    with pytest.raises(ParameterError, match="signed"):
        RANGES["bool"]("signed", value)


def test_a_span_of_time_is_no_number():
    span = np.timedelta64(3, "s")
    assert plain_number(span) is span
    with pytest.raises(ParameterError, match="n_iter"):
        RGALS(K=2, n_iter=span).fit(np.eye(4))


class Some(Declared):
    """Two parameters."""

    size: int = parameter(3, "int > 0", "How large.")
    start: float | str = parameter("here", ("here", "there", float))


class Fewer(Some):
    """One of them."""

    def __init__(self, size=2):
        super().__init__(size, 0.5)


@pytest.mark.parametrize(
    "kind, good, bad",
    [
        ("int > 0", (1, 9), (0, 1.0, True, np.True_, np.timedelta64(3, "s"), None)),
        ("int > 0, optional", (1, None), (0, "1")),
        ("int >= 0, optional", (0, None), (-1,)),
        ("float >= 0", (0, 0.0, 2), (-1e-9, "0", float("nan"), float("inf"))),
        ("float > 0", (1e-9, 2), (0, -1)),
        ("float in [0, 1]", (0, 1), (-0.1, 1.1)),
        ("float in (0, 1]", (1e-9, 1), (0, 1.1)),
        ("float in [0, 1)", (0, 0.999), (-0.1, 1)),
        ("float in (0, 1)", (1e-9, 1 - 1e-12), (0, 1, np.True_, np.timedelta64(0, "s"))),
        ("float", (-1e300, 0), ("x", None)),
    ],
)
def test_ranges_are_what_they_say(kind, good, bad):
    for value in good:
        RANGES[kind]("alpha", value)
    for value in bad:
        with pytest.raises(ParameterError, match="alpha="):
            RANGES[kind]("alpha", value)


def test_a_class_has_its_parameters_in_signature_docstring_and_check():
    assert (
        str(inspect.signature(Some)).replace("'", "").startswith("(size: int = 3, start: float | str = here)")
    )
    expected = """Two parameters.

    Parameters
    ----------
    size : int > 0, default 3
        How large.
    start : {"here", "there"} or float, default "here\""""
    assert inspect.getdoc(Some) == inspect.cleandoc(expected)
    for made in (Some(), Some(1, 0.5), Some(start="there")):
        made.validate()
    for made, name in (
        (Some(0), "size=0"),
        (Some(start="x"), "start='x'.*'there'"),
        (Some(start=True), "start=True"),
    ):
        with pytest.raises(ParameterError, match=name):
            made.validate()


def test_a_class_describes_what_its_constructor_takes():
    assert "size : int" in inspect.getdoc(Fewer) and "start" not in inspect.getdoc(Fewer)
    assert (Fewer().size, Fewer(4).size, Fewer().start) == (2, 4, 0.5)


def test_messages_show_numbers_of_numpy_as_plain_ones():
    with pytest.raises(ParameterError, match=r"^n=0 is not valid"):
        check_int("n", np.int64(0), 1)
