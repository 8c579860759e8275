"""Trusted packages: the only packages whose code a config may name.

Config files may come from anywhere, so they cannot grant trust. A package is trusted only by
``--trust PACKAGE`` or by the environment variable RLRUN_TRUST.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from rlrun.errors import ConfigError, EnvError, RlrunError

VARIABLE = "RLRUN_TRUST"  # names of packages, separated by commas; child processes inherit it
# Packages of environments that rlrun knows: a file may name them in env.id.
ENVIRONMENTS = ("rlrun", "gymnasium", "ale_py", "minigrid", "popgym", "pettingzoo", "mpe2")
_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"


class NotTrusted(ConfigError):
    """A config names code of a package that is not trusted.

    ``packages``: those to trust: this one, and those that a run directory records as trusted
    before. The record is shown and never used.
    """

    def __init__(self, text: str, package: str, *, key: str) -> None:
        super().__init__(text, key=key)
        self.packages = [package]

    def typed(self, line: str) -> "NotTrusted":
        """Return the error with a command line that trusts the packages instead of advice."""
        wrong = str(self).partition("; if you know what it does")[0]
        return NotTrusted(
            f"{wrong}; if you know what it does, type: {line}", "", key=self.key or ""
        )


def trusted() -> list[str]:
    """Return the names of the trusted packages."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def is_package(name: str) -> bool:
    """Return whether ``name`` can be the name of an importable package."""
    return re.fullmatch(_NAME, name) is not None and len(name) <= 100


def resume_line(path: Path, *overrides: str, packages: Sequence[str] = ()) -> str:
    """Return the command that continues what lies in ``path``.

    It trusts ``packages``, those that are trusted now and those whose environments this process
    has run.
    """
    names = dict.fromkeys([*packages, *trusted(), *_typed])
    trust = ["--trust", ",".join(names)] if names else []
    return shlex.join(["rlrun", "resume", str(path), *overrides, *trust])


@contextmanager
def trusting(packages: Sequence[str]) -> Iterator[None]:
    """Trust ``packages`` within the context, in this process and in those it starts.

    Raises: ConfigError if one of them is not the name of a package; EnvError for other errors that
    their code raised in the context.
    """
    packages = [name.strip() for text in packages for name in text.split(",")]
    for name in packages:
        if not is_package(name):
            raise ConfigError(
                f"--trust {name}: is not a package; the name of an importable package is allowed; "
                "e.g. --trust mypkg"
            )
    before = os.environ.get(VARIABLE)
    if packages:
        os.environ[VARIABLE] = ",".join(dict.fromkeys([*trusted(), *packages]))
    try:
        yield
    except RlrunError:
        raise
    except (Exception, SystemExit) as e:
        if fault := fault_of_users(e):
            raise fault from e
        raise
    finally:
        if packages:
            os.environ.pop(VARIABLE)
            os.environ.update({} if before is None else {VARIABLE: before})


def trust_only(packages: Sequence[str]) -> None:
    """Trust ``packages`` and no others until this process ends.

    A process has the environment variables of the fork server, which may be older than the trust.
    """
    os.environ[VARIABLE] = ",".join(packages)


def fault_of_users(error: BaseException) -> EnvError | None:
    """Return the error of a user's policy or cell that raised ``error``; None: only rlrun ran.

    Its place is the innermost line of a trusted package.
    """
    place, trace = None, error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if _is_trusted(module):
            place = f"{module}, line {trace.tb_lineno}"
        trace = trace.tb_next
    if place is None:
        return None
    text = " ".join(str(error).split()) or "(no message)"
    return EnvError(
        f"{place}: raised {type(error).__name__}: {text}; a policy or cell must not raise; correct "
        "it (RLRUN_DEBUG=1 shows the traceback)"
    )


@contextmanager
def users_class(key: str, name: str) -> Iterator[None]:
    """Raise the errors of the context as EnvError if ``name`` is a user's class, which it makes."""
    try:
        yield
    except Exception as e:
        if ":" not in name or isinstance(e, RlrunError):
            raise
        wrong = f"it raised {type(e).__name__}: {' '.join(str(e).split()) or '(no message)'}"
        raise EnvError(
            f"{key} = {name}: {wrong}; what its base class takes and returns is allowed; correct "
            "it (RLRUN_DEBUG=1 shows the traceback)"
        ) from e


def import_named(module: str) -> ModuleType:
    """Import the module that a user typed. The working directory is searched last."""
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())  # kept: worker processes and unpickling import it again
    return import_module(module)


_typed: dict[str, None] = {}  # packages of environments that command lines of this process named


