"""A rank of unmodified MLX: does each case of a file and prints a checksum of the result, as mlx_rank.rs does.

Arguments: the file of cases, a JSON list of [number, operation, dtype, elements], and the seed of the data.
"""

import json
import sys
import zlib

import mlx.core as mx

MASK = (1 << 64) - 1
# The period of the data: a prime, so no two segments are alike.
BLOCK = 65521
# How many bytes there are to cut a case's data from.
MOST = (8 << 20) + 8 * BLOCK


def scramble(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def block(seed, rank):
    start = (seed + (rank + 1) * 0xD1B54A32D192ED03) & MASK
    words = (scramble((start + (i + 1) * 0x9E3779B97F4A7C15) & MASK) for i in range(BLOCK // 8 + 1))
    return b"".join(word.to_bytes(8, "little") for word in words)[:BLOCK]


# The width of a float, or of a complex number's part.
WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 4}


class Data:
    """A rank's data: one long run of bytes for each kind of case, from which every case is cut."""

    def __init__(self, seed, rank):
        self.block = block(seed, rank)
        self.runs = {}

    def run(self, kind):
        if kind not in self.runs:
            run = bytearray(self.block * (MOST // BLOCK + 1))
            if kind == "bool":
                run = run.translate(bytes(b & 1 for b in range(256)))
            elif kind:
                # Without the highest bit of the exponent nothing becomes infinite or NaN.
                run[kind - 1 :: kind] = run[kind - 1 :: kind].translate(bytes(b & ~0x40 for b in range(256)))
            self.runs[kind] = memoryview(run)
        return self.runs[kind]

    def of(self, number, operation, dtype, nbytes):
        kind = "bool" if dtype == "bool" else WIDTHS.get(dtype, 0) if operation == "all_sum" else 0
        start = number * 7919 % BLOCK * 8
        return self.run(kind)[start : start + nbytes]


def array(raw, dtype):
    return mx.array(raw).view(dtype) if len(raw) else mx.zeros((0,), dtype)


def checksum(x):
    mx.eval(x)
    return zlib.crc32(memoryview(x.view(mx.uint8))) if x.size else 0


def around(x, dtype, rank, to, source):
    def send():
        mx.eval(mx.distributed.send(x, to))

    def receive():
        y = mx.distributed.recv(x.shape, dtype, source)
        mx.eval(y)
        return y

    # Ranks that all send first would wait for each other.
    if rank % 2 == 0:
        send()
        return receive()
    y = receive()
    send()
    return y


def main():
    cases, seed = json.load(open(sys.argv[1])), int(sys.argv[2])
    mx.set_default_device(mx.cpu)
    try:
        group = mx.distributed.init(strict=True, backend="ring")
    except RuntimeError as e:
        print(f"@error {e}", flush=True)
        sys.exit(98 if "bind" in str(e).lower() else 1)
    rank, size = group.rank(), group.size()
    print("@joined", flush=True)
    data = Data(seed, rank)
    for number, operation, name, elements in cases:
        dtype = getattr(mx, name) if name != "bool" else mx.bool_
        x = array(data.of(number, operation, name, elements * dtype.size), dtype)
        if operation == "right":
            y = around(x, dtype, rank, (rank + 1) % size, (rank - 1) % size)
        elif operation == "left":
            y = around(x, dtype, rank, (rank - 1) % size, (rank + 1) % size)
        else:
            y = getattr(mx.distributed, operation)(x)
        print(f"@sum {number} {checksum(y):08x}", flush=True)
    print("@done", flush=True)


main()
