#!/usr/bin/env bash
# A real Slurm on loopback, with the partitions of Anvil and Delta: controller, node daemons, munge. Nothing of it is seen outside of
# its own mount namespace, so the machine itself keeps having no Slurm.
#
#   tests/slurm.sh install              what Debian calls slurm-wlm, with apt-get, as root
#   tests/slurm.sh start DIR            everything below DIR; one node daemon a node, each with a host name of its own
#   tests/slurm.sh run DIR CMD…         a command that sees this Slurm
#   tests/slurm.sh fail DIR NODE        kill a node's daemon and its jobs, and tell the controller, which otherwise finds out in minutes
#   tests/slurm.sh revive DIR NODE      bring the node back
#   tests/slurm.sh stop DIR
#
# Needs root. MINJOBAGE and PORT (a block of ten) may be set.
set -euo pipefail
say() { printf 'slurm.sh: %s\n' "$*" >&2; }
COMMAND=${1:-}; DIR=$(realpath -m "${2:-.}"); PORT=${PORT:-16810}
NODES="a000 a001 g000 cn001 gpua001"
export PATH="$PATH:/usr/sbin"
unset SLURM_CONF

is_there() { command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null; }

install() {
    is_there && return 0
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { say "no slurmctld; on Debian, as root: apt-get install slurm-wlm munge"; return 1; }
    say "installing slurm-wlm and munge with apt-get, as root"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update || say "apt-get update failed; going on with the package lists that are here"
    apt-get -qq install -y --no-install-recommends slurm-wlm slurmctld slurmd slurm-client munge >/dev/null
}

configuration() {
    cat <<C
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.sock
CryptoType=crypto/munge
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool.%n
SlurmctldPidFile=$DIR/run/slurmctld.pid
SlurmdPidFile=$DIR/run/slurmd.%n.pid
SlurmctldLogFile=$DIR/log/slurmctld.log
SlurmdLogFile=$DIR/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=0
JobRequeue=0
MpiDefault=none
EnforcePartLimits=ALL
SwitchType=switch/none
MinJobAge=${MINJOBAGE:-300}
KillWait=5
SchedulerParameters=sched_min_interval=0,bf_interval=1,defer_batch=0
JobCompType=jobcomp/filetxt
JobCompLoc=$DIR/log/jobs.txt
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
NodeName=a000 NodeAddr=127.0.0.1 Port=$((PORT + 1)) Sockets=2 CoresPerSocket=64 RealMemory=257400
NodeName=a001 NodeAddr=127.0.0.1 Port=$((PORT + 2)) Sockets=2 CoresPerSocket=64 RealMemory=257400
NodeName=g000 NodeAddr=127.0.0.1 Port=$((PORT + 3)) Sockets=2 CoresPerSocket=64 RealMemory=515000 Gres=gpu:4
NodeName=cn001 NodeAddr=127.0.0.1 Port=$((PORT + 4)) Sockets=2 CoresPerSocket=64 RealMemory=245000 Features=scratch
NodeName=gpua001 NodeAddr=127.0.0.1 Port=$((PORT + 5)) Sockets=1 CoresPerSocket=64 RealMemory=245000 Gres=gpu:4 Features=scratch
PartitionName=shared Nodes=a000 Default=YES DefMemPerCPU=1896 MaxNodes=1 MaxTime=4-0
PartitionName=wholenode Nodes=a001 DefMemPerCPU=1896 OverSubscribe=EXCLUSIVE MaxTime=4-0
PartitionName=gpu Nodes=g000 MaxTime=2-0
PartitionName=cpu Nodes=cn001 DefMemPerCPU=1000 MaxTime=2-0
PartitionName=gpuA100x4 Nodes=gpua001 MaxTime=2-0
C
}

daemon() { # a node's daemon, whose jobs find their node's name as the host's
    mkdir -p "$DIR/spool.$1"
    unshare --uts bash -c "hostname $1; exec slurmd -N $1 -f /etc/slurm/slurm.conf"
}

