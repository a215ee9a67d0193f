#!/bin/busybox sh
# The first process of the guest (see rdma_vm.rs): loads the modules, moves onto the host's file system with a scratch
# layer above it, and runs there the script that comes through the virtio port. Whatever fails ends the machine.
/bin/busybox --install -s /bin
step=start
trap 'echo "init: failed at: $step"; poweroff -f' EXIT
set -e
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do
    step="loading $module"
    insmod "/modules/$module"
done
step="mounting the host's file system over 9p"
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose host /host
step="laying the scratch layer over it"
mount -t tmpfs tmpfs /scratch
mkdir /scratch/upper /scratch/work
mount -t overlay -o lowerdir=/host,upperdir=/scratch/upper,workdir=/scratch/work overlay /root
for folder in proc sys dev; do mount --move /$folder /root/$folder; done
mkdir -p /root/dev/shm /root/dev/pts /root/run /root/tmp
mount -t tmpfs -o mode=1777 tmpfs /root/dev/shm
mount -t devpts devpts /root/dev/pts
ln -s /proc/self/fd /root/dev/fd
step="waiting for the virtio port"
for _ in $(seq 100); do [ -e /root/dev/vport0p1 ] && break; sleep 0.1; done
exec 3<>/root/dev/vport0p1
step="reading the script"
length=$(sed 's/.*rdma_vm.script=\([0-9]*\).*/\1/' /root/proc/cmdline)
mkdir -p /root/run/rdma-vm
head -c "$length" <&3 >/root/run/rdma-vm/script
step="running the script"
chroot /root /bin/sh /run/rdma-vm/script
