"""A rank in Python in a ring with ranks in Rust: see mixed_ring.rs beside this file, which does the same."""

import math

import mlx.core as mx

POINTS = 100_000
PYTHON = 1  # what the ranks tell each other; Rust's is 0

group = mx.distributed.init(strict=True, backend="ring")
rank, size = group.rank(), group.size()

# The area under 4 / (1 + x²) for x from 0 to 1, at every size-th point, beginning with the rank-th.
x = (mx.arange(rank, POINTS, size).astype(mx.float32) + 0.5) / POINTS
mine = (4 / (1 + x * x)).sum() / POINTS
pi = mx.distributed.all_sum(mine).item()

languages = mx.distributed.all_gather(mx.array([PYTHON], dtype=mx.int32)).tolist()
ring = ", ".join("Python" if language == PYTHON else "Rust" for language in languages)
print(f"rank {rank} of {size} (Python): the ring is {ring}, and π is {pi:.4f}")
if not abs(pi - math.pi) < 1e-4:
    raise SystemExit(f"rank {rank}: {pi} is not π")