def note_typed_env(env_id: str) -> None:
    """Note that a command line of this process runs ``env_id``: files may name its package too."""
    if module := module_of(env_id):
        _typed[module.partition(".")[0]] = None


def forget_typed_envs() -> None:
    """A command line trusts what it names itself."""
    _typed.clear()


def require_trusted_env(env_id: str) -> None:
    """Raise ConfigError if a file's ``env.id`` would import a package that is not trusted.

    ``mypkg:Env-v0`` and ``pettingzoo:mypkg.mod`` do; ids of Gymnasium and of rlrun's extras do not.
    """
    module = module_of(env_id)
    if module and not (_is_trusted(module) or module.partition(".")[0] in _typed):
        raise _not_trusted("env.id", env_id, module)


def module_of(env_id: str) -> str:
    """Return the module of a user's that ``env_id`` imports, or "" for none."""
    name = env_id.removeprefix("pettingzoo:")
    module, colon, _ = name.rpartition(":")
    if not colon and name != env_id and "/" not in name and "-v" not in name:
        module = name  # parsed as in rlrun.env.agents
    known = not module or (_installed(module) and module.partition(".")[0] in ENVIRONMENTS)
    return "" if known else module


def _installed(module: str) -> bool:
    try:
        return find_spec(module.partition(".")[0]) is not None
    except ValueError:
        return False


def _is_trusted(module: str) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in trusted())


def trusted_function(key: str, name: str) -> Callable[..., Any]:
    """Return the function ``mypkg.mod:function``, imported only if its package is trusted.

    Raises: ConfigError naming ``key``: not of that form, not trusted, not importable, or not a
    function.
    """
    function: Callable[..., Any] = _trusted(key, name, "function", callable)
    return function


def trusted_class(key: str, name: str) -> type[Any]:
    """Return the class ``mypkg.mod:Class``, as ``trusted_function`` does."""
    cls: type[Any] = _trusted(key, name, "Class", lambda x: isinstance(x, type))
    return cls


def _trusted(key: str, name: str, form: str, fits: Callable[[Any], bool]) -> Any:
    kind, found_form = form.lower(), re.fullmatch(rf"({_NAME}):([^\W\d]\w*)", name)
    if not found_form:
        allowed = f"mypkg.mod:{form} is allowed"
        raise _refused(key, name, f"names no {kind}", allowed, "name both")
    module, attribute = found_form[1], found_form[2]
    if not _is_trusted(module):
        raise _not_trusted(key, name, module)
    try:
        imported = import_named(module)
    except (Exception, SystemExit) as e:  # a user's module may raise anything
        wrong = f"importing {module} raised {type(e).__name__}: {' '.join(str(e).split())}"
        fix = "install the package, or put its directory on PYTHONPATH"
        raise _refused(key, name, wrong, "an importable module is allowed", fix) from e
    wanted = getattr(imported, attribute, None)
    if not fits(wanted):
        wrong = f"{module} has no {kind} {attribute}"
        names = ", ".join(n for n, x in vars(imported).items() if n[0] != "_" and fits(x))
        raise _refused(key, name, wrong, f"there are: {names or 'none'}", "correct the name")
    return wanted


def _not_trusted(key: str, name: str, module: str) -> NotTrusted:
    package = module.partition(".")[0]
    wrong = f"the package {package} is not trusted, so none of it is run"
    allowed = f"packages named by --trust or {VARIABLE} are allowed, not those of a config"
    fix = f"if you know what it does, add --trust {package}"
    return NotTrusted(str(_refused(key, name, wrong, allowed, fix)), package, key=key)


def flags_of(words: Sequence[object]) -> tuple[list[str], list[str]]:
    """Return (packages of --trust, the other words). The flag may be anywhere and repeat."""
    packages, rest, left = [], [], iter([str(word) for word in words])
    for word in left:
        flag, equals, value = word.partition("=")
        if flag != "--trust":
            rest.append(word)
        else:
            packages += [name.strip() for name in (value if equals else next(left, "")).split(",")]
    return packages, rest


def packages_of(command: object, env_id: str = "") -> list[str]:
    """Return the packages that the recorded ``command`` of a run trusted or ``env_id`` imports.

    They are to be shown, not to be trusted.
    """
    names = flags_of(command)[0] if isinstance(command, list) else []
    names.append(module_of(env_id).partition(".")[0])
    return [name for name in dict.fromkeys(names) if is_package(name)]


def _refused(key: str, name: str, wrong: str, allowed: str, fix: str) -> ConfigError:
    return ConfigError(f"{key} = {name}: {wrong}; {allowed}; {fix}")
