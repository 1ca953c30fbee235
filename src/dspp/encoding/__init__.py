"""Encoding of columns of any kind as numbers, and standardisation; both are learned on the training rows."""
