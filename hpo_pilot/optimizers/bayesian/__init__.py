"""Bayesian optimization: models of the values, and how a batch is chosen by them."""
