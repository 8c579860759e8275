"""pipeline=ray: what is refused before anything starts, in one line."""

import socket

import pytest

from rlrun.config import Composer, check, checks, config_errors, load, ray
from rlrun.config.compose import to_yaml
from rlrun.errors import ConfigError, ResourceError
from tests.compose import config
from tests.in_process import assert_one_error

RAY = ("policy=r2d2", "env=cartpole", "pipeline=ray")


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "[::1]:6379", "localhost:6379", "auto"])
def test_a_cluster_on_this_machine_needs_no_token(address, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(checks, "require_head", lambda address: None)
    check(config(*RAY, f"pipeline.address='{address}'"))


def test_a_token_opens_other_clusters(monkeypatch, tmp_path):
    """One of the environment or of a file; RAY_AUTH_MODE=token without one opens nothing."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(checks, "require_head", lambda address: None)
    c = config(*RAY, "pipeline.address=10.0.0.9:6379")
    with pytest.raises(ConfigError, match="RAY_AUTH_TOKEN"):
        check(c)
    (tmp_path / "token").write_text("0" * 64)
    check(c)
    (tmp_path / "token").unlink()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    check(c)


@pytest.mark.parametrize("package", ["ray", "psutil"])
def test_without_the_extra_one_line_says_what_to_install(package, monkeypatch):
    found = config_errors.find_spec
    monkeypatch.setattr(config_errors, "find_spec", lambda n: None if n == package else found(n))
    with pytest.raises(ResourceError, match=rf"{package}.*\[ray\]"):
        check(config(*RAY))


def test_a_head_that_accepts_and_never_answers_is_given_up(monkeypatch, capfd):
    """Ray itself would try for minutes, and print lines of its own."""
    monkeypatch.setattr(ray, "ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ResourceError, match=r"pipeline\.address"):
            check(config(*RAY, f"pipeline.address='{address}'"))
    with pytest.raises(ResourceError, match=r"pipeline\.address"):  # nobody listens any more
        check(config(*RAY, f"pipeline.address='{address}'"))
    assert capfd.readouterr() == ("", "")


def stored(tmp_path, *overrides):
    """The directory of a run whose config a stranger wrote."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(to_yaml(Composer().compose([*RAY, *overrides])))
    return run


@pytest.mark.parametrize(
    ("key", "value"), [("pipeline.address", "127.0.0.1:6379"), ("logger.mlflow", "http://x/")]
)
def test_an_address_of_a_stored_config_is_shown_and_not_used(tmp_path, key, value):
    run = stored(tmp_path, f"{key}='{value}'")
    with pytest.raises(ConfigError, match=f"{key} = {value}"):
        load(run)
    with pytest.raises(ConfigError, match=f"{key} = {value}"):
        load(run, ["run.dir=new"], fork=True)
    group, name = key.split(".")
    load(run, replay=False)  # nothing goes on: eval, play, export
    for typed in ("127.0.0.1:1", value):
        config, text = load(run, [f"{key}='{typed}'"])
        assert getattr(getattr(config, group), name) == typed
        assert typed in text
    assert getattr(getattr(load(run, [f"{key}=null"])[0], group), name) is None


def test_an_address_in_a_yaml_file_is_not_used(rlrun, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/far.yaml").write_text(
        "# @package _global_\npipeline: {address: '127.0.0.1:9'}\n"
    )
    words = [*RAY, "experiment=far", "--config-dir", "."]
    for more in ([], ["-m", "seed=0,1"]):
        assert_one_error(rlrun(*words, *more), "pipeline.address = 127.0.0.1:9")
