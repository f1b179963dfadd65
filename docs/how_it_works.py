"""Draws docs/how-it-works.png: the way of a row from the matrix to its factor.

python docs/how_it_works.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BOXES = {  # name: (x, y, width, text, colour)
    "matrix": (0.2, 3.6, 2.3, "interactions\n(CSR, users × items)", "#dde7f3"),
    "loss": (0.2, 1.4, 2.3, "loss: coefficients\nscale, ridge, m, l", "#dde7f3"),
    "plan": (3.1, 2.5, 2.1, "solvers/plan.py\nthe kind of every row", "#f6e3c5"),
    "fixed": (3.1, 0.4, 2.1, "fixed side, rotated\nG = V diag(d) Vᵀ", "#dde7f3"),
    "loop": (5.9, 2.5, 2.1, "kernels/rows.py\nqueue, look-ahead", "#f6e3c5"),
    "diagonal": (8.8, 4.6, 3.0, "diagonal: p = b / D\nno weight of its own", "#dcefdc"),
    "cg": (8.8, 3.4, 3.0, "CG to rounding\nwell conditioned", "#dcefdc"),
    "dual": (8.8, 2.2, 3.0, "dual: Cholesky n × n\nfew positives", "#dcefdc"),
    "primal": (8.8, 1.0, 3.0, "primal: Cholesky K × K\nmany, or negative m", "#dcefdc"),
    "factor": (12.5, 2.5, 1.7, "factor p\nvalue, info", "#dde7f3"),
}
ARROWS = [
    ("matrix", "plan"),
    ("loss", "plan"),
    ("plan", "loop"),
    ("fixed", "loop"),
    ("plan", "diagonal"),
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
    figure, axis = plt.subplots(figsize=(13, 4.6))
    for x, y, width, text, colour in BOXES.values():
        axis.add_patch(plt.Rectangle((x, y), width, HEIGHT, facecolor=colour, edgecolor="#555555"))
        axis.text(x + width / 2, y + HEIGHT / 2, text, ha="center", va="center", fontsize=9)
    for start, end in ARROWS:
        x, y, width, *_ = BOXES[start]
        to, at, *_ = BOXES[end]
        style = {"arrowstyle": "->", "color": "#555555", "shrinkA": 1, "shrinkB": 1}
        axis.annotate("", (to, at + HEIGHT / 2), (x + width, y + HEIGHT / 2), arrowprops=style)
    x, y, width, *_ = BOXES["cg"]
    giving_up = {"arrowstyle": "->", "color": "#aa5555", "linestyle": "--"}
    axis.annotate("", (x + 2.6, BOXES["dual"][1] + HEIGHT), (x + 2.6, y), arrowprops=giving_up)
    axis.text(x + 2.65, y - 0.2, "too slow", fontsize=7, color="#aa5555", va="center")
    axis.set(xlim=(0, 14.4), ylim=(0.2, 5.6))
    axis.axis("off")
    figure.savefig(Path(__file__).with_name("how-it-works.png"), dpi=80, bbox_inches="tight")


if __name__ == "__main__":
    main()
