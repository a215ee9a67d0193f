#!/bin/sh
# rdma-vm-link: what can be done to the links of the devices rxe0, rxe1 … (run it without arguments for help).
# Each device rxeN sits on r0, r1 …, one end of a virtual cable; the other end, pN, is in a bridge that joins all.
set -e
devices() { cd /sys/class/net && ls -d r[0-9]*; }
every() { if [ -n "$1" ]; then echo "r$1"; else devices; fi; }
case "${1:-}" in
cut) ip link set "p$2" down ;;
join) ip link set "p$2" up ;;
loss)
    for device in $(every "${3:-}"); do
        # `replace` would keep the statistics' history and needs a delete for none at all: begin afresh.
        tc qdisc del dev "$device" root 2>/dev/null || true
        [ "$2" = 0 ] || tc qdisc add dev "$device" root netem loss "$2%"
    done
    ;;
reset)
    for device in $(devices); do ip link set "p${device#r}" up; done
    "$0" loss "${2:-0}"
    ;;
*)
    echo "usage: rdma-vm-link cut N | join N      pull or plug in the cable of rxeN
       rdma-vm-link loss PERCENT [N]    lose that share of what rxeN (or every device) sends
       rdma-vm-link reset [PERCENT]     all cables in, the same loss everywhere" >&2
    exit 2
    ;;
esac
