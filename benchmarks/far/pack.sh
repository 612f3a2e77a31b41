#!/usr/bin/env bash
# Here: pack into FOLDER/1 to FOLDER/4 what a far machine lacks: packages for its Python 3.12, and data sets.
#
#     bash benchmarks/far/pack.sh FOLDER
set -euo pipefail
folder=$1
data=${COUNTERPOISE_DATA:-$HOME/.cache/counterpoise}
python=${PYTHON:-.venv/bin/python}

mkdir -p "$folder"/{1,2,3}/parts "$folder/4" "$folder/packages" "$folder/parts"
"$python" -m pip install --quiet --target "$folder/packages" --python-version 3.12 --only-binary=:all: --no-deps \
    -c constraints.txt typer rich pydantic pydantic-core safetensors tomli-w annotated-types typing-inspection \
    typing-extensions shellingham markdown-it-py mdurl pygments click annotated-doc
tar -cJf "$folder/1/packages.tar.xz" -C "$folder/packages" .
if [ -e "$data/cifar10.npz" ]; then
    "$python" benchmarks/far/parts.py split "$data/cifar10.npz" "$folder/parts"
    mv "$folder"/parts/0[0-4].xz "$folder/parts/rest.npz" "$folder/1/parts/"
    mv "$folder"/parts/{05,06,07,08,09,10}.xz "$folder/2/parts/"
    mv "$folder"/parts/11.xz "$folder/3/parts/"
fi
for set in 3/fashion-mnist 4/organamnist; do
    [ ! -e "$data/${set#*/}.npz" ] || cp "$data/${set#*/}.npz" "$folder/${set%/*}/"
done
for set in cifar10 fashion-mnist organamnist; do
    [ -e "$data/$set.npz" ] || echo "not packed, because $data does not have it: $set" >&2
done
rm -r "$folder/packages" "$folder/parts"
du -sm "$folder"/[1-4]