start() {
    is_there || { say "no Slurm here: tests/slurm.sh install"; return 1; }
    mkdir -p "$DIR"/{etc,state,log,run,munge,dev}
    chmod 700 "$DIR/munge"
    dd if=/dev/urandom of="$DIR/munge/key" bs=128 count=1 status=none
    chmod 400 "$DIR/munge/key"
    configuration >"$DIR/etc/slurm.conf"
    for i in 0 1 2 3; do mknod "$DIR/dev/nvidia$i" c 1 3; done # a GPU as Slurm sees one: a device file
    printf 'NodeName=g000,gpua001 Name=gpu File=%s/dev/nvidia[0-3]\n' "$DIR" >"$DIR/etc/gres.conf"
    PORT=$PORT unshare --mount --propagation private "$0" inside "$DIR"
}

inside() { # in the namespace: clients drop SLURM_CONF for their inner steps, so the configuration must lie where Slurm looks
    mkdir -p /etc/slurm
    mount --bind "$DIR/etc" /etc/slurm
    munged --force --key-file="$DIR/munge/key" --socket="$DIR/run/munge.sock" --pid-file="$DIR/run/munged.pid" \
        --log-file="$DIR/log/munged.log" --seed-file="$DIR/munge/seed"
    slurmctld -f /etc/slurm/slurm.conf
    for node in $NODES; do daemon "$node"; done
    for _ in $(seq 300); do
        [ "$(sinfo -h -N -o '%T' | grep -c idle)" -ge 5 ] && return 0
        sleep 0.1
    done
    sinfo >&2
    return 1
}

enter() { nsenter --mount="/proc/$(cat "$DIR/run/slurmctld.pid")/ns/mnt" --wd="$PWD" "$@"; }

gone() { # end the process of a pid file, and wait for it
    local pid
    [ -s "$1" ] || return 0
    pid=$(cat "$1")
    kill "${2:--TERM}" "$pid" 2>/dev/null || return 0
    for _ in $(seq 100); do grep -q '^State:.[^Z]' "/proc/$pid/status" 2>/dev/null || return 0; sleep 0.1; done
}

end() { # a process and all below it
    local child
    for child in $(ps -o pid= --ppid "$1"); do end "$child"; done
    kill -KILL "$1" 2>/dev/null || true
}

fail() { # the daemon at once, then whatever its steps started: slurmstepd leads them all
    local node=$1 pid
    gone "$DIR/run/slurmd.$node.pid" -KILL
    for pid in $(ps -eo pid=,args= | awk '/slurmstepd: \[/ {print $1}'); do
        [ "$(nsenter --uts="/proc/$pid/ns/uts" hostname 2>/dev/null)" = "$node" ] || continue
        end "$pid"
    done
    enter scontrol update nodename="$node" state=down reason="it died"
}

stop() {
    [ -s "$DIR/run/slurmctld.pid" ] || return 0
    enter scancel --user="$(id -un)" 2>/dev/null || true
    for _ in $(seq 100); do [ -z "$(enter squeue -h 2>/dev/null)" ] && break; sleep 0.1; done
    for file in "$DIR"/run/slurmd.*.pid "$DIR/run/slurmctld.pid" "$DIR/run/munged.pid"; do gone "$file"; done
}

case $COMMAND in
install | start | inside | stop) "$COMMAND" ;;
run) exec nsenter --mount="/proc/$(cat "$DIR/run/slurmctld.pid")/ns/mnt" --wd="$PWD" "${@:3}" ;;
fail) fail "$3" ;;
revive)
    enter "$0" daemon "$DIR" "$3"
    for _ in $(seq 200); do # the controller takes a node back by itself when its daemon comes to it, unless it was called down before
        [ "$(enter sinfo -h -n "$3" -o '%T' | sort -u)" = idle ] && exit 0
        enter scontrol update nodename="$3" state=resume 2>/dev/null || true
        sleep 0.1
    done
    exit 1
    ;;
daemon) daemon "$3" ;;
*) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
