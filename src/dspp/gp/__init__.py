"""Sparse Gaussian processes: kernels, means, q(u), the conditional, the layer."""
