"""What holds for all tests."""

import os

# Before torch is imported anywhere: small tensors on several threads wait for each other, the more the busier the
# machine. Workers get the same from their agent.
os.environ.setdefault("OMP_NUM_THREADS", "1")
