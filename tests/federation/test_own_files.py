"""Folders of pictures and tables with named columns, in Python, by `load` and in TOML."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.cli import main
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.federation.bringing import pictures, tables
from counterpoise.federation.bringing.facts import facts_of
from counterpoise.federation.datasets import read

Image = pytest.importorskip("PIL.Image")
pd = pytest.importorskip("pandas")
IID = cp.iid(2)


def drawn(number, shape=(6, 5, 3)):
    return np.random.default_rng(number).integers(0, 256, shape).astype(np.uint8)


def put(path, number, shape=(6, 5, 3), mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(drawn(number, shape))
    (picture.convert(mode) if mode else picture).save(path)


@pytest.fixture
def animals(tmp_path):
    """Three dogs, two cats, and an empty folder for cows."""
    for number in range(5):
        put(tmp_path / "animals" / ("dog" if number < 3 else "cat") / f"{number}.png", number)
    (tmp_path / "animals" / "cow").mkdir()
    (tmp_path / "animals" / ".trash").mkdir()
    (tmp_path / "animals" / "dog" / "notes.txt").write_text("not a picture")
    return tmp_path / "animals"


# ---------------------------------------------------------------- pictures


def test_a_folder_of_pictures_has_a_class_for_each_folder(animals):
    federation = Federation.from_datasets(animals, partition=IID, heldout=0)
    assert (federation.class_names, federation.classes) == (("cat", "cow", "dog"), 3)
    assert federation.base.targets.tolist() == [0, 0, 2, 2, 2]
    wanted = np.stack([drawn(number).transpose(2, 0, 1) for number in (3, 4, 0, 1, 2)])
    assert np.array_equal(federation.base.inputs.numpy(), wanted)
    loaded = cp.load(str(animals), partition=IID, heldout=0)
    assert loaded.fingerprint == federation.fingerprint
    assert loaded.class_names == federation.class_names


def test_the_channels_of_a_very_low_picture_are_not_mistaken(tmp_path):
    put(tmp_path / "low" / "a" / "1.png", 1, (3, 7, 3))
    federation = Federation.from_datasets([tmp_path / "low"])
    assert np.array_equal(federation.base.inputs[0].numpy(), drawn(1, (3, 7, 3)).transpose(2, 0, 1))


@pytest.mark.parametrize(
    "scaling", ["unit", "centred", "standard", "per-picture", {"mean": [0.1, 0.2, 0.3], "deviation": [1, 0.5, 2]}]
)
def test_pictures_are_scaled_as_by_load(animals, scaling):
    settings = {"partition": IID, "scaling": scaling, "test": 0.4, "heldout": 0}
    made, loaded = Federation.from_datasets(animals, **settings), cp.load(animals, **settings)
    assert made.fingerprint == loaded.fingerprint
    assert len(made.test) == 2


def test_folders_of_clients_share_their_classes(animals, tmp_path):
    for number in range(2):
        put(tmp_path / "other" / "emu" / f"{number}.png", number)
    federation = Federation.from_datasets({"zoo": animals, "farm": str(tmp_path / "other")}, heldout=0)
    assert federation.class_names == ("cat", "cow", "dog", "emu")
    assert federation.base.targets.tolist() == [0, 0, 2, 2, 2, 3, 3]
    assert federation.client_names == ("zoo", "farm")


def test_train_and_test_folders_are_told_apart(animals, tmp_path):
    os.renames(animals, tmp_path / "set" / "train")
    put(tmp_path / "set" / "test" / "dog" / "9.png", 9)
    federation = Federation.from_datasets(tmp_path / "set", partition=IID)
    assert (len(federation.base), federation.test.targets.tolist()) == (5, [2])
    raw = read(str(tmp_path / "set"))
    assert (len(raw.x_train), len(raw.x_test), raw.class_names) == (5, 1, ("cat", "cow", "dog"))


HELD = {"north": ("cat", "cat", "dog"), "south": ("dog", "emu"), "10": ("cat", "cat")}


@pytest.fixture
def nested(tmp_path):
    """Pictures of three clients, each with a folder for each of its classes; everybody has an empty folder for cows."""
    for who, kinds in HELD.items():
        (tmp_path / "photos" / who / "cow").mkdir(parents=True)
        (tmp_path / "photos" / who / ".DS_Store").write_bytes(b"")
        for number, kind in enumerate(kinds):
            put(tmp_path / "photos" / who / kind / f"{number}.png", len(who) * 10 + number)
    put(tmp_path / "photos" / "north" / "cat" / ".previews" / "0.png", 1, (2, 2, 3))
    return tmp_path / "photos"


@pytest.mark.parametrize("columns", [None, {"targets": "inner"}, {"identity": "outer", "targets": "inner"}])
def test_outer_folders_of_pictures_are_clients(nested, columns):
    federation = Federation.from_datasets(nested, partition=cp.natural(), columns=columns, heldout=0)
    assert federation.client_names == ("10", "north", "south")
    assert federation.class_names == ("cat", "cow", "dog", "emu")
    rows = [federation.train.rows(torch.tensor([i]))[0].sort().values for i in range(3)]
    assert [federation.base.targets[row].tolist() for row in rows] == [[0, 0], [0, 0, 2], [2, 3]]
    assert np.array_equal(federation.base.inputs[rows[2][1]].numpy(), drawn(51).transpose(2, 0, 1))
    each = Federation.from_datasets({name: nested / name for name in ("10", "north", "south")}, heldout=0)
    assert each.fingerprint == federation.fingerprint
    loaded = cp.load(nested, partition=cp.natural(), columns=columns, heldout=0)
    assert (loaded.fingerprint, loaded.client_names) == (federation.fingerprint, federation.client_names)


def test_it_is_never_a_guess_which_folders_are_the_classes(nested, tmp_path):
    for make in (
        lambda **more: Federation.from_datasets(nested, cache=tmp_path / "kept", **more),
        lambda **more: cp.load(nested, **more),
    ):
        make(partition=cp.natural())  # what is kept of it answers no other question
        with pytest.raises(
            CounterpoiseError, match=r"folders within folders.*partition=cp.natural\(\).*'inner'.*'outer'"
        ):
            make(partition=IID)
        assert make(partition=IID, columns={"targets": "inner"}).class_names == ("cat", "cow", "dog", "emu")
        assert make(partition=IID, columns={"targets": "outer"}).class_names == ("10", "north", "south")
        turned = make(partition=cp.natural(minimum=1), columns={"targets": "outer"}, heldout=0)
        assert turned.client_names == ("cat", "dog", "emu")
        for wrong in ({"identity": "hospital"}, {"inputs": "outer"}, {"targets": "inner", "identity": "inner"}):
            with pytest.raises(CounterpoiseError, match="folders are called outer and inner"):
                make(partition=cp.natural(), columns=wrong)
    with pytest.raises(CounterpoiseError, match=r"client 0: .* folders within folders"):
        Federation.from_datasets([nested])
    with pytest.raises(
        CounterpoiseError, match=r"put pictures into a folder for each client, photos/hospital/cat/1.png"
    ):
        Federation.from_datasets(nested / "north", partition=cp.natural())
    put(nested / "south" / "loose.png", 1)
    with pytest.raises(CounterpoiseError, match=r"south/loose.png lies in no folder of a class"):
        Federation.from_datasets(nested, partition=cp.natural())
    for part in ("train", "test"):
        put(tmp_path / "apart" / "north" / part / "cat" / "1.png", 1)
    with pytest.raises(
        CounterpoiseError, match=r"a training and a test part of its own. .* without a partition: \{p.name"
    ):
        Federation.from_datasets(tmp_path / "apart", partition=cp.natural())


def test_outer_folders_may_lie_in_train_and_test_folders(nested, tmp_path):
    os.renames(nested, tmp_path / "set" / "train")
    put(tmp_path / "set" / "test" / "west" / "dog" / "9.png", 9)
    federation = Federation.from_datasets(tmp_path / "set", partition=cp.natural())
    assert (federation.client_names, federation.test.targets.tolist()) == (("10", "north", "south"), [2])


def test_pictures_of_many_sizes_need_resize(animals):
    put(animals / "dog" / "large.png", 7, (12, 10, 3))
    with pytest.raises(
        CounterpoiseError,
        match=r"2 different sizes .height x width.: 5 of 6 x 5 pixels .*, 1 of 12 x 10 pixels .*large.png.*resize=",
    ):
        Federation.from_datasets(animals, partition=IID)
    federation = Federation.from_datasets(animals, partition=IID, resize=(4, 3), heldout=0)
    assert federation.shape == (3, 4, 3)
    wanted = np.asarray(Image.fromarray(drawn(7, (12, 10, 3))).resize((3, 4), Image.Resampling.BILINEAR))
    assert np.array_equal(federation.base.inputs[-1].numpy(), wanted.transpose(2, 0, 1))
    assert Federation.from_datasets(animals, partition=IID, resize=7).shape == (3, 7, 7)


def test_bytes_of_a_data_set_are_resized_as_pictures_are(animals):
    class Bytes(torch.utils.data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, number):
            return drawn(number, (6 + number, 5, 3)), 0

    federation = Federation.from_datasets([Bytes()], resize=(4, 3), heldout=0)
    wanted = np.asarray(Image.fromarray(drawn(2, (8, 5, 3))).resize((3, 4), Image.Resampling.BILINEAR))
    assert np.array_equal(federation.base.inputs[2].numpy(), wanted.transpose(2, 0, 1))
    grey = Federation.from_datasets([(drawn(0, (4, 6, 5)), [0, 1, 0, 1])], resize=3, heldout=0)
    assert grey.shape == (1, 3, 3)
    with pytest.raises(
        CounterpoiseError, match=r"is no picture, but an array of type float32 .*resize= is for pictures"
    ):
        Federation.from_datasets([(np.zeros((4, 6, 5), "f"), [0, 1, 0, 1])], resize=3)


def test_grey_pictures_stay_grey_unless_one_has_colours(tmp_path):
    for number in range(3):
        put(tmp_path / "grey" / "a" / f"{number}.png", number, (6, 5))
    federation = Federation.from_datasets(tmp_path / "grey", partition=IID, heldout=0)
    assert np.array_equal(federation.base.inputs[2, 0].numpy(), drawn(2, (6, 5)))
    assert federation.shape == (1, 6, 5)
    kinds = (("b.png", "P"), ("c.gif", "P"), ("d.png", "RGBA"), ("e.bmp", "RGB"), ("f.png", "1"), ("g.png", "LA"))
    for name, mode in kinds:
        put(tmp_path / "mixed" / "a" / name, 1, mode=mode)
    both = Federation.from_datasets([tmp_path / "grey", tmp_path / "mixed"], heldout=0)
    assert both.shape == (3, 6, 5)
    assert np.array_equal(both.base.inputs[2].numpy(), drawn(2, (6, 5))[None].repeat(3, 0))
    assert np.array_equal(both.base.inputs[6].numpy(), drawn(1).transpose(2, 0, 1))


def test_folders_above_the_clients_are_not_taken_for_clients(nested, caplog):
    with pytest.raises(CounterpoiseError, match=rf"lies in three folders.* give {nested}; otherwise"):
        Federation.from_datasets(nested.parent, partition=cp.natural())
    (nested / "west" / "cat").mkdir(parents=True)
    assert "west" not in Federation.from_datasets(nested, partition=cp.natural()).client_names
    assert "No pictures are in west, so there is no such client." in caplog.messages


@pytest.mark.parametrize("recipe", ["natural", cp.natural])
def test_a_recipe_that_is_not_called_is_told(nested, recipe):
    with pytest.raises(CounterpoiseError, match=r"a call such as cp.natural\(\) .*, not 'natural' alone"):
        Federation.from_datasets(nested, partition=recipe)


def test_what_is_odd_about_pictures_is_told(animals, caplog):
    def told(data, **settings):
        caplog.clear()
        Federation.from_datasets(data, **settings)
        return [record.getMessage() for record in caplog.records]

    (empty,) = told(animals, partition=IID)
    assert empty == "1 of 3 classes has no pictures (cow), but the model has an output for each."
    assert told(animals, partition=IID, class_names=["dog", "cow", "cat"]) == []
    put(animals / "cow" / "9.png", 9, (6, 5))
    for mode in ("RGBA", "LA"):
        put(animals / "cow" / f"{mode}.png", 9, mode=mode)
    (changed,) = told(animals, partition=IID)
    assert changed.startswith("Of 8 pictures, 2 are grey (")
    assert "cow/9.png for example) and become RGB; 2 have transparent pixels (" in changed
    for name in ("4.png.heic", "5", ".hidden", "Thumbs.db"):
        (animals / "cow" / name).write_bytes(b"")
    (left, _) = told(animals, partition=IID)
    assert left.startswith(
        f"2 files are left out ({animals / 'cow' / '4.png.heic'} for example): the names of pictures end"
    )
    for name in ("4.png.heic", "5"):
        (animals / "cow" / name).unlink()
    put(animals / "Dog" / "1.png", 1)
    put(animals / "d_og" / "1.png", 1)
    assert told(animals, partition=IID)[1:] == [
        f"'Dog' and {name!r} are two classes, whose names are almost the same. Should they be one?"
        for name in ("d_og", "dog")
    ]
    letters = Federation.from_arrays(np.zeros((4, 2), "f"), ["a", "A", "b", "B"], partition=IID)
    assert (letters.classes, len(caplog.records)) == (4, 3)


@pytest.mark.parametrize("test", ["dog", ".", ".."])
def test_a_test_set_that_a_client_has_too_is_told(animals, tmp_path, caplog, test):
    put(tmp_path / "other" / "dog" / "1.png", 1)
    data = {"zoo": animals, "farm": tmp_path / "other"}
    with pytest.raises(CounterpoiseError) if test != "." else contextlib.nullcontext():
        Federation.from_datasets(data, test=animals / test)
    assert (
        caplog.records[0]
        .getMessage()
        .endswith("is also data of client zoo, so models are tested on what they were trained on.")
    )
    caplog.clear()
    Federation.from_datasets({"zoo": animals}, test=tmp_path / "other")
    assert not any("also data of" in record.getMessage() for record in caplog.records)


def test_a_colour_picture_after_grey_ones_is_told():
    class Turning(torch.utils.data.Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, number):
            return Image.fromarray(drawn(0, (6, 5) if number < 20 else (6, 5, 3))), 0

    with pytest.raises(CounterpoiseError, match=r"sample 20 has colours, but earlier ones are grey.*convert\('RGB'\)"):
        Federation.from_datasets([Turning()])


def test_a_data_set_of_files_is_read_again_if_one_changes(animals):
    one = cp.load(str(animals), partition=IID)
    assert cp.load(str(animals), partition=IID).base.inputs.data_ptr() == one.base.inputs.data_ptr()
    before = facts_of([animals])
    put(animals / "dog" / "0.png", 77)
    os.utime(animals / "dog" / "0.png", ns=(0, 0))
    assert facts_of([animals]) != before
    assert cp.load(str(animals), partition=IID).fingerprint != one.fingerprint
    assert cp.load(str(animals), partition=IID, resize=3).shape == (3, 3, 3)


def test_pictures_that_cannot_be_had_are_told(animals, tmp_path, monkeypatch):
    def told(sentence, data, **settings):
        with pytest.raises(CounterpoiseError, match=sentence) as found:
            Federation.from_datasets(data, partition=IID, **settings)
        assert "\n" not in str(found.value)

    put(tmp_path / "loose" / "1.png", 1)
    told(
        r"lie side by side, 1.png for example. Put them into one folder for each class, .*cat/1.png", tmp_path / "loose"
    )
    (tmp_path / "empty").mkdir()
    told("holds neither arrays nor tables nor pictures", tmp_path / "empty")
    (tmp_path / "unfilled" / "cat").mkdir(parents=True)
    told("The data hold no samples", tmp_path / "unfilled")
    told(r"there is no file or folder 'mnist'. .* use cp.load\('mnist', partition=", "mnist")
    told("there is no file or folder", "x" * 5000)
    told(r"resize must be a whole number up to 10000 or a pair \(height, width\), not 0", animals, resize=0)
    told("resize must be", animals, resize=(3, 3, 3))
    put(tmp_path / "deep" / "a" / "1.tif", 1, (6, 5))
    Image.fromarray(np.full((6, 5), 4000, np.uint16)).save(tmp_path / "deep" / "a" / "1.tif")
    told("more than a byte per pixel", tmp_path / "deep")
    (animals / "cat" / "3.png").write_bytes((animals / "cat" / "3.png").read_bytes()[:60])
    told(r"cat.3.png cannot be read as a picture .*Replace or remove it", animals)
    (animals / "cat" / "3.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    )  # PIL would run Ghostscript
    told("cannot be read as a picture", animals)
    (animals / "cat" / "3.png").unlink()
    for path in (cut := sorted((animals / "dog").glob("*.png"))[:2]):
        path.write_bytes(path.read_bytes()[:-40])  # its head is whole
    told(rf"^2 of \d+ pictures cannot be read. {cut[0]} .*{cut[1].name} cannot be read as a picture", animals)
    for path in cut:
        path.unlink()
    monkeypatch.setattr(pictures, "_MOST_PIXELS", 29)
    told("it has 5 x 6 pixels, more than 29", animals)
    monkeypatch.setitem(sys.modules, "PIL", None)
    told("Reading pictures needs Pillow. Install it with: pip install pillow", animals)


def test_a_folder_of_too_many_files_is_a_mistake(animals, monkeypatch):
    monkeypatch.setattr("counterpoise.federation.bringing.facts._MOST_FILES", 2)
    with pytest.raises(CounterpoiseError, match="holds more than 2 files; is it the right folder"):
        Federation.from_datasets(animals, partition=IID)


# ---------------------------------------------------------------- tables

COLUMNS = {"inputs": ["age", "pulse"], "targets": "state", "identity": "town"}


@pytest.fixture
def patients():
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": draw.integers(1, 99, 12),
            "pulse": draw.normal(size=12),
            "smokes": [True, False, False] * 4,
            "town": ["south", "north"] * 6,
            "state": ["well", "ill", "ill"] * 4,
        }
    )


def write(frame, path):
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        frame.to_csv(
            path, index=False, sep="\t" if path.suffix == ".tsv" else ";" if path.stem == "semicolons" else ","
        )
    return path


@pytest.mark.parametrize("missing", ["", "pandas"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "semicolons.csv", "a.parquet", "frame"])
def test_a_table_is_the_same_however_it_comes(patients, tmp_path, name, missing, monkeypatch):
    data = patients if name == "frame" else write(patients, tmp_path / name)
    wanted = patients[["age", "pulse"]].to_numpy(np.float32)
    if missing:
        if name == "frame":
            return
        monkeypatch.setitem(sys.modules, missing, None)
    federation = Federation.from_datasets(data, partition=cp.natural(), columns=COLUMNS, heldout=0)
    assert np.array_equal(federation.base.inputs.numpy(), wanted)
    assert federation.base.targets.tolist() == [1, 0, 0] * 4
    assert (federation.class_names, federation.client_names) == (("ill", "well"), ("north", "south"))
    ids = torch.arange(2)
    rows = [sorted(row.tolist()) for row in federation.train.rows(ids)]
    assert rows == [list(range(1, 12, 2)), list(range(0, 12, 2))]


def test_a_csv_file_needs_no_pyarrow(patients, tmp_path):
    code = """
