"""Every published format, on small files made by hand."""

import gzip
import io
import zipfile

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.readers import read_arrays, read_cifar, read_idx, read_stl_images, read_stl_labels

# ---------------------------------------------------------------- IDX


def idx(kind, shape, body):
    return bytes([0, 0, kind, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + body


@pytest.mark.parametrize("name", ["a-idx3-ubyte", "a-idx3-ubyte.gz"])
def test_idx_bytes(tmp_path, name):
    raw = idx(8, (2, 2, 3), bytes(range(12)))
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    found = read_idx(tmp_path / name)
    assert found.dtype == np.uint8
    assert found.tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


def test_idx_big_endian_integers_as_in_qmnists_labels(tmp_path):
    body = b"".join(n.to_bytes(4, "big", signed=True) for n in (5, -1, 2319, 70_000))
    (tmp_path / "labels-idx2-int").write_bytes(idx(0x0C, (2, 2), body))
    found = read_idx(tmp_path / "labels-idx2-int")
    assert found.tolist() == [[5, -1], [2319, 70_000]]
    assert found.dtype == np.int32


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "does not begin like an IDX file"),
        (b"\x00\x00\x07\x01\x00\x00\x00\x00", "does not begin like an IDX file"),
        (b"PK\x03\x04", "does not begin like an IDX file"),
        (idx(8, (2, 2), b"123"), r"promises an array of shape \(2, 2\), but its length does not match"),
        (idx(8, (2, 2), b"12345"), "its length does not match"),
        (idx(8, (2, 2), b"")[:6], "its length does not match"),
    ],
)
def test_a_damaged_idx_file_is_told(tmp_path, raw, why):
    (tmp_path / "bad").write_bytes(raw)
    with pytest.raises(CounterpoiseError, match=f"bad cannot be read: .*{why}.* Remove it"):
        read_idx(tmp_path / "bad")


def test_half_a_gzip_file_is_told(tmp_path):
    (tmp_path / "bad.gz").write_bytes(gzip.compress(idx(8, (900,), bytes(900)))[:-10])
    with pytest.raises(CounterpoiseError, match=r"bad.gz cannot be read: it is not a whole gzip file"):
        read_idx(tmp_path / "bad.gz")


# ---------------------------------------------------------------- CIFAR and STL


def test_cifars_records_are_labels_then_planes(tmp_path):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    for labels in (1, 2):
        records = [bytes([99, i + 5][-labels:]) + pictures[i].tobytes() for i in range(4)]
        (tmp_path / "one.bin").write_bytes(b"".join(records[:3]))
        (tmp_path / "two.bin").write_bytes(records[3])
        x, y = read_cifar([tmp_path / "one.bin", tmp_path / "two.bin"], labels)
        assert np.array_equal(x, pictures)
        assert y.tolist() == [5, 6, 7, 8]  # of CIFAR-100's two the fine one


def test_a_cut_cifar_file_is_told(tmp_path):
    (tmp_path / "one.bin").write_bytes(bytes(3000))
    with pytest.raises(CounterpoiseError, match="its length is not a whole number of records of 3073 bytes"):
        read_cifar([tmp_path / "one.bin"], 1)


def test_stls_pictures_are_written_column_by_column_and_labels_from_one(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (2, 3, 96, 96), dtype=np.uint8)
    body = b"".join(
        bytes([picture[i, c, row, column]])
        for i in (0, 1)
        for c in range(3)
        for column in range(96)
        for row in range(96)
    )
    (tmp_path / "x.bin").write_bytes(body)
    (tmp_path / "y.bin").write_bytes(bytes([1, 10]))
    assert np.array_equal(read_stl_images(tmp_path / "x.bin"), picture)
    assert read_stl_labels(tmp_path / "y.bin").tolist() == [0, 9]


@pytest.mark.parametrize(
    ("read", "raw", "why"),
    [
        (read_stl_images, bytes(100), "not a whole number of pictures of 27648 bytes"),
        (read_stl_labels, bytes([0, 1]), "does not hold labels from 1 to 10"),
        (read_stl_labels, b"", "does not hold labels from 1 to 10"),
    ],
)
def test_a_damaged_stl_file_is_told(tmp_path, read, raw, why):
    (tmp_path / "bad.bin").write_bytes(raw)
    with pytest.raises(CounterpoiseError, match=why):
        read(tmp_path / "bad.bin")


# ---------------------------------------------------------------- arrays


def pictures(n, *shape):
    return np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)


