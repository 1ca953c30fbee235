"""Members: the models whose predictions are mixed, in kinds that are classes, one file each.

`plan` says how many there are, how large, how long and with which folds, `run` trains them, and `blend` learns from the
rows they held out how to mix them. A single model is one member that needs no mixing.
"""

from dspp.members.base import MEMBERS, Member
from dspp.members.dspp import Dspp
from dspp.members.gp import Gp
from dspp.members.trees import BoostedTrees, DsppWithTrees

__all__ = ["MEMBERS", "BoostedTrees", "Dspp", "DsppWithTrees", "Gp", "Member"]
