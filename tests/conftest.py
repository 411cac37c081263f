"""What holds for all tests."""

import os

from hypothesis import settings

# Before torch is imported anywhere: small tensors on several threads wait for each other, the more the busier the
# machine. Workers get the same from their agent.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("plait", deadline=None)  # no test depends on how fast the machine is
settings.load_profile("plait")
