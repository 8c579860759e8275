"""One window of a value-based policy, row by row and number by number, with gradients.

``policy`` is a DQN (which is R2D2 without burn-in, with one learned row and no memory) or an R2D2.
"""

import math

import torch

from rlrun.functional.value import rescale, unrescale
from rlrun.nets.noise import ForwardNoise
from rlrun.types import tree_map
from tests.reference import distributional as naive
from tests.reference.traces import target_of


def one_window(policy, segment, b, draws):
    """(loss as a tensor with gradient, [surprise of every valid learned row])."""
    c, w = policy.config, policy.window
    single = c.name == "dqn"
    said = _walk(policy, segment, b, draws, single)
    total, surprises = torch.zeros(()), []
    for p in range(w.burnin, w.burnin + w.learned):
        if not segment.valid[p, b]:
            continue
        taken = said["online", p][segment.action[p, b]]
        if c.trace != "nstep":
            delta = _trace_target(policy, segment, b, p, said) - taken
            total = total + 0.5 * delta**2 / w.learned
            surprises.append(abs(float(delta.detach())))
            continue
        reward, k, dead = _return(policy, segment, b, p, said, single)
        later = None if dead else _bootstrap(policy, segment, b, p + k, said)
        loss, surprise = _compare(c, taken, reward, 0.0 if dead else c.gamma**k, later, said, p)
        total = total + loss / w.learned
        surprises.append(surprise)
    return total, surprises


def _walk(policy, segment, b, draws, single):
    """Outputs of each network for every row: {(network, row): [A] or [A, N]}."""
    c, w, out = policy.config, policy.window, {}
    nets = {"online": policy.net, "target": policy.target}
    passes = {"online": draws.online, "target": draws.target}
    if single:
        nets |= {"select": policy.net, "bonus": policy.target}
        passes |= {"select": draws.choice, "bonus": ForwardNoise(draws.target.layers)}
    state = tree_map(lambda x: x[b : b + 1], segment.state)
    states = dict.fromkeys(nets, state)
    valid = [bool(v) for v in segment.valid[:, b]] + [False]
    began = False
    action, reward = segment.extras["prev_action"][b], segment.extras["prev_reward"][b]
    for p in range(w.rows):
        if not (valid[p] or (p > 0 and valid[p - 1] and not segment.terminated[p - 1, b])):
            continue
        if began:
            action, reward = segment.action[p - 1, b], segment.reward[p - 1, b]
        began = True
        if segment.first[p, b]:
            action, reward = torch.tensor(-1), torch.tensor(0.0)
        previous = policy.net.encode_previous(
            action[None, None], (reward * c.reward_scale)[None, None].float()
        )
        obs = tree_map(lambda x, p=p: x[p, b][None, None], segment.obs)
        for who, net in nets.items():
            taus = passes[who].taus
            if taus is not None:
                taus = taus[b] if single else taus[max(p - w.burnin, 0), b]
            draw = ForwardNoise(passes[who].layers, None if taus is None else taus[None, None])
            with torch.set_grad_enabled(p >= w.burnin):
                value, states[who] = net.unroll(net.inputs(obs, previous), states[who], draw)
            out[who, p] = value[0, 0]
        taus = passes["online"].taus
        if taus is not None:
            out["levels", p] = taus[b] if single else taus[max(p - w.burnin, 0), b]
        if "action_mask" in (segment.obs if isinstance(segment.obs, dict) else {}):
            out["mask", p] = [bool(x) for x in segment.obs["action_mask"][p, b]]
    if not single:
        out |= {("bonus", p): x for (who, p), x in out.items() if who == "target"}
        out |= {("select", p): x for (who, p), x in out.items() if who == "online"}
    return out


def _means(c, said):
    if c.distribution == "none":
        return [float(x) for x in said]
    if c.distribution == "categorical":
        return [sum(p * z for p, z in zip(x, _atoms(c), strict=True)) for x in _softmaxed(said)]
    return [float(x.mean()) for x in said]


def _softmaxed(said):
    return [naive.softmax(x.tolist(), 1.0) for x in said]


def _atoms(c):
    return [c.v_min + i * (c.v_max - c.v_min) / (c.atoms - 1) for i in range(c.atoms)]


