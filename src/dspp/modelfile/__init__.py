"""Model files: one safe file per fitted model, with only numbers and text, so that reading it executes no code.

Tensors: `members.<k>.model.<name>` of the state dict of each member, `scale_X.mean` and the like in float64,
`conformal`, and of an ensemble `conformal_folds`, `guard.<name>`, `trees.<name>` and `warp.<name>`. The JSON header
holds the rest: the list `members`, their `weights`, and what they share. A later dspp may add fields that do not change
predictions, so unknown fields are ignored; a change of predictions needs a new VERSION, which an older dspp refuses.
Missing settings of a config get their defaults and unknown ones are refused; any other missing field is an error.

Whatever the bytes, `load` raises only ModelFileError and takes at most twice the size of the file plus 100 MB. Sizes
and numbers of members in the header are therefore not trusted: they are compared with the actual tensors, on a model
without memory (`skeleton.py`), before anything is allocated. Numbers must be finite and in their range (`ranges.py`)
and, if cheap, the kernel matrices are factorised: a model that cannot predict does not load. For large models the first
prediction raises NumericalError instead, as any prediction does that is not finite; it names the file. A hash detects
damage; it does not authenticate the author. Files of other versions of the format are refused.
"""

from dspp.modelfile.file import load, save
from dspp.modelfile.header import FORMAT, VERSION

__all__ = ["FORMAT", "VERSION", "load", "save"]
