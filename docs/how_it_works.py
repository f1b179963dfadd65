"""Draws docs/how-it-works.png: the way of a row from the matrix to its factor.

python docs/how_it_works.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GIVEN, DECIDED, SOLVED = "#dde7f3", "#f6e3c5", "#dcefdc"
BOXES = {  # name: (x, y, width, text, colour)
    "matrix": (0.2, 4.6, 2.3, "interactions\n(CSR, users × items)", GIVEN),
    "loss": (0.2, 2.9, 2.3, "loss: coefficients\nscale, ridge, linear, m, l", GIVEN),
    "fixed": (0.2, 1.2, 2.3, "factors F\nof the fixed side", GIVEN),
    "plan": (3.2, 3.9, 2.5, "solvers/plan.py\nthe kind of every row", DECIDED),
    "basis": (3.2, 1.6, 2.5, "solvers/cpu.py\nF V, d, s", DECIDED),
    "alone": (6.5, 4.4, 2.2, "kernels/diagonal.py\nrows in their order", DECIDED),
    "loop": (6.5, 2.1, 2.2, "kernels/rows.py\nlongest rows first", DECIDED),
    "diagonal": (9.6, 4.4, 2.5, "diagonal: p = b / D\nno weight of its own", SOLVED),
    "cg": (9.6, 3.25, 2.5, "CG to rounding\nwell conditioned", SOLVED),
    "dual": (9.6, 2.1, 2.5, "dual: Cholesky n × n\nfew positives", SOLVED),
    "primal": (9.6, 0.95, 2.5, "primal: Cholesky K × K\nmany, or a negative m", SOLVED),
    "factor": (13.0, 2.65, 1.8, "factor p\nb · p and a code", GIVEN),
}
ARROWS = [
    ("matrix", "plan"),
    ("loss", "plan"),
    ("loss", "basis"),
    ("fixed", "basis"),
    ("plan", "alone"),
    ("plan", "loop"),
    ("basis", "alone"),
    ("basis", "loop"),
    ("alone", "diagonal"),
    ("loop", "cg"),
    ("loop", "dual"),
    ("loop", "primal"),
    ("diagonal", "factor"),
    ("cg", "factor"),
    ("dual", "factor"),
    ("primal", "factor"),
]
HEIGHT = 0.85


def main() -> None:
    """Draw the picture."""
    figure, axis = plt.subplots(figsize=(13.4, 4.8))
    for x, y, width, text, colour in BOXES.values():
        axis.add_patch(plt.Rectangle((x, y), width, HEIGHT, facecolor=colour, edgecolor="#555555"))
        axis.text(x + width / 2, y + HEIGHT / 2, text, ha="center", va="center", fontsize=9)
    for start, end in ARROWS:
        x, y, width, *_ = BOXES[start]
        to, at, *_ = BOXES[end]
        style = {"arrowstyle": "->", "color": "#555555", "shrinkA": 1, "shrinkB": 1}
        axis.annotate("", (to, at + HEIGHT / 2), (x + width, y + HEIGHT / 2), arrowprops=style)
    # A row on which CG gains too little is factorised, in whichever way the plan has for it.
    x, y, width, *_ = BOXES["cg"]
    right = x + width
    for name, bend in (("dual", -0.5), ("primal", -0.4)):
        style = {"arrowstyle": "->", "color": "#aa5555", "linestyle": "--"}
        style["connectionstyle"] = f"arc3,rad={bend}"
        end = BOXES[name][1] + HEIGHT * 0.75
        axis.annotate("", (right, end), (right, y + HEIGHT * 0.25), arrowprops=style)
    for name, often in (("plan", "once a fit"), ("basis", "every half-step")):
        x, y, width, *_ = BOXES[name]
        axis.text(x + width / 2, y - 0.2, often, ha="center", va="center", fontsize=8, color="#555555")
    axis.text(right + 0.55, 1.75, "slow: factorise", fontsize=8, color="#aa5555", va="center")
    axis.set(xlim=(0, 15), ylim=(0.7, 5.6))
    axis.axis("off")
    figure.savefig(Path(__file__).with_name("how-it-works.png"), dpi=80, bbox_inches="tight")


if __name__ == "__main__":
    main()
