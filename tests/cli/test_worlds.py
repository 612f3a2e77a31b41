"""`counterpoise data` and `counterpoise partition`: what a person sees, and the files they write."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.cli import main
from counterpoise.cli.pictures import ascii_picture, grid, png, shades
from counterpoise.federation import DATASETS
from counterpoise.federation.overview import holdings, label_counts, overview


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "data"))

    def refuse(*words, **more):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", refuse)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


def put(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    x = np.random.default_rng(0).integers(0, 256, (60, 28, 28, 3), dtype=np.uint8)
    np.savez(folder / f"{name}.npz", x_train=x, y_train=np.arange(60) % 3, x_test=x[:5], y_test=np.arange(5) % 3)


def decoded(raw: bytes) -> np.ndarray:
    """A PNG of eight bits, three channels and no filter, by hand."""
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(raw):
        (length,) = struct.unpack(">I", raw[place : place + 4])
        kind, body = raw[place + 4 : place + 8], raw[place + 8 : place + 8 + length]
        assert struct.unpack(">I", raw[place + 8 + length : place + 12 + length]) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        place += 12 + length
    width, height, *kind = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert kind == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


# ---------------------------------------------------------------- pictures


def test_a_png_holds_its_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(decoded(png(pixels)), pixels)


def test_a_grid_has_its_pictures_in_rows():
    pictures = np.arange(3 * 1 * 2 * 2, dtype=np.uint8).reshape(3, 1, 2, 2)
    sheet = grid(pictures, 2, gap=1)
    assert sheet.shape == (5, 5, 3)
    assert np.array_equal(sheet[:2, 3:, 0], pictures[1, 0])
    assert np.array_equal(sheet[3:, :2, 2], pictures[2, 0])
    assert (sheet[2] == 255).all()
    coloured = np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2)
    assert np.array_equal(grid(coloured, 1), coloured[0].transpose(1, 2, 0))


def test_shades_show_whatever_is_not_nothing():
    assert shades(np.array([0, 0.001, 0.3, 0.6, 1.0])) == " ░▒▓█"
    assert ascii_picture(np.array([[[0, 255]] * 2]), 4) == ["  @@", "  @@"]


# ---------------------------------------------------------------- data


def test_data_list_says_what_is_here(cli, tmp_path):
    put(tmp_path / "data", "bloodmnist")
    code, out, err = cli("data", "list")
    assert (code, err) == (0, "")
    assert "bloodmnist  here" in out
    assert "stl10  not here" in out
    assert "digits  needs no files" in out
    lines = [line for line in out.splitlines() if "Local data folder" not in line]
    assert max(map(len, lines)) <= 80
    listed = json.loads(cli("data", "list", "--json")[1])
    assert [row["name"] for row in listed] == list(DATASETS)
    assert {row["name"] for row in listed if row["here"]} == {"digits", "synthetic", "bloodmnist"}
    assert all(row["licence"] for row in listed)


def test_data_where_names_the_folder_and_what_belongs_there(cli, tmp_path):
    folder = tmp_path / "data"
    assert cli("data", "where")[1] == f"{folder}\n"
    put(folder, "mnist")
    assert cli("data", "where", "mnist")[1] == f"{folder / 'mnist.npz'}\n"
    out = cli("data", "where", "cifar10")[1]
    assert f"{folder / 'cifar10' / 'cifar-10-binary.tar.gz'}  from https://www.cs.toronto.edu/" in out
    assert cli("data", "where", "digits")[1] == "It needs no files.\n"


def test_data_get_brings_what_it_can_and_tells_the_rest(cli, tmp_path):
    put(tmp_path / "data", "mnist")
    code, out, err = cli("data", "get", "digits", "mnist", "stl10", "bloodmnist")
    assert code == 2
    assert f"mnist: {tmp_path / 'data' / 'mnist.npz'}" in out
    assert "stl10: stl10_binary.tar.gz is not in" in err
    assert "bloodmnist: bloodmnist.npz is not in" in err
    assert "Network is unreachable" in err
    assert "Traceback" not in err


def test_data_show_draws_samples(cli, tmp_path):
    put(tmp_path / "data", "bloodmnist")
    code, out, _ = cli("data", "show", "bloodmnist")
    assert code == 0
    assert "60 training and 5 test samples of shape (3, 28, 28), uint8" in out
    assert "3 labels, 20 to 20 training samples each" in out
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) > 9
    code, out, _ = cli("data", "show", "data/bloodmnist.npz", "--out", "samples.png")
    assert "written: samples.png" in out
    assert decoded(Path("samples.png").read_bytes()).shape == (3 * 30 - 2, 10 * 30 - 2, 3)
    assert cli("data", "show", "digits")[0] == 0


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        ("synthetic", None, "its samples are not pictures, which are bytes of shape (1 or 3, height, width)."),
        (np.zeros((4, 1, 8, 8), np.float32), np.arange(4), "its samples are not pictures"),
        (np.zeros((4, 8), np.uint8), np.arange(4), "its samples are not pictures"),
        (np.zeros((4, 8, 8), np.uint8), np.zeros(4, np.float32), "its targets are not class labels."),
    ],
)
def test_data_show_says_that_there_is_nothing_to_draw(cli, x, y, why):
    name = x
    if y is not None:
        name = "own.npz"
        np.savez(name, x_train=x, y_train=y)
    code, out, _ = cli("data", "show", name)
    assert code == 0
    assert f"Nothing is drawn: {why}" in out
    code, out, err = cli("data", "show", name, "--out", "z.png")
    assert code == 1
    assert f"Error: z.png is not written: {why}" in err
    assert not Path("z.png").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data", "get", "minst"], "There is no data set 'minst'. Did you mean 'mnist'?"),
        (["data", "where", "minst"], "There is no data set 'minst'"),
        (["data", "show", "minst"], "There is no data set 'minst'"),
        (["data", "show", "digits", "--out", "a.jpg"], "The picture is a PNG file; a.jpg does not end in .png"),
        (["data", "show", "digits", "--out", "no/a.png"], "no/a.png cannot be written: No such file or directory"),
        (["data", "show", "cifar100"], "cifar-100-binary.tar.gz is not in"),
        (["partition", "quickstart", "--out", "a.gif"], "The picture is an SVG file; a.gif does not end in .svg"),
        (["partition", "quickstart", "--set", "data.partition=lq"], "partition lq needs the option"),
        (["partition", "nothing"], "There is no preset 'nothing'"),
        (
            ["run", "quickstart", "--set", 'adversary={name = "claims", clients = [1, 2], fraction = 0.5}'],
            "not clients = [1, 2] and fraction = 0.5. Leave out all but one",
        ),
        (["run", "quickstart", "--set", "data.features=nois"], "There is no feature skew 'nois'"),
        (["run", "quickstart", "--set", "cohort=weigted"], "There is no availability 'weigted'"),
        (["run", "quickstart", "--set", "cohort.clients=3"], "cohort must be a name, or a table with a name"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(cli, words, sentence):
    code, _, err = cli(*words)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err


# ---------------------------------------------------------------- partition


def test_partition_draws_labels_by_client_in_eighty_columns(cli):
    code, out, err = cli("partition", "quickstart", "--set", "data.partition={name='lq', labels=2, clients=100}")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line[:2] for line in lines[:10]] == [f"{i} " for i in range(10)]
    columns = list(zip(*(line[2:].ljust(72) for line in lines[:10]), strict=True))
    assert {sum(cell != " " for cell in column) for column in columns} == {2}
    assert "(72 shown)" in out
    assert "2 labels per client" in out


def test_partition_writes_a_drawing_and_numbers(cli, tmp_path):
    cli("partition", "quickstart", "--seed", "3", "--out", "who.svg")
    root = ElementTree.parse(tmp_path / "who.svg").getroot()
    found = json.loads(cli("partition", "quickstart", "--seed", "3", "--json")[1])
    counts = np.array(found["labels_by_client"])
    cells = [e for e in root if e.get("fill-opacity")]
    assert len(cells) == np.count_nonzero(counts)
    federation = cp.load("digits", partition=cp.dirichlet(0.3, clients=20), probe=1, seed=3)
    assert np.array_equal(counts, label_counts(federation, torch.arange(20)))
    assert (found["clients"], found["samples"]) == (20, 1428)


def test_partition_says_how_large_a_test_set_of_every_clients_own_is(cli):
    words = ("partition", "quickstart", "--set", "data.features={name='rotation', degrees=20}")
    assert "The test set" not in cli(*words)[1]
    _, out, _ = cli(*words, "--set", "data.skewed_test=true")
    test = len(cp.load("digits", partition=cp.iid(clients=20)).test)
    assert f"The test set holds {test} samples as each client sees them, {20 * test} in all." in out


def test_partition_calls_clients_and_labels_by_their_names(cli, tmp_path):
    who, kinds = ["north", "south", "north"] * 4, ["cat", "dog\x1b[31m", "a very long kind of animal"] * 4
    np.savez("own.npz", x=np.zeros((12, 2), "f"), y=np.array(kinds), identity=np.array(who))
    words = ("partition", "quickstart", "--set", "data={name='own.npz', partition={name='natural'}}")
    code, out, err = cli(*words)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["a", "cat", "dog\\x1b[31m"]
    assert out.startswith("a very long kin… ")
    assert "Clients, from the left: north, south." in out
    found = json.loads(cli(*words, "--json")[1])
    assert (found["client_names"], found["class_names"][1]) == (["north", "south"], "cat")
    cli(*words, "--out", "who.svg")
    texts = [e.text for e in ElementTree.parse(tmp_path / "who.svg").getroot() if e.get("text-anchor") == "end"]
    assert texts[:2] == ["a very long kin…", "cat"]


def test_an_overview_by_hand():
    x, y = np.zeros((12, 1)), np.array([0] * 6 + [1] * 6)
    federation = cp.Federation.from_arrays(x, y, partition=[[0, 1, 2, 3], [6, 7, 8, 9], [4, 10]], heldout=0.5)
    counts = label_counts(federation, torch.arange(3))
    assert counts.tolist() == [[4, 0], [0, 4], [1, 1]]
    found = overview(federation, counts)
    assert found == (3, 10, 2, 2, 4.0, 4, pytest.approx(4 / 3), pytest.approx(1 / 3))


@pytest.mark.parametrize(
    "settings",
    [
        ["cohort={name='stragglers', of={name='weighted', clients=5}, rate=0.3}"],
        ["cohort=day-and-night", "cohort.clients=4"],
        ["data.partition={name='mixed', first={name='iid', clients=5}, second={name='lq', labels=2, clients=5}}"],
        ["data.features={name='rotation', degrees=30}", "data.scaling=standard", "data.samples=800"],
        ["data.partition={name='power-law', clients=10}"],
    ],
)
def test_every_new_setting_runs_from_toml_and_is_kept(cli, tmp_path, settings):
    words = [word for setting in settings for word in ("--set", setting)]
    code, out, err = cli("run", "quickstart", *words, "--rounds", "2", "--out", "a", "--json")
    assert (code, err) == (0, "")
    code, again, _ = cli("run", "a/config.toml", "--out", "b", "--json")
    assert json.loads(again)["accuracy"] == json.loads(out)["accuracy"]
    assert cli("resume", "a", "--rounds", "3")[0] == 0


def test_who_holds_what_is_small_however_many_clients_there_are():
    x, y = np.zeros((12, 1)), np.array([0] * 6 + [1] * 6)
    federation = cp.Federation.from_arrays(x, y, partition=[[0, 1, 2, 3], [6, 7, 8, 9], [4, 10]], heldout=0.5)
    assert holdings(federation) == {
        "clients": 3,
        "sizes": [2, 2, 1],
        "shown": [0, 1, 2],
        "labels": [[4, 0], [0, 4], [1, 1]],
    }
    assert holdings(federation, labelled=2, sized=2) == {"clients": 3, "shown": [0, 1], "labels": [[4, 0], [0, 4]]}
    named = replace(federation, client_names=("north", "south", "e" * 300), class_names=("cat", "dog"))
    assert holdings(named) == holdings(federation) | {
        "client_names": ["north", "south", "e" * 200],
        "class_names": ["cat", "dog"],
    }
    assert "client_names" not in holdings(named, sized=2)


def test_a_kept_run_says_who_holds_what(cli, tmp_path):
    assert cli("run", "quickstart", "--rounds", "1", "--out", "a")[0] == 0
    found = json.loads(Path("a", "federation.json").read_text())
    _, out, _ = cli("partition", "quickstart", "--json")
    assert found["labels"] == json.loads(out)["labels_by_client"]
    assert len(found["sizes"]) == found["clients"] == 20


def test_a_table_of_ones_own_is_shown_by_its_columns(cli, tmp_path):
    pytest.importorskip("pandas")
    (tmp_path / "patients.csv").write_text("age,pulse,state\n1,2,ok\n2,3,ill\n3,4,ok\n")
    code, _, err = cli("data", "show", "patients.csv")
    assert code == 2
    assert "which column of patients.csv holds the targets? It has age, pulse, state." in err
    assert "On the command line: --label COLUMN and --inputs COLUMN,COLUMN." in err
    code, out, _ = cli("data", "show", "patients.csv", "--label", "state")
    assert (code, out.splitlines()[0]) == (0, "patients.csv: 3 training and 0 test samples of shape (2,), float32")
    assert out.splitlines()[1:3] == ["2 labels, 1 to 2 training samples each", "named ill, ok"]
    assert "shape (1,)" in cli("data", "show", "patients.csv", "--label", "state", "--inputs", "age")[1]
    assert "There is no column 'stat'" in cli("data", "show", "patients.csv", "--label", "stat")[2]


def test_pictures_of_several_sizes_are_shown_in_one(cli, tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "animals" / "cat").mkdir(parents=True)
    for side in (4, 6):
        image.new("L", (side, side)).save(tmp_path / "animals" / "cat" / f"{side}.png")
    assert "On the command line: --resize PIXELS." in cli("data", "show", "animals")[2]
    assert "of shape (1, 5, 5), uint8" in cli("data", "show", "animals", "--resize", "5")[1]
