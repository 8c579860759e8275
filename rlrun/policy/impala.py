"""IMPALA's learner: an actor-critic with V-trace, on rollouts of a policy that may lag behind.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures", ICML 2018. The lag is 0 with pipeline=serial, one chunk with pipeline=overlapped.
"""

from rlrun.functional.policy import explained_variance, reinforce_grad, valid_rows, value_loss
from rlrun.functional.returns import vtrace
from rlrun.policy.base.on_policy import RolloutPolicy
from rlrun.policy.base.rollout import Loss, Rows, join, opening, told
from rlrun.schema import IMPALAConfig
from rlrun.types import Sample, Update


class IMPALA(RolloutPolicy[IMPALAConfig]):
    """Draws actions from its distribution and learns from them once, importance-weighted."""

    def update(self, sample: Sample) -> Update:
        """One gradient step on a whole rollout, by whatever earlier policy its actions are."""
        rows = self.descender.read(sample.segment)
        out = self.loss(rows)
        stepped = self.descender.step(out, sample.env_steps)
        self.descender.absorb(rows)
        return Update(None, out.metrics | stepped)

    def loss(self, rows: Rows) -> Loss:
        """Policy gradient and value error towards V-trace targets, and the entropy bonus."""
        c, real = self.config, valid_rows(rows.valid)
        net, began = self.descender, opening(rows.states)
        head, value = net.outputs(rows.obs, rows.side, rows.first, began)
        choice = net.evaluate_actions(head[:-1], rows.action)
        log_ratio = choice.log_prob.detach() - rows.behaviour
        found = vtrace(
            log_ratio, rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.vtrace_lambda,
            rho_clip=c.rho_clip, c_clip=c.c_clip,
        )  # fmt: skip
        gain = found.advantage
        extra = {"train/rho_clipped": real.mean((log_ratio.exp() > c.rho_clip).float())}
        now = value[:-1]
        baseline = value_loss(now, found.target, real, old=None, clip=None)
        out = join(c, choice, reinforce_grad(gain, real), now, baseline.grad, real)
        policy = -real.mean(gain * choice.log_prob.detach())
        metrics = told(c, policy, baseline.loss, choice, real) | extra
        metrics["train/explained_variance"] = explained_variance(now, found.target, real)
        return out._replace(metrics=metrics)
