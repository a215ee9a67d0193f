"""One rank of `cargo xtask bench --against mlx`: MLX's ring, as the environment has it (MLX_HOSTFILE, MLX_RANK).

The arguments are the measurements, and the lines printed are those of collectives/examples/bench_rank/measure.rs.
"""

import resource
import sys
import time

import mlx.core as mx


ENOUGH = 0.3  # how long a measurement lasts, about, in seconds


def agree(usual, most):
    mine = round(min(max(ENOUGH / max(usual, 1e-9), 3), 1e4))
    return min(most, int(mx.distributed.all_min(mx.array(float(mine))).item()))


def times(call, calls, late):
    """The times of the calls, each begun late by so many seconds, in order of length."""
    times = []
    for _ in range(calls):
        if late:
            time.sleep(late)
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return sorted(times)


def usage():
    u = resource.getrusage(resource.RUSAGE_SELF)
    peak = u.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return u.ru_utime + u.ru_stime, peak


def calls_of(operation, size, rank, world):
    """A function that makes one call."""
    if operation in ("all_reduce", "wait"):
        x = [mx.zeros((size // 4,), mx.float32)]
        mx.eval(x)

        def call():
            # Nothing else holds the old array, so MLX reduces in its memory.
            x.append(mx.distributed.all_sum(x.pop()))
            mx.eval(x[0])

    elif operation == "all_gather":
        x = mx.zeros((size,), mx.uint8)
        mx.eval(x)

        def call():
            mx.eval(mx.distributed.all_gather(x))

    elif operation == "send_recv":
        peer = rank ^ 1
        x = mx.zeros((size,), mx.uint8)
        mx.eval(x)

        def send():
            mx.eval(mx.distributed.send(x, peer))

        def receive():
            mx.eval(mx.distributed.recv(x.shape, x.dtype, peer))

        def call():
            if peer >= world:
                return
            for step in (send, receive) if rank < peer else (receive, send):
                step()

    else:
        sys.exit(f"{operation}: no operation")
    return call


def main():
    plan = [argument.split(":") for argument in sys.argv[1:]]
    _, start_peak = usage()
    mx.set_default_device(mx.cpu)
    group = mx.distributed.init(strict=True, backend="ring")
    rank, world = group.rank(), group.size()
    for i, (operation, size, warm_ups, calls) in enumerate(plan):
        size, warm_ups = int(size), int(warm_ups)
        late = size / 1000 if operation == "wait" and rank + 1 == world else 0
        call = calls_of(operation, 8 if operation == "wait" else size, rank, world)
        calls = agree(times(call, warm_ups, 0)[warm_ups // 2], int(calls))
        before, _ = usage()
        median = times(call, calls, late)[calls // 2]
        cpu = (usage()[0] - before) / calls
        half = 2 if operation == "send_recv" else 1
        print(f"@row {rank} {i} {median * 1e6 / half:.3f} {cpu * 1e6 / half:.3f}", flush=True)
        # The arrays go before the next ones come, out of MLX's own store too.
        del call
        mx.clear_cache()
    cpu, peak = usage()
    print(f"@usage {rank} {cpu:.6f} {peak} {start_peak}", flush=True)


main()
