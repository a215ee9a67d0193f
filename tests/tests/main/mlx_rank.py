"""A rank of unmodified MLX: does each case of a file and prints a checksum of the result, as mlx_rank.rs does.

Arguments: the file of cases, a JSON list of [operation, dtype, elements], and the seed of the data.
"""

import json
import sys
import zlib

import mlx.core as mx

MASK = (1 << 64) - 1
BLOCK = 65521


def scramble(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def block(seed, rank):
    start = (seed + (rank + 1) * 0xD1B54A32D192ED03) & MASK
    words = (scramble((start + (i + 1) * 0x9E3779B97F4A7C15) & MASK) for i in range(BLOCK // 8 + 1))
    return b"".join(word.to_bytes(8, "little") for word in words)[:BLOCK]


WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 4}


def data(block, case, operation, dtype, nbytes):
    """Bytes that repeat with a prime period, so no two segments are alike."""
    start = case * 7919 % BLOCK
    repeated = bytearray((block[start:] + block * (nbytes // BLOCK + 1))[:nbytes])
    if dtype == "bool":
        return repeated.translate(bytes(b & 1 for b in range(256)))
    if operation == "all_sum" and dtype in WIDTHS:
        # Without the highest bit of the exponent nothing becomes infinite or NaN.
        top, step = WIDTHS[dtype] - 1, WIDTHS[dtype]
        repeated[top::step] = repeated[top::step].translate(bytes(b & ~0x40 for b in range(256)))
    return repeated


def array(raw, dtype):
    if not raw:
        return mx.zeros((0,), dtype)
    return mx.array(memoryview(bytes(raw))).view(dtype)


def raw(x):
    mx.eval(x)
    return b"" if x.size == 0 else bytes(memoryview(x.view(mx.uint8)))


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
    own = block(seed, rank)
    for i, (operation, name, elements) in enumerate(cases):
        dtype = getattr(mx, name) if name != "bool" else mx.bool_
        x = array(data(own, i, operation, name, elements * dtype.size), dtype)
        if operation == "right":
            y = around(x, dtype, rank, (rank + 1) % size, (rank - 1) % size)
        elif operation == "left":
            y = around(x, dtype, rank, (rank - 1) % size, (rank + 1) % size)
        else:
            y = getattr(mx.distributed, operation)(x)
        print(f"@sum {i} {zlib.crc32(raw(y)):08x}", flush=True)
    print("@done", flush=True)


main()
