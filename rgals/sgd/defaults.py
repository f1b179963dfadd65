"""The rule for "auto" parameters of an `SGDRanker`: good settings for a matrix, K and loss."""

from typing import Any

import numpy as np

from rgals.losses import AUTO, Degrees, fitted
from rgals.sgd.epochs import BATCH
from rgals.sgd.losses import get_loss

#: Parameters that may be "auto".
AUTOMATIC = ("score", "temperature", "offset", "lr", "n_epochs", "batch_size", "n_negatives")
# Temperature of cosine scores: slope in reg of RG2's rule, and intercept.
_PER_REG, _LOWEST_TEMPERATURE = 0.4, 0.12
_USER_UPDATES = 500  # of a user in a fit of a sampled loss, which makes one for each positive and epoch
_EPOCHS_TO_STOP_EARLY = 10  # times the epochs of a fit without early stopping


def setting(model: Any, degrees: Degrees) -> dict[str, Any]:
    """Good settings for the loss and K of an `SGDRanker`; ``score`` as it is set, unless "auto"."""
    # With M users who have n interactions, and ``reg`` of the rule of RG2 for this K
    # (`rgals.losses.fitted.setting`)::
    #
    #                     over the catalogue      sampled                 lists
    #     batch_size      M / 100, 32 to 512      1024                    64
    #     n_epochs        20                      500 M / n, 8 to 20      20
    #     lr              0.1 (dot: 0.03)         0.05 (dot: 0.01)        0.05 (dot: 0.01)
    #                                             LLPAUC: 0.01
    #     n_negatives                             25 (UIB: 5)             10
    #     temperature     (0.12 + 0.4 reg) f^-0.25, f being 1, or N / 700 of 20 to 700 items (dot: 1);
    #                     sparsemax: 15 sqrt(n / M)
    #     offset          0; binary cross-entropy: log N, or log n_negatives of cosines
    loss = get_loss(model.loss)
    score = model.score
    if score == AUTO:
        # Cosines do not suit losses that compare scores with a number. Divided by a temperature they are
        # better for all others, binary cross-entropy and lists too, by up to 90 % on amazon-health-10core.
        # With one factor a cosine is a sign, which no gradient changes.
        score = "dot" if model.K == 1 else getattr(loss, "score", "cosine")
    users = max(degrees.filled[0], 1)
    # 20 epochs lose 1.5 to 6 % of the NDCG@10 after 40, at half the time. 100 negatives gave 4 % more on
    # amazon-beauty-10core and took 3.4 times as long. Learning rates from .03 to .2 are within 2 % of each
    # other after 40 epochs.
    found: dict[str, Any] = {"score": score, "offset": 0.0, "n_epochs": 20}
    if loss.kind == "full":
        found |= {"batch_size": int(np.clip(users // 100, 32, 512)), "lr": 0.1, "n_negatives": 25}
    elif loss.kind == "list":
        found |= {"batch_size": 64, "lr": 0.05, "n_negatives": 10}
    else:
        found |= {"batch_size": 1024, "lr": getattr(loss, "lr", 0.05)}
        found["n_negatives"] = getattr(loss, "n_negatives", 25)
        # A user is updated once for each positive: long rows need fewer epochs, down to 8.
        found["n_epochs"] = int(np.clip(_USER_UPDATES * users // max(degrees.nnz, 1), 8, 20))
    if model.early_stopping:
        found["n_epochs"] *= _EPOCHS_TO_STOP_EARLY
    # By the offset sampled BCE gained 4 to 23 % NDCG@10 with cosines on three sets, and lost 3 to 8 % with
    # dot products. BCE over the catalogue rose from below popularity to the level of softmax: 2 % above to
    # 12 % below it on five sets.
    if getattr(loss, "contrasts_noise", False) and (score == "cosine" or loss.kind == "full"):
        name = "batch_size" if model.sampler == "in_batch" else "n_negatives"
        drawn = found[name] if getattr(model, name) == AUTO else getattr(model, name) or BATCH[loss.kind]
        found["offset"] = float(np.log(len(degrees.item_count) if loss.kind == "full" else drawn))
    if score == "dot":
        return {**found, "temperature": 1.0, "lr": 0.03 if loss.kind == "full" else 0.01}
    if getattr(loss, "raw_scores", False):
        return {**found, "temperature": 1.0}
    if (warmth := getattr(loss, "warmth", None)) is not None:
        return {**found, "temperature": warmth * float(np.sqrt(max(degrees.nnz, 1) / users))}
    # For cosines the temperature regularises, as the ridge does for least squares: a set that wants a larger
    # reg wants a higher temperature. A search of ten fits on each of ten sets (K=64,
    # benchmarks/quality_results.jsonl) found .14 to .35 where reg is .09 to .46, and a line fitted without
    # the sets of one source predicts theirs within 26 %. Four sets of a grid (benchmarks/sgd_quality.py
    # --grid) are best at .17 to .25, where this rule gives .19 to .28. At K=256 there is one set, which is
    # best at .15 where the rule gives .24. With their 30, 100 and 300 most popular items alone, seven sets
    # are best at 2.2, 1.5 and 1.2 times the temperature.
    temperature = _LOWEST_TEMPERATURE + _PER_REG * fitted.setting(degrees, model.K).reg
    return {**found, "temperature": temperature * fitted.few_items(degrees) ** -0.25}