import sys
sys.modules["pyarrow"] = None
import counterpoise as cp
columns = {"inputs": ["age", "pulse"], "targets": "state", "identity": "town"}
federation = cp.Federation.from_datasets(sys.argv[1], partition=cp.natural(), columns=columns)
print(federation.class_names, federation.client_names, len(federation.base))
"""
    words = [sys.executable, "-c", code, str(write(patients, tmp_path / "a.csv"))]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "('ill', 'well') ('north', 'south') 12"


@pytest.mark.parametrize("missing", ["", "pandas"])
def test_all_columns_but_the_targets_are_inputs(patients, tmp_path, missing, monkeypatch):
    frame = patients.drop(columns=["town"]).rename(columns={"state": "label"})
    path = write(frame, tmp_path / "a.csv")
    wanted = frame[["age", "pulse", "smokes"]].astype(np.float32).to_numpy()
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    federation = Federation.from_datasets([path], heldout=0)
    assert np.allclose(federation.base.inputs.numpy(), wanted)
    numbers = Federation.from_datasets([path], columns={"targets": "smokes", "inputs": "age"})
    assert (numbers.classes, numbers.shape) == (2, (1,))
    assert Federation.from_datasets([path], columns={"targets": "pulse", "inputs": ["age"]}).classes is None


def test_tables_of_arrow_and_odd_types_of_pandas(patients):
    arrow = pytest.importorskip("pyarrow")
    odd = patients.assign(age=patients.age.astype("Int64"), state=patients.state.astype("category"))
    table = arrow.table(
        {
            "age": patients.age.tolist(),
            "pulse": patients.pulse.tolist(),
            "town": patients.town.tolist(),
            "state": arrow.array(patients.state.tolist()).dictionary_encode(),
        }
    )
    made = [Federation.from_datasets([one], columns=COLUMNS, heldout=0) for one in (patients, odd, table)]
    assert len({federation.fingerprint for federation in made}) == 1
    with pytest.raises(CounterpoiseError, match="the column age has no value in 1 of 12 rows, row 3 for example"):
        Federation.from_datasets([odd.assign(age=odd.age.where(odd.index != 2))], columns=COLUMNS)


def test_a_folder_with_train_and_test_tables(patients, tmp_path):
    write(patients, tmp_path / "train.csv")
    write(patients[:5], tmp_path / "test.csv")
    write(patients[:1], tmp_path / "other.csv")
    federation = cp.load(str(tmp_path), partition=cp.natural(), columns=COLUMNS)
    assert (len(federation.base), len(federation.test), federation.client_names) == (12, 5, ("north", "south"))


def test_arrays_in_files_may_be_a_clients(tmp_path):
    x, y = np.zeros((4, 2), "f"), np.array(["b", "a", "b", "b"])
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:1], y_test=y[:1])
    federation = Federation.from_datasets({"one": tmp_path / "a.npz"})
    assert (federation.class_names, federation.heldout.sizes(torch.tensor([0])).tolist()) == (("a", "b"), [1])
    np.savez(tmp_path / "b.npz", x=x, y=y[:3])
    with pytest.raises(CounterpoiseError, match="there are 4 inputs and 3 targets"):
        Federation.from_datasets([tmp_path / "b.npz"])


def test_tables_that_cannot_be_had_are_told(patients, tmp_path, monkeypatch):
    def told(sentence, data, **columns):
        with pytest.raises(CounterpoiseError, match=sentence) as found:
            Federation.from_datasets([data], columns=columns or None)
        assert "\n" not in str(found.value)

    path = write(patients, tmp_path / "a.csv")
    latin = tmp_path / "latin.csv"
    latin.write_bytes("town,state\nKöln,1\n".encode("latin-1"))
    told("latin.csv cannot be read as a table .it is not UTF-8 text.. Save it as UTF-8", latin, targets="state")
    told("which column of a.csv holds the targets. It has age, pulse, smokes, town, state", path)
    told("There is no column 'stat' in a.csv. Did you mean 'state'", path, targets="stat")
    told("There is no column 'ag' in a.csv. Did you mean 'age'", path, targets="state", inputs=["ag", "pulse"])
    told(r"the column town holds text. .* name the columns of numbers, columns=\{'inputs'", path, targets="state")
    told("has no column for the inputs, only label", pd.DataFrame({"label": [1, 2]}))
    several = pd.DataFrame({"age": [1, 2], "state": [0, 1], "drug": [1, 0]})
    told("the table has one column of targets. For several, give arrays", several, targets=["state", "drug"])
    told(
        "the column pulse has no value in 2 of 12 rows, row 4 for example",
        patients.assign(pulse=patients.pulse.where(~patients.index.isin([3, 7]))),
        **COLUMNS,
    )
    told(
        "the column state has no value in 1 of 12 rows",
        patients.assign(state=patients.state.where(patients.index != 3)),
        **COLUMNS,
    )
    told(
        "the column town has no value in 1 of 12 rows",
        patients.assign(town=patients.town.where(patients.index != 3)),
        **COLUMNS,
    )
    told(
        "the column state holds values such as .*; targets and identities are numbers or names",
        patients.assign(state=[{}] * 12),
        **COLUMNS,
    )
    told("the column state is of type datetime64", patients.assign(state=pd.date_range("2020", periods=12)), **COLUMNS)
    told("the column age holds values such as", patients.assign(age=pd.date_range("2020", periods=12)), **COLUMNS)
    told("the input of sample 0 holds NaN or infinity", patients.assign(age=1e300), **COLUMNS)
    told("The data hold no samples", patients[:0].astype(object), **COLUMNS)
    for name, content in (
        ("b.csv", b"\xff\xfe\x00"),
        ("c.csv", b""),
        ("d.parquet", b"PAR1"),
        ("e.csv", b"a,b\n1,2\n1,2,3,4\n"),
    ):
        (tmp_path / name).write_bytes(content)
        told(f"{name} cannot be read as a table", tmp_path / name)
    (tmp_path / "f.pkl").write_bytes(b"\x80")
    told(r"f.pkl is no data set. Give a .csv, .tsv, .parquet or .npz file", tmp_path / "f.pkl")
    os.mkfifo(tmp_path / "g.csv")
    told("g.csv is no data set", tmp_path / "g.csv")
    monkeypatch.setattr(tables, "machine_memory", lambda: 100)
    told("more than half of this machine's memory. Use a folder of .npy files", path)
    monkeypatch.setattr(tables, "machine_memory", lambda: 2 * path.stat().st_size)
    monkeypatch.undo()
    for name in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    told("Reading a.csv needs pandas or pyarrow. Install one of them", path, targets="state")
    (tmp_path / "h.parquet").write_bytes(b"PAR1")
    told("Reading h.parquet needs pandas or pyarrow", tmp_path / "h.parquet", targets="state")


def test_a_small_parquet_file_may_not_unpack_to_any_size(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"a": np.zeros(100_000), "label": np.zeros(100_000, int)}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    monkeypatch.setattr(tables, "machine_memory", lambda: 1_000_000)
    with pytest.raises(CounterpoiseError, match="holds 200,000 numbers, more than half of this machine's memory"):
        Federation.from_datasets([tmp_path / "a.parquet"])


# ---------------------------------------------------------------- by load, in TOML and on the command line


def test_own_files_in_toml(patients, animals, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def cli(*words):
        monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
        return capsys.readouterr().out

    write(patients, tmp_path / "patients.csv")
    rest = '\n[model]\nname = "linear"\n[method]\nname = "fedavg"\n'
    (tmp_path / "table.toml").write_text(
        'rounds = 1\n[data]\nname = "patients.csv"\npartition = { name = "natural" }\n'
        'columns = { inputs = ["age", "pulse"], targets = "state", identity = "town" }' + rest
    )
    (tmp_path / "pictures.toml").write_text(
        'rounds = 1\n[data]\nname = "animals"\nresize = [4, 3]\nscaling = "centred"\n'
        'partition = { name = "iid", clients = 2 }' + rest
    )
    for who in ("north", "south"):
        for number in range(4):
            put(tmp_path / "photos" / who / "ab"[number % 2] / f"{number}.png", number)
    (tmp_path / "nested.toml").write_text(
        'rounds = 1\n[data]\nname = "photos"\npartition = { name = "natural" }\ntest = 0.25' + rest
    )
    for name in ("table", "pictures", "nested"):
        cli("run", f"{name}.toml", "--out", name)
        cli("resume", name, "--rounds", "2")
        assert json.loads((tmp_path / name / "federation.json").read_text())["class_names"]
        cli("run", f"{name}/config.toml", "--out", f"{name}-again")
    for name in ("table", "nested"):
        assert "Clients, from the left: north, south." in cli("partition", f"{name}.toml")
    assert "named a, b" in cli("data", "show", "photos", "--label", "inner")
    out = cli("data", "show", "animals")
    assert "5 training and 0 test samples of shape (3, 6, 5), uint8" in out
    assert "named cat, dog" in out


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("nowhere.csv", {}, "There is no data set 'nowhere.csv' and no such file or folder"),
        ("digits", {"resize": 3}, "resize is for pictures; the arrays of digits are taken as they are"),
        (
            "digits",
            {"columns": {"targets": "y"}},
            "columns is for tables, pictures and flwr: data sets; the arrays of digits",
        ),
    ],
)
def test_settings_that_do_not_fit_a_data_set_are_told(name, settings, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        cp.load(name, partition=IID, **settings)


def test_a_path_that_is_not_there_is_told_with_what_lies_beside_it(animals, monkeypatch):
    monkeypatch.chdir(animals.parent)
    with pytest.raises(CounterpoiseError, match=r"no data set 'animal' and no such file or folder .* mean 'animals'\?"):
        cp.load("animal", partition=IID)
    with pytest.raises(CounterpoiseError, match=rf"mean '{animals}'\?"):
        cp.load(animals.parent / "animls", partition=IID)
    for name in ("visits.csv", ".visits.cvs"):
        (animals.parent / name).write_text("x,y\n1,0\n")
    with pytest.raises(CounterpoiseError, match=r"mean 'visits\.csv'\?"):  # nothing hidden, but another suffix
        cp.load("visits.cvs", partition=IID)
    for name in ("no/visits.csv", "no\0/visits.csv"):
        with pytest.raises(CounterpoiseError, match=r"There is no data set .* and no such file or folder"):
            cp.load(name, partition=IID)


def test_one_hot_targets_of_a_file_are_told(tmp_path):
    np.savez(tmp_path / "hot.npz", x=np.zeros((4, 2), "f"), y=np.eye(4))
    with pytest.raises(CounterpoiseError, match=r"hot.npz: targets are one-hot rows of 4 numbers; .* y.argmax\(1\)"):
        cp.load(tmp_path / "hot.npz", partition=IID)


def test_columns_of_text_are_told_with_what_they_may_be(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("age,hospital,label\n1,north,0\n2,south,1\n")
    with pytest.raises(CounterpoiseError, match=r"who each row comes from, say columns=\{'identity': 'hospital'\};"):
        cp.load(table, partition=IID)
    table.write_text("file,label\na/1.JPG,0\na/2.JPG,1\n")
    with pytest.raises(CounterpoiseError, match=r"the column file names pictures, 'a/1.JPG' .* for each class, or"):
        cp.load(table, partition=IID)
