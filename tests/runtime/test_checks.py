"""Parameters that are no usable numbers are refused by name."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from rgals.runtime.checks import check_real
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
