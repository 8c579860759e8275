"""A peer's script in its own environment, asked line by line."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.benchmarks.process import SCRIPTS, PeerFailed, environment, failure
from tests.benchmarks.timing import NOT_INSTALLED


@contextmanager
def asked(
    python: Path | None, script: str, *given: object, threads: int = 1
) -> Iterator[tuple[dict[str, Any], Callable[[object], dict[str, Any]]]]:
    """(the facts it begins with, ask): every question is a line, every answer a JSON line.

    Raises: PeerFailed.
    """
    if python is None:
        raise PeerFailed(NOT_INSTALLED)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context(open(directory / "log", "w"))
        process = stack.enter_context(subprocess.Popen(
            [str(python), str(SCRIPTS / script), *map(str, given)], cwd=directory, text=True,
            env=environment(threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        ))  # fmt: skip
        to, of = process.stdin, process.stdout
        assert to is not None
        assert of is not None

        def answer() -> dict[str, Any]:
            line = of.readline()
            if not line:
                raise PeerFailed(failure(process.wait(), directory / "log"))
            return dict(json.loads(line))

        def ask(question: object) -> dict[str, Any]:
            with suppress(BrokenPipeError):  # it died: ``answer`` says of what
                to.write(f"{question}\n")
                to.flush()
            return answer()

        try:
            yield answer(), ask
        finally:
            with suppress(BrokenPipeError):
                to.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
