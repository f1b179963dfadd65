"""The names that users import: each is there, and one that goes warns for a release."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
from conftest import ROOT

#: What 0.1 made public and no release since has removed, where it lies now.
PUBLIC = {
    "rgals": """
        Checkpoint CheckpointError FileFormatError ForkError IALS InputError InputTypeError
        InsufficientMemoryError MissingDependencyError ModelFileError NumericalError ParameterError
        PrecisionWarning RG2 RGALS RGALSCV RGX RgalsError ShapeError UnknownIdError ValuesWarning WRMF
        __version__ plots
    """,
    "rgals.losses": """
        Coefficients Degrees IALS LOSSES Loss RG2 RGX Side WRMF get_loss rule
    """,
    "rgals.scoring": """
        Written as_factors recommend_all topk topk_dense useful_jobs
    """,
    "rgals.metrics": """
        Comparison Judged Outranked auc average_precision bootstrap_interval capped_average_precision
        capped_recall compare coverage evaluate evaluate_sampled exposure gini hit_rate holm judge mrr
        ndcg novelty nrbp paired_test partial_auc precision rbp recall standard_error
    """,
    "rgals.model_selection": """
        Core EdgeWarning InteractionSplit PROTOCOLS Parts Protocol TuneResult UserFold UserSplit
        RGALSCV default_space k_core leave_last_out split_interactions temporal_split tune
    """,
    "rgals.datasets": """
        IdMap Interactions SyntheticInteractions available cache_folder fetch make_implicit
        prepare_paper read_interactions
    """,
    "rgals.sgd": """
        Adagrad Adam LOSSES LazyAdam OPTIMIZERS SGD SGDRanker
    """,
    "rgals.sgd.losses": """
        AATP Adversary AdvInfoNCE BCE BPR BSL Full FullBCE FullBPR FullBSL FullLambdaLoss
        FullLambdaRank LLPAUC LOSSES LambdaLoss LambdaRank List ListAP ListNDCG ListNRBP
        ListRR MSE PSL RG2 RGX RSAtK Rows SL SML Sampled SampledAATP SampledCCE
        SampledSoftmax SampledSoftmaxAtK SampledTalos SmoothIAtK Softmax SoftmaxAtK Sparsemax State
        Talos UIB get_loss
    """,
    "rgals.baselines": """
        EASE Popularity
    """,
    "rgals.compare": """
        Comparison DEFAULT METHODS Split compare prepare
    """,
    "rgals.cluster": """
        DaskRGALS
    """,
    "rgals.plots": """
        learning_curve popularity_bias spectrum sweep time_to_quality
    """,
    "rgals.model.export": """
        augment_items augment_queries export_factors export_index
    """,
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_stay(module):
    found = importlib.import_module(module)
    assert [name for name in PUBLIC[module].split() if not hasattr(found, name)] == []


#: Each line with `type: ignore` is a mistake of that kind: mypy reports it where it does not find one.
WRONG = """
# mypy: warn-unused-ignores
from rgals import RG2, RGALS, RGALSCV, HardNegatives
from rgals.baselines import EASE
from rgals.cluster import DaskRGALS
from rgals.compare import compare
from rgals.datasets import make_implicit
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions
from rgals.sgd import SGDRanker
from rgals.sgd.losses import BPR

data = make_implicit(20, 10)
train, test = split_interactions(data)
model = RGALS(K=2, loss=RG2(alpha=0.1), hard_negatives=HardNegatives(weight=1)).fit(train)
model.set_output(transform="default").set_fit_request(user_ids=True).set_params(loss__alpha=1)
figure: float = evaluate(model, train, test)["ndcg@10"] + evaluate(model, train, test).n_users
each, users = evaluate(model, train, test, per_user=True, n_jobs=1)
each["ndcg@10"].mean()
for matrix in split_interactions(data.matrix):
    matrix.toarray()

RGALS(k=2)  # type: ignore[call-arg]
RG2(alfa=1)  # type: ignore[call-arg]
BPR(gamma=1)  # type: ignore[call-arg]
EASE(K=2)  # type: ignore[call-arg]
HardNegatives(gamma=1)  # type: ignore[call-arg]
model.recomend(["a"])  # type: ignore[attr-defined]
RGALS.load("model.npz").user_factors  # type: ignore[attr-defined]
RGALSCV().fit(data).best_loss_  # type: ignore[attr-defined]
SGDRanker().fit(data).item_factors  # type: ignore[attr-defined]
DaskRGALS().fit(data).local  # type: ignore[attr-defined]
evaluate(model, train, test).users  # type: ignore[attr-defined]
compare({"a": data}).rows  # type: ignore[attr-defined]
"""


def test_type_checkers_find_wrong_names(tmp_path):
    pytest.importorskip("mypy")
    if not (cache := ROOT / ".mypy_cache").is_dir():
        pytest.skip("make lint has not filled the cache of mypy, without which this takes long")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", cache]
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(
        [*command, tmp_path / "wrong.py"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.stdout == "Success: no issues found in 1 source file\n", done.stdout + done.stderr
