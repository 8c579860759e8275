"""Commands of setuptools, named in pyproject.toml, that record the commit in wheels and sdists."""

import runpy
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parents[2]
VERSION = runpy.run_path(str(ROOT / "rlrun" / "version.py"))


def record_commit(package: Path) -> None:
    """Write the commit that ``rlrun --version`` shows into a copy of the package."""
    path = package / VERSION["COMMIT"]
    text = VERSION["commit"](ROOT)
    path.unlink(missing_ok=True)  # may be a link to the file of an sdist
    if text is not None:
        path.write_text(f"{text}\n", "ascii")


class BuildWithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout is asked when its version is wanted
            record_commit(Path(self.build_lib, "rlrun"))


class SdistWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, [*files, "CHANGELOG.md", "CITATION.cff"])
        record_commit(Path(base_dir, "rlrun"))
