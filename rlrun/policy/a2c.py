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
from rlrun.policy.base.on_policy import OnPolicy
from rlrun.policy.base.rollout import (
    ActorCriticLoss,
    RolloutRows,
    first_states,
    loss_metrics,
    make_loss,
)
from rlrun.schema import A2CConfig
from rlrun.types import Sample, Update


class A2C(OnPolicy[A2CConfig]):
    """Samples actions from the policy and learns from them once."""

    def update(self, sample: Sample) -> Update:
        """One gradient step on a whole rollout, whose actions are the current policy's."""
        rows = self.learner.prepare(sample.segment)
        out = self.loss(rows)
        stepped = self.learner.step(out, sample.env_steps)
        self.learner.update_obs_moments(rows)
        return Update(None, out.metrics | stepped)

    def loss(self, rows: RolloutRows) -> ActorCriticLoss:
        """Policy gradient, half the squared error of V and the entropy bonus of a rollout."""
        c, valid = self.config, valid_rows(rows.valid)
        net, state = self.learner, first_states(rows.states)
        head, value = net.outputs(rows.obs, rows.previous, rows.first, state)
        choice = net.evaluate_actions(head[:-1], rows.action)
        advantages = gae(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        advantage = (
            standardise(advantages.advantage, valid)
            if c.normalize_advantage
            else advantages.advantage
        )
        current = value[:-1]
        value_term = value_loss(current, advantages.target, valid, old=None, clip=None)
        out = make_loss(
            c, choice, reinforce_grad(advantage, valid), current, value_term.grad, valid
        )
        policy = -valid.mean(advantage * choice.log_prob.detach())
        metrics = loss_metrics(c, policy, value_term.loss, choice, valid)
        metrics["train/explained_variance"] = explained_variance(current, advantages.target, valid)
        return out._replace(metrics=metrics)
