"""Searches in forms that are more than a text: files and stores of other tools."""
