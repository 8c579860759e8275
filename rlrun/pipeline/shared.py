"""Evaluation in the one environment that collects (env.instances=1)."""

from collections.abc import Callable

from rlrun.pipeline.collector import Collector
from rlrun.pipeline.evaluate import Evaluation, Evaluator
from rlrun.pipeline.watch import Watch
from rlrun.schema import Config
from rlrun.types import Policy


class SharedEvaluator(Evaluator):
    """Plays evaluation episodes in the environment of ``collector``, between its episodes.

    An evaluation that is due waits for the end of the open episode, until the next one is due at
    the latest; that and the one at the end of a run cut the open episode. Rollouts of on-policy
    policies are not shortened: theirs cut the open episode.
    """

    def __init__(self, config: Config, collector: Collector, *, seed: int) -> None:
        super().__init__(
            config.env,
            episodes=config.run.eval_episodes,
            seed=seed,
            max_steps=config.eval.max_episode_steps,
            agents=config.agents,
            envs=1,
            env=collector.env,
        )
        self.collector, self.waits = collector, not config.policy.on_policy

    def ready(self) -> bool:
        """Return whether an evaluation that is due cuts no episode; let the collector end its."""
        self.collector.wanted = self.waits
        return not self.waits or bool(self.collector.ended.all())

    def run_until(
        self,
        stop: Callable[[], bool],
        policy: Policy,
        *,
        env_steps: int,
        watch: Watch | None = None,
    ) -> Evaluation | None:
        with self.collector.lent_env():
            return super().run_until(stop, policy, env_steps=env_steps, watch=watch)

    def close(self) -> None:
        """Do nothing: the collector closes its environment."""
