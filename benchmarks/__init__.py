"""Measurements against GPyTorch and against the paper."""
