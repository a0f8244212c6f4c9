"""Searches in a notebook: data frames and figures."""
