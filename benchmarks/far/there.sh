#!/usr/bin/env bash
# There: take in what was carried, begin the jobs or let them go on, and wait until none is left, SECONDS at most.
#
#     COUNTERPOISE_COMMIT=... OUT=... bash benchmarks/far/there.sh FOLDER/1 SECONDS
#
# The jobs are FOLDER/jobs.jsonl, and FOLDER/known holds what is known of them. However the call ends, the results so far
# are in $OUT/results.tar.xz.
set -euo pipefail
carried=${1-} seconds=${2-}
[[ $carried && $seconds =~ ^[0-9]+$ ]] || { echo "Say which folder was carried, and how many seconds to wait." >&2; exit 2; }
home=${FAR_HOME:-/tmp/far}
jobs=$(dirname "$carried")
: "${OUT:?must name the folder for results}" "${COUNTERPOISE_COMMIT:?must name the commit that runs}"
place() { cp "$1" "$2.unfinished" && mv "$2.unfinished" "$2"; }  # whoever reads it meanwhile sees the old one or the new
found=$home/back/results.tar.xz
bring() { [ ! "$found" -nt "$OUT/results.tar.xz" ] || place "$found" "$OUT/results.tar.xz"; }
trap bring EXIT
running() { ! flock --nonblock "$home/out/lock" true; }
command -v flock >/dev/null || { echo "The program flock (of util-linux) is needed." >&2; exit 2; }
[ -d "$carried" ] || { echo "There is no folder $carried. Was it carried?" >&2; exit 2; }

mkdir -p "$home"/{packages,data,parts,out/results,back}
before=$(cat "$home/commit" 2>/dev/null || true)
if [ "$before" != "$COUNTERPOISE_COMMIT" ]; then
    ! running || {
        echo "Jobs of the commit $before still run. Wait for them, or give the machine back." >&2
        exit 2
    }
    rm -rf "$home"/{commit,src,studies,benchmarks}
    cp -r src studies benchmarks "$home/"
    echo "$COUNTERPOISE_COMMIT" >"$home/commit"
fi
[ ! -e "$carried/packages.tar.xz" ] || running || tar -xJf "$carried/packages.tar.xz" -C "$home/packages"
for one in "$carried"/*.npz; do
    [ ! -e "$one" ] || [ -e "$home/data/${one##*/}" ] || place "$one" "$home/data/${one##*/}"
done
for one in "$carried"/parts/*; do
    [ ! -e "$one" ] || place "$one" "$home/parts/${one##*/}"
done
for one in "$jobs"/known/*.json; do  # what a job has found since must stay
    [ ! -e "$one" ] || [ -e "$home/out/results/${one##*/}" ] || place "$one" "$home/out/results/${one##*/}"
done
if [ -e "$jobs/jobs.jsonl" ]; then
    place "$jobs/jobs.jsonl" "$home/jobs.jsonl"
else
    echo "There is no $jobs/jobs.jsonl, so the jobs stay as they were." >&2
fi

export PYTHONPATH=$home/src:$home/packages COUNTERPOISE_DATA=$home/data TMPDIR=${TMPDIR:-/dev/shm}
if [ "$(find "$home/parts" -name '*.xz' | wc -l)" = 12 ] && [ ! -e "$home/data/cifar10.npz" ]; then
    python3 benchmarks/far/parts.py join "$home/parts" "$home/data/cifar10.npz" ||
        echo "CIFAR-10 could not be joined. Carry its parts again." >&2
fi
if ! running; then
    if [ -e "$home/runner.txt" ] && [ "$(tail -n 1 "$home/runner.txt")" != "no job is left" ]; then
        echo "The jobs of an earlier call were stopped. The last that was said: $(tail -n 20 "$home/runner.txt")" >&2
    fi
    ! command -v nvidia-cuda-mps-control >/dev/null || nvidia-cuda-mps-control -d >/dev/null 2>&1 || true
    (
        cd "$home"
        setsid nohup python3 benchmarks/far/side_by_side.py jobs.jsonl out --slots "${SLOTS:-14}" --back back \
            </dev/null >runner.txt 2>&1 &
        echo $! >runner
    )
    for _ in 1 2 3 4 5 6 7 8 9 10; do  # until it holds the lock
        running || ! kill -0 "$(cat "$home/runner")" 2>/dev/null || sleep 1
    done
fi
while [ "$SECONDS" -lt "$seconds" ] && running; do
    sleep 2
    bring || true
done
[ ! -e "$home/out/done.txt" ] || tail -n 60 "$home/out/done.txt"
cat "$home/runner.txt"  # its last line is "no job is left", unless it was stopped or still runs
! running || echo "still running: $(ls "$home/out/runs" | tr '\n' ' ')"
