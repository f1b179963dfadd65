"""ALS for top-K recommendation from implicit feedback."""