def _return(policy, segment, b, p, said, single):
    c, total, k, dead = policy.config, 0.0, 0, False
    rows = len(segment.valid)
    while k < c.nstep and p + k < rows and segment.valid[p + k, b]:
        reward = float(segment.reward[p + k, b]) * c.reward_scale
        if c.munchausen is not None:
            q = _means(c, said["bonus", p + k])
            pi = naive.softmax(q, c.munchausen_tau, said.get(("mask", p + k)))
            own = pi[segment.action[p + k, b]]
            log = c.munchausen_tau * math.log(own) if own > 0 else -math.inf
            reward += c.munchausen * min(max(log, c.munchausen_clip), 0.0)
        total += c.gamma**k * reward
        k += 1
        dead = bool(segment.terminated[p + k - 1, b])
        if dead or segment.truncated[p + k - 1, b]:
            break
    return total, k, dead


def _trace_target(policy, segment, b, p, said):
    """h of the target of row ``p`` of real values, along the rows of its window."""
    c, rows, eps = policy.config, range(policy.window.rows), policy.config.value_rescale_eps
    actions = len(said["online", p])
    none = torch.zeros(actions)

    def outputs(who, real):
        found = [said.get((who, row), none).detach() for row in rows]
        return [(unrescale(x, eps) if real and eps else x).tolist() for x in found]

    def column(x):
        return x[:, b].tolist()

    y = target_of(
        c.trace, p, q=outputs("target", True),
        choice=outputs("select" if c.double else "target", False),
        allowed=[said.get(("mask", row), [True] * actions) for row in rows],
        reward=column(segment.reward * c.reward_scale), action=column(segment.action),
        mu=column(segment.extras["log_prob"].exp()), terminated=column(segment.terminated),
        truncated=column(segment.truncated), valid=column(segment.valid), gamma=c.gamma,
        trace=c.trace_lambda, epsilon=c.trace_epsilon,
    )  # fmt: skip
    return float(rescale(torch.tensor(y), eps)) if eps else y


def _bootstrap(policy, segment, b, row, said):
    """Numbers [N] (one for Q itself), or (atoms' probabilities)."""
    c, target = policy.config, said["target", row].detach()
    spread = [[float(x)] for x in target] if target.ndim == 1 else target.tolist()
    if c.distribution == "categorical":
        spread = _softmaxed(target)
    mask = said.get(("mask", row)) or [True] * len(spread)
    if c.munchausen is not None:
        pi = naive.softmax(_means(c, target), c.munchausen_tau, mask)
        out = [0.0] * len(spread[0])
        for p, values in zip(pi, spread, strict=True):
            if p > 0:
                soft = -c.munchausen_tau * math.log(p)
                out = [o + p * (v + soft) for o, v in zip(out, values, strict=True)]
        return out
    q = _means(c, said["select" if c.double else "target", row].detach())
    best = max((x, -a) for a, (x, m) in enumerate(zip(q, mask, strict=True)) if m)
    return spread[-best[1]]


def _compare(c, taken, reward, discount, later, said, p):
    def target(value):
        if c.value_rescale_eps is None:
            return reward + discount * value
        inner = float(unrescale(torch.tensor(value), c.value_rescale_eps))
        return float(rescale(torch.tensor(reward + discount * inner), c.value_rescale_eps))

    if c.distribution == "none":
        y = target(later[0] if later else 0.0)
        delta = y - taken
        return 0.5 * delta**2, abs(float(delta.detach()))
    if c.distribution == "categorical":
        atoms = _atoms(c)
        p_later = later or [1 / c.atoms] * c.atoms
        m = naive.project([target(z) for z in atoms], p_later, atoms)
        log_p = taken.log_softmax(-1)
        loss = -sum(x * log_p[i] for i, x in enumerate(m))
        entropy = -sum(x * math.log(x) for x in m if x > 0)
        return loss, float(loss.detach()) - entropy
    goals = [target(z) for z in later] if later else [target(0.0)]
    levels = [(2 * i + 1) / (2 * len(taken)) for i in range(len(taken))]
    if c.distribution == "implicit":
        levels = said["levels", p].tolist()
    loss = naive.quantile_loss(taken, goals, levels, c.kappa)
    return loss, abs(sum(goals) / len(goals) - float(taken.detach().mean()))
