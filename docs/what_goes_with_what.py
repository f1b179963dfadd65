"""Writes docs/what-goes-with-what.md: what each loss and each solver can be asked for, and what is refused.

python docs/what_goes_with_what.py

The tables are stated here alone; `tests/solvers/test_contract_losses.py` tries every cell of them. A new
feature is a row of `LOSSES_BY_FEATURE` and a check there; a new loss is a column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).with_name("what-goes-with-what.md")


@dataclass(frozen=True)
class Table:
    """Rows that columns go with: a cell works as its row promises, or is refused for a reason."""

    columns: tuple[str, ...]
    rows: dict[str, str]  # how it is asked for: what is promised
    refused: dict[tuple[str, str], str] = field(default_factory=dict)  # (row, column): words of the error

    def __str__(self) -> str:
        """Markdown: three columns, so that a line is read at once on any screen."""
        lines = ["| asked for | refused with | what is promised |", "| --- | --- | --- |"]
        for row, promise in self.rows.items():
            without = ", ".join(code(column) for column in self.columns if (row, column) in self.refused)
            lines.append(f"| `{row}` | {without or 'none'} | {promise} |")
        return "\n".join(lines)


def code(name: str) -> str:
    """A parameter or call as code, a name as it is."""
    return f"`{name}`" if "(" in name or "=" in name else name


FORMS = (
    "RG2",
    "RGX",
    'RGX(form="gramian")',
    "WRMF",
    "IALS",
    "RG2(alpha=0)",
    "RGX(alpha=0)",
    "a loss of one's own",
)
_WEIGHTS = "the fit of these weights; fold-in, updates and files take the statistics of the fitted matrix"
_UPDATED = "minimises the objective of the matrix with these histories; everybody else stays"
LOSSES_BY_FEATURE = Table(
    FORMS,
    {
        'values="raw"': "values are the weights",
        'values="log1p"': _WEIGHTS,
        'values="binary"': _WEIGHTS,
        'values="bm25"': _WEIGHTS,
        "half_life=90.0": "the fit of the decayed weights; updates decay on to those of a refit",
        "fit(item_features=...)": "the objective with the prior never rises; the gradient is zero",
        "user_mean=True": "as with features",
        "readout_exponent=0.3": "items score scaled; users, objective, fold-in and updates are those without",
        "hard_negatives=1.0": "users of the fit equal a fold-in; equal bytes for any threads or interruption",
        'init="spectral"': "begins below the random start, with equal bytes for any threads",
        "transform": "the factors of the fit for its rows, to the bit; the minimiser for others",
        "partial_fit_users": _UPDATED,
        "partial_fit_items": _UPDATED,
        "partial_fit": "the users it touches minimise the objective of the merged matrix; others stay",
        "fit(checkpoint=...)": "an interrupted fit goes on and ends with the bytes of one that was not",
        'fit(open_matrix("data.rgals"))': "the bytes of the fit in memory, whatever the blocks that are read",
        'device="cuda"': "the objectives of the CPU, but for rounding (also on an NVIDIA H200)",
        'solver="pcg"': "the objective never rises; many steps solve rows exactly (for RGX, those of users)",
        'solver="svd"': "no fit ends lower",
    },
    {
        ('solver="svd"', form): "the closed form is that of RG2 or RGX with alpha=0"
        for form in FORMS
        if "alpha=0" not in form
    },
)
_NO_STEPS = "has no iterations"
SOLVERS_BY_FEATURE = Table(
    ('solver="exact"', 'solver="pcg"', 'solver="svd"', 'solver="dense"'),
    {
        "fit(checkpoint=...)": "as above",
        'fit(open_matrix("data.rgals"))': "as above",
        "fit(callbacks=...)": "called after every iteration",
        "fit(validation=...)": "the metric is in every entry of the history",
        "early_stopping=True": "the best iterate is kept",
        'device="cuda"': "as above",
        "half_life=90.0": "as above",
        "fit(item_features=...)": "as above",
        "user_mean=True": "as above",
        "readout_exponent=0.3": "as above",
        "hard_negatives=1.0": "as above",
        'init="spectral"': "as above",
        "reg_exponent=0.5": "`transform` of the rows of the fit gives their factors",
        'dtype="float64"': "the objective of the fitted model is the last of the history, to 1e-9",
    },
    {
        ("fit(checkpoint=...)", 'solver="svd"'): _NO_STEPS,
        ('fit(open_matrix("data.rgals"))', 'solver="svd"'): "needs all interactions in memory",
        ("fit(callbacks=...)", 'solver="svd"'): _NO_STEPS,
        ("fit(validation=...)", 'solver="svd"'): _NO_STEPS,
        ("early_stopping=True", 'solver="svd"'): _NO_STEPS,
        ("hard_negatives=1.0", 'solver="svd"'): _NO_STEPS,
        ("fit(item_features=...)", 'solver="svd"'): "knows no features",
        ("user_mean=True", 'solver="svd"'): "pulls users to zero",
        ('init="spectral"', 'solver="svd"'): "starts from nothing",
        ('device="cuda"', 'solver="dense"'): "device='cpu'",
        ('device="cuda"', 'solver="pcg"'): "solved exactly on a GPU",
        ("reg_exponent=0.5", 'solver="svd"'): "it needs reg_exponent=1",
    },
)


def page() -> str:
    """The whole page."""
    return f"""# What goes with what

What can be asked for goes with every loss and every solver, or is refused with a `ParameterError` before
anything is computed; `tests/solvers/test_contract_losses.py` tries each pair. Written by
`python docs/what_goes_with_what.py`.

## Losses

{", ".join(map(code, LOSSES_BY_FEATURE.columns))} (any subclass of `rgals.losses.Loss`):

{LOSSES_BY_FEATURE}

Refused: {"; ".join(sorted(set(LOSSES_BY_FEATURE.refused.values())))}. `values="auto"`, the default,
takes raw or binary ones by a rule: [values and counts](guides/values.md).

## Solvers

{", ".join(map(code, SOLVERS_BY_FEATURE.columns))}:

{SOLVERS_BY_FEATURE}

Refused: `solver="svd"` {_NO_STEPS} to watch, to write down or to start, knows no features, needs
`reg_exponent=1` and all interactions in memory; so do hard negatives and CUDA need them;
`solver="dense"`, the float64 reference, runs on the CPU, and so do fits with hard negatives.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
