"""Evolutions: the seeds' recipe and NSGA-II on DEAP, and CMA-ES for mixed spaces."""
