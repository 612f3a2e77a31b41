#!/bin/sh
# Install the libraries that benchmarks/peers compares with into peers/, which git ignores:
#
#     sh benchmarks/install_peers.sh pfl                 for this Python and machine
#     sh benchmarks/install_peers.sh pfl 3.12 x86_64     to carry to a machine where nothing can be installed
#     sh benchmarks/install_peers.sh flower              for this Python and machine: some 500 MB, because of Ray
#
# PYTHON=.../python chooses the Python. pfl comes without its dependencies on data sets and trackers; scipy,
# which only its privacy accounting needs, is used if it is installed and mocked if not.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3)
here=$("$python" -c 'import platform, sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine())')
version=${2:-${here% *}}
machine=${3:-${here#* }}
pip="$python -m pip install --disable-pip-version-check --upgrade"

case ${1:-} in
pfl)
    $pip --no-deps --only-binary=:all: --python-version "$version" \
        --platform "manylinux2014_$machine" --platform "manylinux_2_27_$machine" --platform "manylinux_2_28_$machine" \
        --target "$root/peers/pfl-$version-$machine" \
        pfl==0.6.0 absl-py==2.5.1 attrs==26.1.0 dill==0.4.1 dm-tree==0.1.10 dp-accounting==0.5.0 mpmath==1.3.0 \
        multiprocess==0.70.18 packaging==25.0 prv-accountant==0.2.0
    ;;
flower)
    $pip -c "$root/constraints.txt" --target "$root/peers/flower-$version-$machine" flwr==1.41.0 ray==2.55.1
    ;;
*)
    [ -z "${1:-}" ] || echo "There is no peer $1." >&2
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
