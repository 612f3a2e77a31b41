"""Arrays that are kept on disk: found again if nothing changed, never half written, never in the way."""

from __future__ import annotations

import gc
import json
import logging
import os
import time

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.federation.bringing import cache, gathering, pictures

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("pandas")


@pytest.fixture
def animals(tmp_path):
    for number in range(6):
        path = tmp_path / "animals" / ("dog", "cat")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (6, 5, 3)).astype(np.uint8)).save(path)
    return tmp_path / "animals"


@pytest.fixture
def reads(monkeypatch):
    """The pictures that were read whole."""
    found = []
    was = pictures._open
    monkeypatch.setattr(pictures, "_open", lambda path, whole=True: (whole and found.append(path)) or was(path, whole))
    return found


def made(data, **settings):
    return Federation.from_datasets(data, **{"partition": cp.iid(2), "heldout": 0} | settings)


def entries(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_what_is_kept_is_found_again_and_mapped(animals, tmp_path, reads):
    plain = made(animals)
    first = made(animals, cache=tmp_path / "kept")
    assert len(reads) == 2 * 7  # the first is read once more, for its shape
    again = made(animals, cache=str(tmp_path / "kept"))
    assert len(reads) == 2 * 7
    assert plain.fingerprint == first.fingerprint == again.fingerprint
    assert (again.class_names, again.base.inputs.dtype) == (("cat", "dog"), torch.uint8)
    (entry,) = entries(tmp_path / "kept")
    assert entries(tmp_path / "kept" / entry) == ["facts.json", "inputs.npy", "targets.npy"]
    before = (tmp_path / "kept" / entry / "inputs.npy").read_bytes()
    again.base.inputs[:] = 0
    assert (tmp_path / "kept" / entry / "inputs.npy").read_bytes() == before


@pytest.mark.parametrize("change", ["touched", "another", "gone", "renamed", "resized", "as clients"])
def test_whatever_changes_is_read_again(animals, tmp_path, reads, change):
    first = made(animals, cache=tmp_path / "kept")
    count, settings, data = len(reads), {}, animals
    picture = animals / "dog" / "0.png"
    if change == "touched":
        os.utime(picture, ns=(0, 0))
    elif change == "another":
        (animals / "dog" / "new.png").write_bytes(picture.read_bytes())
    elif change == "gone":
        picture.unlink()
    elif change == "renamed":
        (animals / "dog").rename(animals / "ant")
    elif change == "resized":
        settings = {"resize": 3}
    else:
        data, settings = {"a": animals}, {"partition": None}
    second = made(data, cache=tmp_path / "kept", **settings)
    assert len(reads) > count
    assert len(entries(tmp_path / "kept")) == 2
    assert change in ("touched", "as clients") or second.fingerprint != first.fingerprint


def test_own_test_parts_identities_and_the_servers_test_are_kept(tmp_path, reads, animals):
    table = "age,town,label\n1,south,yes\n2,north,no\n3,south,no\n4,north,yes\n"
    (tmp_path / "a.csv").write_text(table)
    columns = {"inputs": "age", "targets": "label", "identity": "town"}
    for _ in range(2):
        federation = made(
            tmp_path / "a.csv",
            partition=cp.natural(),
            columns=columns,
            test=tmp_path / "a.csv",
            cache=tmp_path / "kept",
        )
        assert (federation.client_names, federation.class_names) == (("north", "south"), ("no", "yes"))
        assert (len(federation.base), len(federation.test)) == (4, 4)
        assert federation.base.targets.tolist() == [1, 0, 0, 1]
    os.renames(animals, tmp_path / "set" / "train")
    (tmp_path / "set" / "test" / "cat").mkdir(parents=True)
    Image.new("RGB", (5, 6)).save(tmp_path / "set" / "test" / "cat" / "9.png")
    for _ in range(2):
        clients = made({"x": tmp_path / "set"}, partition=None, cache=tmp_path / "kept")
        assert (clients.client_names, clients.heldout.sizes(torch.tensor([0])).tolist()) == (("x",), [1])
    assert len(entries(tmp_path / "kept")) == 2


def test_only_what_is_large_goes_to_the_data_folder(animals, tmp_path, monkeypatch, reads):
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "data"))
    made(animals)
    assert not (tmp_path / "data").exists()
    monkeypatch.setattr(cache, "LARGE", 6 * 90)
    made(animals, cache=False)
    assert not (tmp_path / "data").exists()
    first = made(animals)
    count = len(reads)
    assert len(entries(tmp_path / "data" / "arrays")) == 1
    assert made(animals).fingerprint == first.fingerprint
    loaded = cp.load(str(animals), partition=cp.iid(2), heldout=0)
    assert loaded.fingerprint == first.fingerprint
    assert len(reads) == count


