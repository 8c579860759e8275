"""Values of environment variables do not appear in messages."""

import pytest

from rlrun import errors

SECRET = "hunter2-is-my-password"


@pytest.fixture(autouse=True)
def variable(monkeypatch):
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setattr("rlrun.errors._secrets", {})


@pytest.mark.parametrize(
    "override",
    [
        "policy.lr=${oc.env:SECRET}",
        "env.id=x${oc.env:SECRET}y-v0",
        "torso.hidden=[1,${oc.env:SECRET}]",
        "env.kwargs.a=${oc.env:SECRET}",
        "buffer.load=${oc.env:SECRET}",
        "policy.gamma='${oc.decode:${oc.env:SECRET}}'",
        "run.dir=${oc.env:SECRET}/${nope}",
        "env.id=" + "x" * 110 + "${oc.env:SECRET}",  # cut in the middle of it
    ],
)
def test_not_in_errors(rlrun, override):
    done = rlrun(override)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "hunter2" not in done.err
    assert "SECRET" in done.err or "xxxx" in done.err


def test_short_values_are_whole_words():
    errors.remember("1", "ONE")
    assert errors.redact("seed = 1: 11 is 1.") == "seed = ${oc.env:ONE}: 11 is ${oc.env:ONE}."
    errors.remember(r"a\1b c", "ODD")
    assert errors.redact(r"x a\1b c") == "x ${oc.env:ODD}"


def test_not_in_a_crash(rlrun, build, tmp_path):
    build.codes[7] = RuntimeError(f"{SECRET} is wrong")
    done = rlrun("env=cartpole", "seed=7", "run.dir=x", "env.note=${oc.env:SECRET}")
    assert done.code == 9
    assert SECRET not in done.err + done.out
    texts = [p.read_text() for p in tmp_path.rglob("*") if p.is_file()]
    assert not any(SECRET in text for text in texts)
