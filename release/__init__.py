"""Checks of the files of a release: what `make dist` runs on them."""
