"""A2C: the advantage actor-critic, one gradient step on every rollout.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", ICML 2016, without the threads:
all environments step together. Generalised advantages (Schulman et al. 2016); lambda 1 is A3C's.
"""

from rlrun.functional.policy import (
    explained_variance,
    reinforce_grad,
    standardise,
    valid_rows,
    value_loss,
)
from rlrun.functional.returns import gae
from rlrun.policy.base.on_policy import RolloutPolicy
from rlrun.policy.base.rollout import Loss, Rows, join, opening, told
from rlrun.schema import A2CConfig
from rlrun.types import Sample, Update


class A2C(RolloutPolicy[A2CConfig]):
    """Draws actions from its distribution and learns from them once."""

    def update(self, sample: Sample) -> Update:
        """One gradient step on a whole rollout, whose actions are the present policy's."""
        rows = self.descender.read(sample.segment)
        out = self.loss(rows)
        stepped = self.descender.step(out, sample.env_steps)
        self.descender.absorb(rows)
        return Update(None, out.metrics | stepped)

    def loss(self, rows: Rows) -> Loss:
        """Policy gradient, half the squared error of V and the entropy bonus of a rollout."""
        c, real = self.config, valid_rows(rows.valid)
        net, began = self.descender, opening(rows.states)
        head, value = net.outputs(rows.obs, rows.side, rows.first, began)
        choice = net.evaluate_actions(head[:-1], rows.action)
        found = gae(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        gain = standardise(found.advantage, real) if c.normalize_advantage else found.advantage
        now = value[:-1]
        baseline = value_loss(now, found.target, real, old=None, clip=None)
        out = join(c, choice, reinforce_grad(gain, real), now, baseline.grad, real)
        policy = -real.mean(gain * choice.log_prob.detach())
        metrics = told(c, policy, baseline.loss, choice, real)
        metrics["train/explained_variance"] = explained_variance(now, found.target, real)
        return out._replace(metrics=metrics)