@pytest.mark.parametrize(("shape", "read"), [((6, 5), (1, 6, 5)), ((6, 5, 3), (3, 6, 5)), ((3, 6, 5), (3, 6, 5))])
def test_an_npz_gives_pictures_with_channels_first(tmp_path, shape, read):
    x = pictures(4, *shape)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(4), x_test=x[:2], y_test=np.arange(2))
    raw = read_arrays(tmp_path / "a.npz")
    assert raw.x_train.shape == (4, *read)
    assert raw.x_train.dtype == np.uint8
    wanted = x.transpose(0, 3, 1, 2) if shape == (6, 5, 3) else x.reshape(4, *read)
    assert np.array_equal(raw.x_train, wanted)
    assert len(raw.x_test) == len(raw.y_test) == 2


def test_medmnists_own_names_are_known_and_its_column_of_labels(tmp_path):
    parts = {"train": 6, "val": 2, "test": 3}
    arrays = {f"{p}_images": pictures(n, 28, 28, 3) for p, n in parts.items()}
    arrays |= {f"{p}_labels": (np.arange(n, dtype=np.uint8) % 2)[:, None] for p, n in parts.items()}
    np.savez_compressed(tmp_path / "bloodmnist.npz", **arrays)
    federation = cp.load(str(tmp_path / "bloodmnist.npz"), partition=cp.iid(2), heldout=0)
    assert (len(federation.base), len(federation.test), federation.shape, federation.classes) == (6, 3, (3, 28, 28), 2)


def test_a_folder_of_arrays_is_mapped_and_not_changed(tmp_path):
    x = pictures(8, 1, 4, 4)
    for name, array in {"x_train": x, "y_train": np.arange(8) % 2, "identity_train": np.arange(8) // 4}.items():
        np.save(tmp_path / f"{name}.npy", array)
    raw = read_arrays(tmp_path)
    assert isinstance(raw.x_train, np.memmap)
    federation = cp.load(str(tmp_path), partition=cp.natural(), heldout=0)
    assert federation.clients == 2
    assert federation.test is None
    assert np.array_equal(federation.base.inputs.numpy(), x)
    federation.base.inputs[:] = 0
    assert np.array_equal(np.load(tmp_path / "x_train.npy"), x)


def write(folder, **arrays):
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda f: f / "none.npz", "There is no file .*none.npz"),
        (lambda f: f, "holds neither arrays nor tables nor pictures. Data sets are .npy files x_train and y_train"),
        (lambda f: write(f, a=np.zeros(2)), "holds a; a data set needs x_train and y_train"),
        (
            lambda f: write(f, x=np.zeros(2), y=np.zeros(2), x_test=np.zeros(2)),
            "one of x_test and y_test without the other",
        ),
        (
            lambda f: write(f, x=np.array([{}, {}]), y=np.zeros(2)),
            "does not hold plain NumPy arrays: it is damaged, or holds Python objects, which are not loaded",
        ),
        (lambda f: (f / "b.npz").write_bytes(b"PK\x03\x04 no") and f / "b.npz", "does not hold plain NumPy arrays"),
        (lambda f: (f / "b.npz").write_bytes(b"no") and f / "b.npz", "it is damaged, or holds Python objects"),
    ],
)
def test_arrays_that_make_no_data_set_are_refused(tmp_path, make, sentence):
    path = make(tmp_path)
    with pytest.raises(CounterpoiseError, match=sentence):
        cp.load(str(path), partition=cp.iid(2))


@pytest.mark.parametrize("shape", [(10**10,), (1001,), (2**40, 2**40)])
def test_an_array_that_claims_more_than_the_file_holds_is_not_allocated(tmp_path, monkeypatch, shape):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", head.getvalue() + bytes(8000))
        archive.writestr("y.npy", head.getvalue())
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", lambda self, name: pytest.fail("it was read"))
    with pytest.raises(
        CounterpoiseError, match=r"a\.npz is damaged: the header of its array x claims .* follow\. Make or"
    ):
        read_arrays(tmp_path / "a.npz")


def test_a_single_array_is_not_read_as_an_archive(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(CounterpoiseError, match="holds a single array; a data set needs x_train and y_train"):
        read_arrays(tmp_path / "a.npz")


def test_a_cut_npz_is_told(tmp_path):
    whole = write(tmp_path, x_train=pictures(50, 8, 8), y_train=np.zeros(50, int)).read_bytes()
    for length in (len(whole) // 2, len(whole) - 5):
        (tmp_path / "a.npz").write_bytes(whole[:length])
        with pytest.raises(CounterpoiseError, match="does not hold plain NumPy arrays"):
            read_arrays(tmp_path / "a.npz")


def test_a_file_that_unpacks_to_more_than_any_published_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("counterpoise.federation.readers.bytes.MOST", 10_000)
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(bytes(10_001)))
    with pytest.raises(CounterpoiseError, match=r"zeros\.gz cannot be read: it holds more than 10000 bytes"):
        read_idx(path)