def test_what_is_larger_than_the_memory_is_mapped_without_a_name(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "data"))
    x, y = np.random.default_rng(0).normal(size=(50, 30)).astype(np.float32), np.arange(50) % 3
    plain = made((x, y))
    assert not (tmp_path / "data").exists()
    monkeypatch.setattr(cache, "machine_memory", lambda: 4 * x.nbytes - 1)
    monkeypatch.setattr(gathering, "_BLOCK", 7 * 120)
    federation = made((x, y))
    assert (tmp_path / "data" / "arrays").is_dir()
    assert entries(tmp_path / "data" / "arrays") == []  # it has no name, and goes with the process
    gc.collect()
    assert federation.fingerprint == plain.fingerprint
    assert np.array_equal(federation.base.inputs.numpy(), x)


def test_data_in_memory_are_not_kept_and_this_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        made((np.zeros((4, 2), "f"), [0, 1, 0, 1]), cache=tmp_path / "kept")
    assert "data in memory do not say whether they have changed" in caplog.text
    assert entries(tmp_path / "kept") == []


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop, OSError(28, "No space left on device")])
def test_nothing_half_written_is_left_and_nothing_earlier_is_lost(animals, tmp_path, monkeypatch, error):
    monkeypatch.setattr(gathering, "_BLOCK", 90)
    first = made(animals, cache=tmp_path / "kept", resize=3)
    earlier = entries(tmp_path / "kept")
    blocks = []
    was = cache._File.add

    def add(self, block):
        blocks.append(block)
        if len(blocks) == 4:
            raise error
        was(self, block)

    monkeypatch.setattr(cache._File, "add", add)
    expected = CounterpoiseError if isinstance(error, OSError) else error
    with pytest.raises(expected) as found:
        made(animals, cache=tmp_path / "kept")
    if isinstance(error, OSError):
        assert "cannot hold 540 B of samples: No space left on device. Give cache= another folder" in str(found.value)
    assert entries(tmp_path / "kept") == earlier
    monkeypatch.setattr(cache._File, "add", was)
    assert made(animals, cache=tmp_path / "kept", resize=3).fingerprint == first.fingerprint
    made(animals, cache=tmp_path / "kept")
    assert len(entries(tmp_path / "kept")) == 2


def test_a_full_disk_is_seen_before_anything_is_written(animals, tmp_path, monkeypatch, caplog):
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with caplog.at_level(logging.WARNING):
        federation = made(animals, cache=tmp_path / "kept")
    assert "has no room for 540 B; the samples stay in memory" in caplog.text
    assert (len(federation.base), entries(tmp_path / "kept")) == (6, [])
    monkeypatch.setattr(cache, "machine_memory", lambda: 1000)
    with pytest.raises(
        CounterpoiseError, match=r"The samples take 540 B, for which neither .*kept nor the memory has room"
    ):
        made(animals, cache=tmp_path / "kept")


@pytest.mark.parametrize("damage", ["short", "no json", "counts", "missing", "other"])
def test_a_damaged_entry_is_read_again(animals, tmp_path, reads, caplog, damage):
    first = made(animals, cache=False)
    made(animals, cache=tmp_path / "kept")
    place = next((tmp_path / "kept").iterdir())
    if damage == "short":
        (place / "inputs.npy").write_bytes((place / "inputs.npy").read_bytes()[:-1])
    elif damage == "no json":
        (place / "facts.json").write_text("{")
    elif damage == "counts":
        (place / "facts.json").write_text(
            json.dumps({"class_names": None, "train": [7], "own": [0], "inputs": [None], "targets": [None]})
        )
    elif damage == "missing":
        (place / "targets.npy").unlink()
    else:
        np.save(place / "targets.npy", np.zeros(7, int))
    count = len(reads)
    with caplog.at_level(logging.WARNING):
        assert made(animals, cache=tmp_path / "kept").fingerprint == first.fingerprint
    assert "is damaged" in caplog.text
    assert len(reads) == count + 7
    made(animals, cache=tmp_path / "kept")
    assert len(reads) == count + 7


def test_parts_of_killed_processes_are_removed_after_a_day(animals, tmp_path):
    for name, age in (("old.part", 90_000), ("new.part", 10)):
        (tmp_path / "kept" / name).mkdir(parents=True)
        os.utime(tmp_path / "kept" / name, (time.time() - age,) * 2)
    made(animals, cache=tmp_path / "kept")
    assert "old.part" not in entries(tmp_path / "kept")
    assert "new.part" in entries(tmp_path / "kept")


def test_of_two_processes_the_quicker_one_keeps_its_arrays(animals, tmp_path, monkeypatch):
    was = cache.Shelf.keep

    def late(self, found):
        monkeypatch.setattr(cache.Shelf, "keep", was)
        made(animals, cache=tmp_path / "kept")
        return was(self, found)

    monkeypatch.setattr(cache.Shelf, "keep", late)
    federation = made(animals, cache=tmp_path / "kept")
    (entry,) = entries(tmp_path / "kept")
    assert not entry.endswith(".part")
    assert np.array_equal(federation.base.inputs.numpy(), np.load(tmp_path / "kept" / entry / "inputs.npy"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [(3, "cache must be the path of a folder, or False to keep nothing on disk, not 3"), ("file", "cannot hold 540 B")],
)
def test_a_cache_that_is_no_folder_is_told(animals, tmp_path, monkeypatch, given, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CounterpoiseError, match=sentence):
        made(animals, cache=given)
