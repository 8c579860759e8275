"""IMPALA's learner: an actor-critic with V-trace, on rollouts of an earlier policy.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures", ICML 2018. The lag is 0 with pipeline=serial, one chunk with pipeline=overlapped.
"""

from rlrun.functional.policy import explained_variance, reinforce_grad, valid_rows, value_loss
from rlrun.functional.returns import vtrace
from rlrun.policy.base.on_policy import OnPolicy
from rlrun.policy.base.rollout import (
    ActorCriticLoss,
    RolloutRows,
    first_states,
    loss_metrics,
    make_loss,
)
from rlrun.schema import IMPALAConfig
from rlrun.types import Sample, Update


class IMPALA(OnPolicy[IMPALAConfig]):
    """Samples actions from the policy and learns from them once, importance-weighted."""

    def update(self, sample: Sample) -> Update:
        """One gradient step on a whole rollout, whose actions may be an earlier policy's."""
        rows = self.learner.prepare(sample.segment)
        out = self.loss(rows)
        stepped = self.learner.step(out, sample.env_steps)
        self.learner.update_obs_moments(rows)
        return Update(None, out.metrics | stepped)

    def loss(self, rows: RolloutRows) -> ActorCriticLoss:
        """Policy gradient and value error towards V-trace targets, and the entropy bonus."""
        c, valid = self.config, valid_rows(rows.valid)
        net, state = self.learner, first_states(rows.states)
        head, value = net.outputs(rows.obs, rows.previous, rows.first, state)
        choice = net.evaluate_actions(head[:-1], rows.action)
        log_ratio = choice.log_prob.detach() - rows.behaviour_log_prob
        advantages = vtrace(
            log_ratio, rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.vtrace_lambda,
            rho_clip=c.rho_clip, c_clip=c.c_clip,
        )  # fmt: skip
        advantage = advantages.advantage
        extra = {"train/rho_clipped": valid.mean((log_ratio.exp() > c.rho_clip).float())}
        current = value[:-1]
        value_term = value_loss(current, advantages.target, valid, old=None, clip=None)
        out = make_loss(
            c, choice, reinforce_grad(advantage, valid), current, value_term.grad, valid
        )
        policy = -valid.mean(advantage * choice.log_prob.detach())
        metrics = loss_metrics(c, policy, value_term.loss, choice, valid) | extra
        metrics["train/explained_variance"] = explained_variance(current, advantages.target, valid)
        return out._replace(metrics=metrics)
