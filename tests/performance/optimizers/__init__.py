"""The optimizers beside their peers: problems, settings, runners, stored results and tables."""
