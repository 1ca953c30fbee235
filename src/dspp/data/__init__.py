"""Tables: check, scale, split, cut into batches; and simulated data whose true density is known."""

from dspp.data.batches import batch_indices, derive_seed
from dspp.data.checks import Table, check_width, check_X, check_Xy, check_y
from dspp.data.robot_arm import EchoNoise, RobotArm, RobotArmMotion, robot_arm, robot_arm_motion
from dspp.data.scaling import Standardizer
from dspp.data.split import split

__all__ = [
    "EchoNoise",
    "RobotArm",
    "RobotArmMotion",
    "Standardizer",
    "Table",
    "batch_indices",
    "check_X",
    "check_Xy",
    "check_width",
    "check_y",
    "derive_seed",
    "robot_arm",
    "robot_arm_motion",
    "split",
]
