#!/usr/bin/env bash
# There: take what was carried, begin the jobs or let them go on, and wait so many seconds or until no job is left.
#
#     COUNTERPOISE_COMMIT=... bash benchmarks/far/there.sh FOLDER/1 0
#
# Jobs are FOLDER/jobs.jsonl, what is known of them FOLDER/known. Results are in $OUT/results.tar.xz after every call.
set -euo pipefail
carried=$1 seconds=$2
home=${FAR_HOME:-/tmp/far}
jobs=$(dirname "$carried")
: "${OUT:?must name the folder for results}" "${COUNTERPOISE_COMMIT:?must name the commit that runs}"
[ -d "$carried" ] || { echo "There is no folder $carried. Was it carried?" >&2; exit 2; }

mkdir -p "$home"/{packages,data,parts,out/results,back}
[ -d "$home/src" ] || cp -r src studies benchmarks "$home/"
[ ! -e "$carried/packages.tar.xz" ] || tar -xJf "$carried/packages.tar.xz" -C "$home/packages"
[ ! -d "$carried/parts" ] || cp "$carried"/parts/* "$home/parts/"
for set in "$carried"/*.npz; do
    [ ! -e "$set" ] || cp "$set" "$home/data/"
done
for known in "$jobs"/known/*.json; do  # what a job has found since must stay
    [ ! -e "$known" ] || [ -e "$home/out/results/${known##*/}" ] || cp "$known" "$home/out/results/"
done
[ ! -e "$jobs/jobs.jsonl" ] || cp "$jobs/jobs.jsonl" "$home/jobs.jsonl"

export PYTHONPATH=$home/src:$home/packages COUNTERPOISE_DATA=$home/data TMPDIR=${TMPDIR:-/dev/shm}
if [ "$(find "$home/parts" -name '*.xz' | wc -l)" = 12 ] && [ ! -e "$home/data/cifar10.npz" ]; then
    python3 benchmarks/far/parts.py join "$home/parts" "$home/data/cifar10.npz"
fi
running() { [ -e "$home/runner" ] && kill -0 "$(cat "$home/runner")" 2>/dev/null; }
if ! running; then
    ! command -v nvidia-cuda-mps-control >/dev/null || nvidia-cuda-mps-control -d >/dev/null 2>&1 || true
    cd "$home"
    setsid nohup python3 benchmarks/far/side_by_side.py jobs.jsonl out --slots "${SLOTS:-14}" --back back \
        </dev/null >runner.txt 2>&1 &
    echo $! >runner
fi
bring() { [ ! -e "$home/back/results.tar.xz" ] || cp "$home/back/results.tar.xz" "$OUT/"; }
while [ "$SECONDS" -lt "$seconds" ] && running; do
    sleep 5
    bring
done
bring
cat "$home/runner.txt"
[ ! -e "$home/out/done.txt" ] || tail -n 60 "$home/out/done.txt"
running && echo "still running: $(ls "$home/out/runs" 2>/dev/null | tr '\n' ' ')" || echo "no job is left"
