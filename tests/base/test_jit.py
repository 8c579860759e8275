"""Where compiled kernels are kept."""

import os
import tempfile
from pathlib import Path

from rlrun import jit


def test_without_a_home_the_cache_is_no_directory_of_that_name(tmp_path, monkeypatch):
    """The installation cannot be written, and the user has neither HOME nor an entry in passwd."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    installed = Path(jit.__file__).parent
    monkeypatch.setattr(jit, "_writable", lambda path: not path.is_relative_to(installed))
    for home, found in (("~", False), (".", False), (str(tmp_path), True)):
        monkeypatch.setattr(os.path, "expanduser", lambda text, home=home: text.replace("~", home))
        assert jit._has_cache() == found, home
    monkeypatch.setenv("NUMBA_CACHE_DIR", "anywhere")
    monkeypatch.setattr(os.path, "expanduser", lambda text: text)
    assert jit._has_cache()
    assert [*tmp_path.iterdir()] == []


def test_code_is_read_from_a_private_directory_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = Path(str(jit._private_directory()))
    assert path.parent == tmp_path
    assert path.stat().st_mode & 0o777 == 0o700
    assert jit._private_directory() == str(path), "the next process has the same"
    path.chmod(0o770)
    assert jit._private_directory() is None
    path.chmod(0o700)
    other = path.rename(tmp_path / "other")
    path.symlink_to(other)
    assert jit._private_directory() is None
    path.unlink()
    path.write_text("")
    assert jit._private_directory() is None
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert jit._private_directory() is None
