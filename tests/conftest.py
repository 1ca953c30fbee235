"""What all tests share: one thread, so that runs side by side do not fight for cores and sums come out alike."""

import torch

torch.set_num_threads(1)
