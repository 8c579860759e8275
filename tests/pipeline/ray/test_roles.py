"""What the driver knows of its roles: their logs and how often each was restarted."""

from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.roles import CollectorHandle, Role, Roles
from rlrun.pipeline.ray.traffic import RoleTraffic


def test_the_predictor_is_a_role_as_the_others_in_logs_and_metrics(tmp_path):
    roles = Roles.__new__(Roles)
    roles.directory, roles.shards = tmp_path / "roles", []
    roles.collectors, roles.predictor = [CollectorHandle("collector 0", None)], Role("predictor", 0)
    roles.learner, roles.evaluator = Role("learner", None), Role("evaluator", None)
    answers = {"sizes": (0, 0, 0.0), "take_log": ("INFO began",)}
    roles.ask = lambda role, method: answers[method]
    roles.note_lost(roles.predictor, Lost(None))
    assert RoleTraffic(roles).metrics()["ray/restarts"] == 1
    assert (tmp_path / "roles" / "predictor.log").read_text() == "INFO began\n"
    roles.predictor = None
    assert RoleTraffic(roles).metrics()["ray/restarts"] == 0
