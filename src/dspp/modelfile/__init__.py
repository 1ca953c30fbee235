"""One safe file for a fitted model: numbers and text, so that reading one runs nothing.

Tensors: `members.<k>.model.<name>` of the state dict of each member, `scale_X.mean` and the like in float64,
`conformal`. The header, JSON, holds the rest: the list `members`, their `weights`, and what they share. A later dspp
may add fields that do not change a prediction, so unknown ones are ignored; whatever does change one takes a new
VERSION, which an older dspp refuses. Settings that a config leaves out have their defaults, and those that it should
not have are refused; any other field that is missing is an error.

Whatever the bytes, `load` raises nothing but ModelFileError and takes no more than twice the size of the file and
100 MB. So no size and no number of members in the header is believed: all are compared with the tensors that are there,
on a model without memory (`skeleton.py`), before anything is made. Numbers are finite, scales positive and, where that
is cheap, the kernel matrices are factorised: what cannot predict does not load. Large models are left to their first
prediction, which raises NumericalError. A hash tells damage from what was saved; it does not tell who saved it.
"""

from dspp.modelfile.file import load, save
from dspp.modelfile.header import FORMAT, VERSION

__all__ = ["FORMAT", "VERSION", "load", "save"]
