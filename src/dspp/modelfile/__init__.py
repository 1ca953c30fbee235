"""Model files: one safe file per fitted model, with only numbers and text, so that reading it executes no code.

A `Fitted` is stored as its fields say (`codec`): numbers and text in the JSON header, arrays as tensors under dotted
names, such as `scale_X.mean` and `members.0.model.layers.0.q.mean`. A later dspp may add fields to `Fitted` that do not
change predictions, so unknown ones are ignored; a change of predictions needs a new VERSION, which an older dspp
refuses. Files of other versions of the format are refused.

Whatever the bytes, `load` raises only ModelFileError and takes at most twice the size of the file plus 100 MB. Sizes
and numbers of members in the header are therefore not trusted: they are compared with the actual tensors, on a model
without memory (`skeleton.py`), before anything is allocated. Numbers must be finite and in the range of their field
and, if cheap, the kernel matrices are factorised: a model that cannot predict does not load. For large models the first
prediction raises NumericalError instead, as any prediction does that is not finite; it names the file. A hash detects
damage; it does not authenticate the author.
"""

from dspp.modelfile.file import FORMAT, VERSION, load, save

__all__ = ["FORMAT", "VERSION", "load", "save"]
