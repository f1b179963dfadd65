"""What a fitted model can do, whoever fitted it: state, rankings, fold-in, explanations, files, exchange."""
