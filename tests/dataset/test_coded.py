"""Coded shards: the rows of plain ones, bit for bit; damage is found before anything is decoded."""

import json

import numpy as np
import pytest

from rlrun import codec
from rlrun.codec import planes
from rlrun.dataset import read_dataset, write_dataset
from rlrun.dataset.format import DESCRIPTION_FILE
from rlrun.errors import ConfigError, StorageError
from rlrun.run.files import seal, unseal
from rlrun.types import tree_leaves
from tests.codec import samples
from tests.dataset.make import KINDS, SOURCE, SPEC, dress
from tests.reference.streams import make_stream, part


def both(tmp_path, kind="plain", rows=40, shard_rows=14, coder="auto", lengths=((9, 4), (7,))):
    """(plain, coded) datasets of the same rows."""
    stream = make_stream([list(x) for x in lengths], [[True, False]] * len(lengths), rows).segment
    segment = dress(stream, kind)
    parts = [part(segment, 0, rows // 2), part(segment, rows // 2, rows)]
    given_ = {"spec": SPEC, "meta": SOURCE, "shard_rows": shard_rows}
    write_dataset(tmp_path / "plain", parts, **given_)
    write_dataset(tmp_path / "coded", parts, **given_, coder=coder)
    return read_dataset(tmp_path / "plain"), read_dataset(tmp_path / "coded")


def bits(segment):
    names = ("obs", "first", "action", "reward", "terminated", "truncated", "valid", "extras")
    return [x.numpy() for x in tree_leaves(tuple(getattr(segment, n) for n in names))]


def alike(plain, coded):
    for one, two in zip(plain.episodes(), coded.episodes(), strict=True):
        for x, y in zip(bits(one), bits(two), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("coder", samples.CODERS)
def test_the_same_rows(tmp_path, coder):
    kind = KINDS[samples.CODERS.index(coder) % 3]
    plain, coded = both(tmp_path, kind, coder=coder)
    alike(plain, coded)
    for one, two in zip(plain.chunks(3, 11), coded.chunks(3, 11), strict=True):
        for x, y in zip(bits(one), bits(two), strict=True):
            np.testing.assert_array_equal(x, y)
    for name, x in plain.block(3, 33).items():
        for a, b in zip(tree_leaves(x), tree_leaves(coded.block(3, 33)[name]), strict=True):
            np.testing.assert_array_equal(a, b)
    same = {"shards", "format", "sha256"}
    ours, theirs = plain.description, coded.description
    assert {k: v for k, v in ours.items() if k not in same} == {
        k: v for k, v in theirs.items() if k not in same
    }
    assert {s["coder"] for s in theirs["shards"]} == {coder}


def test_damage(tmp_path):
    """A shard is checked by its sha256 before the codec sees it; the error names the file."""
    both(tmp_path)
    path = tmp_path / "coded/data-00001.rldf"
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    for wrong in (bytes(flipped), content[:-1], content + b"x", None):
        path.unlink() if wrong is None else path.write_bytes(wrong)
        with pytest.raises(StorageError, match=r"data-00001\.rldf"):
            list(read_dataset(tmp_path / "coded").episodes())


def test_a_forged_size_is_refused(tmp_path):
    """Whoever seals a wrong description gets an error, not memory."""
    both(tmp_path)
    path = tmp_path / "coded" / DESCRIPTION_FILE
    fields = unseal(path.read_bytes())
    fields["shards"][0]["raw"] = 3
    path.write_bytes(seal(fields))
    with pytest.raises(StorageError, match=r"at most 3\b"):
        list(read_dataset(tmp_path / "coded").episodes())


def test_formats(tmp_path):
    """Plain datasets stay as they were; an rlrun that knows no coded ones refuses them."""
    plain, coded = both(tmp_path)
    assert (plain.description["format"], coded.description["format"]) == (1, 2)
    path = tmp_path / "coded" / DESCRIPTION_FILE
    path.write_bytes(seal({**unseal(path.read_bytes()), "format": 3}))
    with pytest.raises(ConfigError, match=r"1 .*2"):
        read_dataset(tmp_path / "coded")
    assert json.loads((tmp_path / "plain" / DESCRIPTION_FILE).read_bytes())["format"] == 1


@pytest.mark.skipif(not planes.installed(), reason="pcodec is not installed")
def test_a_missing_package_is_no_damage(tmp_path, monkeypatch):
    _, coded = both(tmp_path, coder="pco")

    def gone():
        raise codec.MissingCoder("codec.coder = pco: the package pcodec is missing")

    monkeypatch.setattr(planes, "import_pcodec", gone)
    with pytest.raises(codec.MissingCoder):
        list(coded.episodes())
