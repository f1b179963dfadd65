"""
Softmax and its expansion
=========================

RG2 and RGx are second-order expansions of softmax cross-entropy at scores of 0. One user with one observed
item and 49 others. Left: the score of the observed item varies, the others are 0. Right: all scores are
shifted together, which changes neither softmax nor RGx with ``beta=1``, as drawn (0.9, the default, keeps a
tenth of the penalty), and is penalised by RG2. On the left RG2 and RGx lie on each other, and on softmax up
to scores of about 2.
"""

import matplotlib.pyplot as plt
import numpy as np

N = 50
score = np.linspace(-3, 5, 200)
softmax = np.log(np.exp(score) + N - 1) - score
first = np.log(N) - score + score / N  # to first order
rg2 = first + score**2 / (2 * N)
rgx = rg2 - score**2 / (2 * N**2)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(score, softmax, label="softmax", color="black")
left.plot(score, rg2, label="RG2", linestyle="--")
left.plot(score, rgx, label="RGx", linestyle=":")
left.set(xlabel="score of the known item", ylabel="loss", title="One known item")
left.legend(frameon=False)

shift = np.linspace(-3, 3, 200)
right.plot(shift, np.full_like(shift, np.log(N)), label="softmax", color="black")
right.plot(shift, np.log(N) + shift**2 / 2, label="RG2", linestyle="--")
right.plot(shift, np.log(N) + shift**2 / 2 - shift**2 / 2, label="RGx", linestyle=":")
right.set(xlabel="added to every score", title="All scores shifted")
right.legend(frameon=False)
