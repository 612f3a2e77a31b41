"""The downloader against a server of our own that breaks in every way, and the local data folder."""

import gzip
import hashlib
import io
import socket
import tarfile
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import catalogue
from counterpoise.federation.catalogue import DATASETS
from counterpoise.federation.sources import Remote, data_folder, download, ensure, here
from counterpoise.federation.sources.download import Unfetched, _alone, verify

CONTENT = bytes(range(256)) * 40


class Server:
    """Serves `CONTENT` at /file as `how` says, and keeps what it was asked."""

    def __init__(self):
        self.how, self.content, self.asked = "whole", CONTENT, []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                wanted = self.headers.get("Range")
                server.asked.append(wanted)
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
                if server.how == "missing" or self.path != "/file":
                    return self.send_error(404, "Not Found")
                if server.how == "no ranges":
                    start = 0
                if wanted and start >= len(server.content):
                    return self.send_error(416)
                body = server.content[start:]
                self.send_response(206 if wanted and server.how != "no ranges" else 200)
                if server.how == "odd length":
                    self.send_header("Content-Length", "abc")
                elif server.how not in ("no length", "endless"):
                    self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")
                self.end_headers()
                if server.how == "drops":
                    body = body[:3000]
                elif server.how == "silent":
                    body = b""
                self.wfile.write(body)
                self.close_connection = True

            def log_message(self, *words):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/file"

    def remote(self, path="set/file.bin", *, content=CONTENT, urls=None, members=()):
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        return Remote(path, urls or (self.url,), md5, members)

    def stop(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def nowhere():
    """An address that nobody answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/file"


# ---------------------------------------------------------------- one file


@pytest.mark.parametrize("how", ["whole", "no length", "no ranges", "odd length"])
def test_a_file_comes_whole_into_a_folder_that_was_not_there(server, tmp_path, how):
    server.how = how
    target = tmp_path / "a" / "b" / "file.bin"
    download(server.remote(), target)
    assert target.read_bytes() == CONTENT
    assert list(tmp_path.rglob("*.*")) == [target]  # no part, no lock
    assert server.asked == [None]


@pytest.mark.parametrize("how", ["whole", "endless"])
def test_no_more_is_fetched_than_the_file_can_have(server, tmp_path, how):
    server.how, server.content = how, bytes(10**6)
    with pytest.raises(Unfetched, match="it gives more than 10000 bytes, but the published file has fewer"):
        download(replace(server.remote(), most=10_000), tmp_path / "file.bin")
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_drops_is_resumed_where_it_stopped(server, tmp_path):
    server.how = "drops"
    download(server.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=3000-", "bytes=6000-", "bytes=9000-"]


def test_an_earlier_part_is_not_fetched_again(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:5000])
    download(server.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == ["bytes=5000-"]


@pytest.mark.parametrize("part", [b"x" * 5000, CONTENT + b"more", CONTENT[:-1] + b"x"])
def test_a_part_of_another_file_is_thrown_away(server, tmp_path, part):
    (tmp_path / "file.bin.part").write_bytes(part)
    download(server.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked[-1] is None


def test_a_part_that_is_the_whole_is_taken(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    download(server.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


def test_a_server_without_ranges_begins_anew(server, tmp_path):
    server.how = "no ranges"
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:5000])
    download(server.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_that_gives_nothing_more_is_left_after_a_few_tries(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:5000])
    server.how = "silent"
    with pytest.raises(CounterpoiseError, match="the connection broke after 5000 bytes; run the same command to go on"):
        download(server.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:5000]
    assert len(server.asked) < 10
    server.how = "whole"
    download(server.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_leaves_nothing(server, tmp_path):
    with pytest.raises(CounterpoiseError, match="the MD5 of what it gives is not"):
        download(server.remote(content=b"other"), tmp_path / "file.bin")
    assert not list(tmp_path.glob("file.bin*"))


def test_the_second_place_is_asked_when_the_first_fails(server, tmp_path):
    remote = server.remote(urls=(nowhere(), server.url.replace("/file", "/gone"), server.url))
    download(remote, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_without_network_one_sentence_names_the_file_and_the_folder(tmp_path):
    remote = Remote("set/file.bin", (nowhere(),), "0" * 32)
    with pytest.raises(CounterpoiseError) as told:
        ensure([remote], tmp_path)
    sentence = str(told.value)
    assert sentence.startswith(f"file.bin is not in {tmp_path / 'set'} and could not be fetched (http://127.0.0.1:")
    assert sentence.endswith(
        "Connection refused): put it there, or set COUNTERPOISE_DATA to a data folder that has it."
    )


def test_what_was_made_for_a_download_in_vain_is_removed_and_nothing_else(server, tmp_path):
    server.how = "missing"
    for target in (tmp_path / "new" / "set" / "file.bin", tmp_path / "mine" / "file.bin"):
        (tmp_path / "mine").mkdir(exist_ok=True)
        with pytest.raises(CounterpoiseError, match="404"):
            download(server.remote(), target)
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]  # a user's folder, though empty


def test_a_lock_that_is_removed_lets_nobody_in_beside_its_owner(tmp_path):
    inside, most = 0, 0

    def enter():
        nonlocal inside, most
        for _ in range(20):
            with _alone(tmp_path / "set" / "file.bin.part"):
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert not list((tmp_path / "set").iterdir())


def test_a_missing_page_is_told(server, tmp_path):
    server.how = "missing"
    with pytest.raises(CounterpoiseError, match="the server answers 404 Not Found"):
        download(server.remote(), tmp_path / "file.bin")


def test_a_folder_that_cannot_be_made_is_told(server, tmp_path):
    (tmp_path / "set").write_text("a file")
    with pytest.raises(CounterpoiseError, match=r"cannot be written: .* Set COUNTERPOISE_DATA to a writable folder"):
        ensure([server.remote()], tmp_path)


def test_a_bar_is_drawn_for_a_person_alone(server, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    download(server.remote(), tmp_path / "file.bin")
    assert "file.bin ━━━━━━━━━━━━━━━━━━━━━━━━ 0.0 of 0.0 MB" in screen.getvalue()
    assert all(len(line) < 80 for line in screen.getvalue().split("\r"))


# ---------------------------------------------------------------- archives


def archive(**files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def test_what_is_wanted_of_an_archive_is_unpacked_and_the_archive_removed(server, tmp_path):
    server.content = archive(inner__a=b"first", inner__b=b"second", other=b"not wanted")
    remote = server.remote("set/x.tar.gz", content=server.content, members=("inner/a", "inner/b"))
    assert not here(remote, tmp_path)
    ensure([remote], tmp_path)
    assert here(remote, tmp_path)
    names = {path.name for path in (tmp_path / "set").iterdir() if not path.name.startswith(".")}
    assert names == {"a", "b"}
    assert (tmp_path / "set" / "b").read_bytes() == b"second"
    ensure([remote], tmp_path)
    assert len(server.asked) == 1


def test_an_archive_that_a_person_put_there_is_used_and_kept(tmp_path):
    content = archive(inner__a=b"first")
    remote = Remote("x.tar.gz", (nowhere(),), hashlib.md5(content).hexdigest(), ("inner/a",))
    (tmp_path / "x.tar.gz").write_bytes(content)
    ensure([remote], tmp_path)
    assert (tmp_path / "a").read_bytes() == b"first"
    assert (tmp_path / "x.tar.gz").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (archive(inner__b=b"second"), "x.tar.gz lacks inner/a"),
        (archive(inner__a=bytes(99_999))[:60], "is not a whole archive"),
        (b"no archive", "is not a whole archive"),
    ],
    ids=["a file is missing", "cut short", "something else"],
)
def test_a_bad_archive_is_told(tmp_path, content, sentence):
    remote = Remote("x.tar.gz", (nowhere(),), hashlib.md5(content).hexdigest(), ("inner/a",))
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(CounterpoiseError, match=sentence):
        ensure([remote], tmp_path)
    assert not (tmp_path / "a").exists()


def test_another_archive_of_that_name_is_refused(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(b"something")
    with pytest.raises(CounterpoiseError, match=r"is not the published file: its MD5 is \w+ and should be 000"):
        ensure([Remote("x.tar.gz", (nowhere(),), "0" * 32, ("a",))], tmp_path)
    with pytest.raises(CounterpoiseError, match="is not the published file"):
        verify(tmp_path / "x.tar.gz", "0" * 32)


# ---------------------------------------------------------------- the data folder


def test_the_data_folder_is_what_the_variable_says_or_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("COUNTERPOISE_DATA")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "counterpoise"


@pytest.fixture
def offline(monkeypatch):
    """Nothing can be fetched, and whoever tries fails the test."""

    def refuse(*words, **more):
        raise AssertionError("a local file was there")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


def small(shape, n):
    return np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8), np.arange(n, dtype=np.uint8) % 10


def idx_file(array, kind=8):
    head = bytes([0, 0, kind, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(head + array.astype(array.dtype.newbyteorder(">")).tobytes())


def put_mnist(folder, name="mnist"):
    (folder / name).mkdir(parents=True)
    for part, n in (("train", 40), ("t10k", 20)):
        x, y = small((28, 28), n)
        (folder / name / f"{part}-images-idx3-ubyte.gz").write_bytes(idx_file(x))
        (folder / name / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx_file(y))


def put_cifar(folder, name, train, test, labels):
    (folder / name).mkdir(parents=True)
    for file in (*train, test):
        x, y = small((3, 32, 32), 20)
        records = np.concatenate([np.repeat(y[:, None], labels, 1), x.reshape(20, -1)], 1)
        (folder / name / file).write_bytes(records.tobytes())


def put_stl(folder):
    (folder / "stl10").mkdir(parents=True)
    for part in ("train", "test"):
        x, y = small((3, 96, 96), 20)
        (folder / "stl10" / f"{part}_X.bin").write_bytes(x.transpose(0, 1, 3, 2).tobytes())
        (folder / "stl10" / f"{part}_y.bin").write_bytes((y + 1).tobytes())


def put_med(folder, name, shape):
    folder.mkdir(parents=True, exist_ok=True)
    (x, y), (x2, y2) = small(shape, 40), small(shape, 20)
    np.savez(folder / f"{name}.npz", train_images=x, train_labels=y[:, None], test_images=x2, test_labels=y2[:, None])


def put_all(folder):
    put_mnist(folder)
    put_mnist(folder, "fashion-mnist")
    put_cifar(folder, "cifar10", [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin", 1)
    put_cifar(folder, "cifar100", ["train.bin"], "test.bin", 2)
    put_stl(folder)
    for name, shape in (("pathmnist", (28, 28, 3)), ("organamnist", (28, 28)), ("bloodmnist", (28, 28, 3))):
        put_med(folder, name, shape)


SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
SHAPES |= {"stl10": (3, 96, 96), "pathmnist": (3, 28, 28), "organamnist": (1, 28, 28), "bloodmnist": (3, 28, 28)}


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", SHAPES)
def test_published_files_in_the_folder_are_read(folder, name):
    put_all(folder)
    assert catalogue.place(DATASETS[name]) is not None
    federation = cp.load(name, partition=cp.iid(4), heldout=0)
    assert federation.shape == SHAPES[name]
    x, y = small(SHAPES[name], len(federation.base)) if name in ("mnist", "fashion-mnist") else (None, None)
    if x is not None:
        assert np.array_equal(federation.base.inputs.numpy(), x)
        assert federation.base.targets.tolist() == y.tolist()
    assert federation.base.inputs.dtype.is_floating_point is False
    assert len(federation.test) == 20
    assert federation.test.targets[:10].tolist() == list(range(10))


@pytest.mark.usefixtures("offline")
def test_an_npz_of_the_sets_name_comes_first(folder):
    put_mnist(folder)
    np.savez(folder / "mnist.npz", x_train=small((28, 28), 30)[0], y_train=np.arange(30) % 3)
    assert len(cp.load("mnist", partition=cp.iid(3)).base) == 30


@pytest.mark.usefixtures("offline")
def test_a_file_that_changed_is_read_again(folder):
    put_med(folder, "bloodmnist", (28, 28))
    assert len(cp.load("bloodmnist", partition=cp.iid(3)).base) == 40
    np.savez(folder / "bloodmnist.npz", x_train=small((28, 28), 30)[0], y_train=np.arange(30) % 3)
    assert len(cp.load("bloodmnist", partition=cp.iid(3)).base) == 30


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("form", ["qmnist", "npz"])
def test_mnists_writers_come_from_qmnists_labels_or_a_local_copy(folder, form):
    put_mnist(folder)
    writers = np.arange(40) // 8 * 7
    if form == "npz":
        np.savez(folder / "mnist_writers.npz", writer_train=writers)
    else:
        table = np.zeros((40, 8), dtype=np.int32)
        table[:, 0], table[:, 1], table[:, 2] = 1, 4, writers
        (folder / "mnist" / "qmnist-train-labels-idx2-int.gz").write_bytes(idx_file(table, 0x0C))
    federation = cp.load("mnist", partition=cp.natural(), heldout=0)
    assert federation.clients == 5
    for client in range(5):
        rows = federation.train.rows(torch.tensor([client]))
        assert sorted(rows[0].tolist()) == list(range(8 * client, 8 * client + 8))


def test_a_set_that_is_not_here_and_cannot_be_fetched_is_told(folder, monkeypatch):
    def refuse(*words, **more):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(CounterpoiseError, match=r"cifar-10-binary.tar.gz is not in .*cifar10 and could not be fetched"):
        cp.load("cifar10", partition=cp.iid(3))
    with pytest.raises(CounterpoiseError) as told:  # the file that would do instead is the missing one
        cp.load("bloodmnist", partition=cp.iid(3))
    assert str(told.value).endswith(": put it there, or set COUNTERPOISE_DATA to a data folder that has it.")
    put_mnist(folder)
    with pytest.raises(
        CounterpoiseError, match=r"put it there, or put mnist_writers.npz \(writer_train\) into .*data,"
    ):
        cp.load("mnist", partition=cp.natural())


@pytest.mark.parametrize("there", [(), ("train-images-idx3-ubyte.gz",)])
@pytest.mark.parametrize("way", ["published", "npz"])
def test_whoever_does_what_the_sentence_says_of_a_set_of_four_files_is_done(folder, monkeypatch, tmp_path, there, way):
    def refuse(*words, **more):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    put_mnist(tmp_path / "made")
    (folder / "mnist").mkdir(parents=True)
    for name in there:
        (tmp_path / "made" / "mnist" / name).rename(folder / "mnist" / name)
    with pytest.raises(CounterpoiseError) as told:
        cp.load("mnist", partition=cp.iid(3))
    sentence = str(told.value)
    asked = [f"{p}-{w}-ubyte.gz" for p in ("train", "t10k") for w in ("images-idx3", "labels-idx1")][len(there) :]
    listed = f"{', '.join(asked[:-1])} and {asked[-1]}"
    assert sentence.startswith(f"{listed} are not in {folder / 'mnist'} and the first could not be fetched (http")
    assert sentence.endswith(
        f"Network is unreachable): put them there, or put mnist.npz (x_train, y_train, x_test, y_test) into {folder}, "
        "or set COUNTERPOISE_DATA to a data folder that has them."
    )
    assert ". " not in sentence
    if way == "npz":
        x, y = small((28, 28), 40)
        np.savez(folder / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    else:
        for name in asked:
            (tmp_path / "made" / "mnist" / name).rename(folder / "mnist" / name)
    assert len(cp.load("mnist", partition=cp.iid(3)).base) == 40


@pytest.mark.parametrize(
    ("name", "prefix", "train", "test", "labels"),
    [
        ("cifar10", "cifar-10-batches-bin", [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin", 1),
        ("cifar100", "cifar-100-binary", ["train.bin"], "test.bin", 2),
    ],
)
def test_a_published_archive_is_fetched_unpacked_and_read(
    server, folder, tmp_path, monkeypatch, name, prefix, train, test, labels
):
    put_cifar(tmp_path / "made", name, train, test, labels)
    made = {f"{prefix}__{f}": (tmp_path / "made" / name / f).read_bytes() for f in (*train, test)}
    server.content = archive(**made, **{f"{prefix}__readme.html": b"not wanted"})
    published = DATASETS[name].files[0]
    mirrored = replace(published, urls=(server.url,), md5=hashlib.md5(server.content).hexdigest())
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], files=(mirrored,)))
    federation = cp.load(name, partition=cp.iid(4))
    assert len(federation.base) == 20 * len(train)
    assert not (folder / mirrored.path).exists()
    assert catalogue.place(DATASETS[name]) == folder / name
    cp.load(name, partition=cp.iid(4))
    assert len(server.asked) == 1


def test_every_published_set_names_its_licence_home_and_checksums():
    for dataset in DATASETS.values():
        assert dataset.summary
        assert dataset.licence
        for remote in dataset.files:
            assert len(bytes.fromhex(remote.md5)) == 16
            assert all(url.startswith(("https://", "http://")) for url in remote.urls)
            assert dataset.home


# ---------------------------------------------------------------- files that a person put there


def test_files_put_there_by_hand_are_held_against_the_published_md5(folder, monkeypatch, caplog):
    raw = gzip.compress(b"\0\0\x08\x01" + (3).to_bytes(4, "big") + bytes(3))
    files = tuple(replace(f, md5=hashlib.md5(raw, usedforsecurity=False).hexdigest()) for f in DATASETS["mnist"].files)
    dataset = replace(DATASETS["mnist"], files=files, read=lambda folder, seed: "read")
    assert dataset.provenance() == ""
    for file in files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_bytes(raw)
    assert dataset.provenance() == "as published: every MD5 matches"
    assert dataset.arrays() == "read"
    assert caplog.text == ""
    (folder / files[1].path).write_bytes(raw + b"x")
    told = "not the published files: train-labels-idx1-ubyte.gz (different MD5)"
    assert dataset.provenance() == told
    assert dataset.arrays() == "read"
    assert f"mnist: {told}" in caplog.text
    np.savez(folder / "mnist.npz", x_train=np.zeros((2, 2)), y_train=np.zeros(2))
    assert dataset.provenance() == "unchecked: mnist.npz is a file of your own in place of the published ones"


def test_of_unpacked_archives_no_md5_is_published(folder):
    (folder / "cifar100").mkdir(parents=True)
    for name in ("train.bin", "test.bin"):
        (folder / "cifar100" / name).write_bytes(bytes(3074))
    assert DATASETS["cifar100"].provenance().startswith("unchecked: these files were unpacked from an archive")
