"""The names that users import: each is there, and one that goes warns for a release."""

from __future__ import annotations

import importlib

import pytest

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
