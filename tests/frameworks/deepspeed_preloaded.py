"""What the server that forks ranks has imported for DeepSpeed: it takes longer than most cases."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import deepspeed.runtime.zero.muon.original_muon  # noqa: F401, with torch's compiler

# It would have a compiler make an operation for sums between the processes of a node, for minutes;
# without it they go by gloo, as between nodes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
