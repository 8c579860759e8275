"""Probes: tiny environments whose best return needs one property of a recurrent learner.

Every probe has a best return of 1 and a ``bound``: what an implementation without the property can
reach, whatever its settings. It passes if its greedy return is above ``pass_mark``, half-way
between the two. The bound follows from the environment alone (its docstring has the arithmetic), on
three conditions: nothing but the observation enters the network, so previous actions and rewards
are switched off except in ``previous``; sequences are not longer than ``window``; the discount is
0.9. ``control=True`` is the same task without the trap, to be learned first with the same settings.
Controls of ``reset``, ``own`` and ``stored`` show the answer, so they do not say whether the
settings can learn to remember: there a miss counts if other seeds and minibatch sizes miss, too.
``evaluation=True`` is the variant that is scored.

Needs numpy and gymnasium only, also as a single file: ``make("reset")``, or with rlrun installed
``import rlrun.env; gymnasium.make("rlrun/Conform-v0", probe="reset")``.

Observations are float32 [12] of zeros and ones: positions 0 to 7 are doors, 8 and 9 a cue, 10 and
11 marks. A row is blank if all are 0. There are two actions, four in ``mask``, ``last`` and
``one``. "Row 0" is the first of an episode. Rows that decide are followed by ``TAIL`` blank ones,
except where the end is the trap.
"""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SIZE, DOORS, CUE, ASK, MARK = 12, 8, 8, 10, 11  # of the observation: size, doors, positions
RIGHT = (0, 1, 1, 0, 1, 0, 0, 1)  # the action wanted at each door: a constant is right at half
ONE_OF_FOUR = (0, 1, 2, 3, 3, 2, 1, 0)  # the same of four actions
TAIL = 2  # blank rows after the last one that decides
METADATA: dict[str, Any] = {"render_modes": []}
GOES_ON, TERMINATED, TRUNCATED = "", "terminated", "truncated"


class Probe(gym.Env[Any, Any]):
    """Base class. Subclasses define ``begin``, ``seen`` and ``act``.

    ``box``: actions are continuous, a number for each action of which the largest is taken.
    """

    bound: ClassVar[float] = 0.0  # largest return without the property
    window: ClassVar[int | None] = None  # longest sequence, in rows, for which the bound holds
    needs: ClassVar[str] = ""  # further settings under which the bound holds
    actions: ClassVar[int] = 2
    metadata = METADATA

    def __init__(
        self, *, control: bool = False, evaluation: bool = False, box: bool = False
    ) -> None:
        self.control, self.evaluation, self.box, self.t = control, evaluation, box, 0
        self.observation_space: gym.Space[Any] = spaces.Box(0, 1, (SIZE,), np.float32)
        self.action_space: gym.Space[Any] = spaces.Discrete(self.actions)
        if box:
            self.action_space = spaces.Box(-1, 1, (self.actions,), np.float32)

    @classmethod
    def pass_mark(cls) -> float:
        """Return the return above which an implementation passes."""
        return (1 + cls.bound) / 2

    def begin(self) -> None:
        """Sample what the episode hides."""

    def seen(self) -> tuple[int, ...]:
        """Return the positions of the present observation that are 1."""
        raise NotImplementedError

    def act(self, action: int) -> tuple[float, str]:
        """Return the reward of row ``t`` and how it ends: GOES_ON, TERMINATED or TRUNCATED."""
        raise NotImplementedError

    def observation(self) -> Any:
        obs = np.zeros(SIZE, np.float32)
        obs[list(self.seen())] = 1
        return obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.begin()
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, end = self.act(int(np.argmax(action)) if self.box else int(action))
        self.t += 1
        return self.observation(), float(reward), end == TERMINATED, end == TRUNCATED, {}


# -- recurrent state -------------------------------------------------------------------------------


class Reset(Probe):
    """The state is reset at an episode's first row.

    All rows are blank, and every row ends the episode with probability 1/2. Action 1 pays 1 in row
    0 and costs 1 in all later rows; action 0 pays nothing.

    Trap: the observation never says that an episode began. Best 1: action 1 in row 0 alone. Without
    a reset no input depends on where episodes begin, so action 1 has the same probability p in
    every row: p - p E[later rows] = p - p = 0. Reset one row late, only row 1 is known; of the
    others 2/3 are first rows, and action 1 in all of them gives 1 - 1/2 (the later rows after row
    1): 1/2.
    Control: row 0 is marked.
    """

    bound = 0.5
    stay = 0.5  # probability that an episode goes on

    def seen(self) -> tuple[int, ...]:
        return (MARK,) if self.control and self.t == 0 else ()

    def act(self, action: int) -> tuple[float, str]:
        reward = action * (1.0 if self.t == 0 else -1.0)
        return reward, GOES_ON if self.np_random.random() < self.stay else TERMINATED


class Fresh(Reset):
    """Evaluations start from the initial state.

    The task of ``reset``; the score is the return of the first episode of every environment in an
    evaluation that follows another one or some training.

    Trap: a state left over from training, or from the evaluation before, is one of a later row.
    Best 1. A policy that is right in later rows plays action 0 then and gets 0; one that plays
    action 1 in later rows with probability p loses p on average there, which is all that it gains
    in row 0: 0.
    Control: row 0 is marked.
    """

    bound = 0.0
    needs = "one episode per environment and evaluation"


class Burnin(Reset):
    """Rows of the burn-in, whose state is not theirs, are not learned.

    The task of ``reset`` in episodes of exactly 12 rows.

    Trap: with sequences of at most 4 rows that start from a zero state, at least 2/3 of their first
    rows are later rows of an episode and look like row 0. Best 1. If they are learned, action 1 in
    the zero state is worth at most 1/3 - 2/3 < 0: action 0 in row 0, return 0. With a burn-in of a
    row or more those rows are left out; a stored state makes them tell themselves apart.
    No environment can punish learning from a burn-in whose state is right: it costs nothing.
    Control: row 0 is marked.
    """

    bound = 0.0
    window = 4
    needs = "state from zero, burn-in of at least 1 row, where there is one"

    def act(self, action: int) -> tuple[float, str]:
        reward = action * (1.0 if self.t == 0 else -1.0)
        return reward, GOES_ON if self.t < 11 else TERMINATED


class Recall(Probe):
    """Base class: one of two cues in row 0, questions from row ``ask`` on.

    A question pays 1/``questions`` for the number of the cue and costs as much for the other one.
    Control: the cue is shown with the questions too.
    """

    asks: ClassVar[tuple[int, ...]] = (4,)  # rows of the first question, one of which is drawn
    questions: ClassVar[int] = 1

    def begin(self) -> None:
        self.cue = int(self.np_random.integers(2))
        self.ask = int(self.np_random.choice(self.asks))

    def asked(self) -> bool:
        return self.ask <= self.t < self.ask + self.questions

    def seen(self) -> tuple[int, ...]:
        asked = self.asked()
        shown = self.t == 0 or (asked and self.control)
        return (CUE + self.cue,) * shown + (ASK,) * asked

    def act(self, action: int) -> tuple[float, str]:
        reward = (1.0 if action == self.cue else -1.0) / self.questions * self.asked()
        last = self.ask + self.questions - 1 + TAIL
        return reward, GOES_ON if self.t < last else TERMINATED


class Late(Recall):
    """The reset does not come one row late.

    The cue is in row 0, the question in row 1.

    Trap: a state that is reset before row 1 instead of row 0 has lost the cue. Best 1. The cue is
    independent of every other input of row 1, so any action is right half of the time: 0.
    Control: a blank row comes first. The cue is in row 1 then, and memory is needed as before.
    """

    def begin(self) -> None:
        self.cue = int(self.np_random.integers(2))
        self.lead = int(self.control)
        self.ask = 1 + self.lead

    def seen(self) -> tuple[int, ...]:
        return (CUE + self.cue,) * (self.t == self.lead) + (ASK,) * (self.t == self.ask)


class Stored(Recall):
    """A sequence starts from the state of its own first row.

    The cue is in row 0, two questions in rows 4 and 5.

    Trap: no sequence of at most 4 rows holds both, so what is learned about a question sees the cue
    only in the state with which its sequence starts. Best 1. From a zero state, or the state
    of another episode, the cue is independent of all that is read: 0. (A state of this episode that
    is a row off still holds the cue; no return can tell that.)
    """

    window = 4
    questions = 2


class Own(Stored):
    """Minibatches keep each sequence with the state of its own environment.

    The task of ``stored`` in eight environments, with minibatches that do not hold all of them.

    Trap: cues of different environments are independent, so with the state of another one the cue
    is independent of all that is read: 0. Best 1. It differs from ``stored`` by the settings;
    passing that one with one environment and failing here shows that states change places.
    """

    needs = "eight environments, minibatches of fewer"


class Odd(Recall):
    """Sizes that do not divide one another lose and mix no rows.

    The question is in row 1, 2, 4 or 6; three environments, sequences of 5 rows, batches of 7.

    Trap: rows that are reshaped as if the sizes fitted are joined with another environment's, whose
    cue is independent of the question: 0. Best 1. Rows that are dropped, or a few of many that are
    mixed, go unseen, because the others still teach.
    """

    asks = (1, 2, 4, 6)
    window = 5
    needs = "three environments, batches of 7 sequences (or rows)"


class Previous(Probe):
    """Previous action and reward are those of the row before.

    All rows are blank. One of two arms, drawn for every episode, pays 1/2 in row 0, the other one
    costs 1/2. In row 1 the other arm pays 1, and this one costs 1.

    Trap: only the reward of row 0 tells the arms apart. Best 1 (0 in row 0, 1 in row 1). Without
    it, or with it one row later, the arm is independent of all inputs of row 1: 0. A network that
    is trained with the reward it is about to get learns that a reward of 1 belongs to the arm
    taken; acting with the row before's it repeats the arm that paid, which is wrong in row 1: -1.
    Control: the arm is shown in row 1.
    """

    needs = "previous action and reward as inputs of the network"

    def begin(self) -> None:
        self.arm = int(self.np_random.integers(2))

    def seen(self) -> tuple[int, ...]:
        return (CUE + self.arm,) if self.control and self.t == 1 else ()

    def act(self, action: int) -> tuple[float, str]:
        sign = 1.0 if action == self.arm else -1.0
        reward = {0: sign / 2, 1: -sign}.get(self.t, 0.0)
        return reward, GOES_ON if self.t < 1 + TAIL else TERMINATED


# -- ends of episodes ------------------------------------------------------------------------------


class Doors(Probe):
    """Base class: one of eight doors is drawn for every episode, and ``RIGHT`` is best at each."""

    def begin(self) -> None:
        self.door = int(self.np_random.integers(DOORS))


class Last(Doors):
    """The last row of an episode is learned.

    Three blank rows, then a door, and the episode ends: terminated at even doors, truncated at odd
    ones. One of four actions (``ONE_OF_FOUR``) pays 1, the others cost 1/3.

    Trap: the only row that pays is the last. Best 1. A policy that has learned nothing about it is
    right by chance, 0 on average and above the pass mark with probability 1/2600. If only truncated
    or only terminated rows are lost: 1/2 on average. Control: two more rows follow.
    """

    bound = 0.5
    actions = 4
    lead = 3  # rows before the door

    def seen(self) -> tuple[int, ...]:
        return (self.door,) if self.t == self.lead else ()

    def act(self, action: int) -> tuple[float, str]:
        reward = 0.0
        if self.t == self.lead:
            reward = 1.0 if action == ONE_OF_FOUR[self.door] else -1 / 3
        end = TRUNCATED if self.door % 2 else TERMINATED
        return reward, GOES_ON if self.t < self.lead + TAIL * self.control else end


class One(Last):
    """Episodes of one row are learned.

    The task of ``last`` without the blank rows.

    Trap: an episode is a door and its end, shorter than any sequence, n-step return or pair of
    rows. Best 1; dropped 0, and 1/2 if only truncated or only terminated ones are lost. In
    training, half of the episodes are a mark and blank rows instead, which pay nothing: they teach
    the value of the row behind a truncation, which no episode of one row gets to.
    Control: two more rows follow.
    """

    lead = 0

    def begin(self) -> None:
        super().begin()
        self.idle = not self.evaluation and self.np_random.random() < 0.5

    def seen(self) -> tuple[int, ...]:
        return super().seen() if not self.idle else (MARK,) if self.t == 0 else ()

    def act(self, action: int) -> tuple[float, str]:
        if self.idle:
            return 0.0, GOES_ON if self.t < TAIL else TERMINATED
        return super().act(action)


class Truncation(Doors):
    """Truncation keeps the value of the last observation, termination does not.

    A door has a near exit (0, terminated) and a far one (``RIGHT``), which costs 6 and leads to a
    marked row, where any action pays 8. Half of the times the episode does not get there: behind
    doors 0 to 3 it is truncated before the marked row, behind doors 4 to 7 it is terminated. An
    evaluation has no time limit: nothing is truncated (and doors 4 to 7 always terminate).

    Trap: only the flag tells doors 0 to 3 from doors 4 to 7. Best 1: far (-6 + 8) at doors 0 to 3,
    worth -6 + 0.9 * 8 > 0, and near (0) at the others, as -6 + 0.9 * 8/2 < 0. If both flags have
    the same target, both kinds of doors have the same value v: v < 0 takes all near exits, 0; v > 0
    takes all far ones, (2 - 6) / 2. Control: nothing is truncated in training either.
    """

    def begin(self) -> None:
        super().begin()
        self.near = False

    def seen(self) -> tuple[int, ...]:
        return (self.door,) if self.t == 0 else (MARK,) if self.t == 1 and not self.near else ()

    def act(self, action: int) -> tuple[float, str]:
        if self.t == 1:
            return 8.0, TERMINATED
        self.near = action != RIGHT[self.door]
        if self.near:
            return 0.0, TERMINATED
        half = self.np_random.random() < 0.5
        if self.door < 4:
            cut = half and not self.evaluation and not self.control
            return -6.0, TRUNCATED if cut else GOES_ON
        return -6.0, TERMINATED if half or self.evaluation else GOES_ON


class NStep(Doors):
    """Returns of several steps stop at the end of the episode.

    Row 0 is marked, row 1 is a door: ``RIGHT`` stays, the other action quits. Row 2 pays 1, row 3
    nothing, and the episode is terminated. Quitting pays nothing and ends the episode, terminated
    at even doors, truncated (before a row like row 3, which is worth 0) at odd ones. In training,
    row 0 pays 4 in every episode that follows one that was quit. The evaluation has no such gift.

    Trap: a return that runs on credits the gift of the next episode to quitting: 4 g against 1 g,
    before the same rows. Best 1 (stay); 0, and 1/2 if only one kind of end is run over.
    Control: no gifts.
    """

    bound = 0.5
    needs = "returns over 2 rows or more (n-step, lambda > 1/4)"
    quit = False  # the present episode, or the one before

    def begin(self) -> None:
        super().begin()
        self.gift, self.quit = self.quit, False

    def seen(self) -> tuple[int, ...]:
        if self.quit:
            return (ASK,)
        return ((MARK,), (self.door,), (CUE,), (ASK,), ())[self.t]

    def act(self, action: int) -> tuple[float, str]:
        if self.t == 0:
            return 4.0 * (self.gift and not self.control and not self.evaluation), GOES_ON
        if self.t == 1 and action != RIGHT[self.door]:
            self.quit = True
            return 0.0, TRUNCATED if self.door % 2 else TERMINATED
        return float(self.t == 2), TERMINATED if self.t == 3 else GOES_ON


# -- losses ----------------------------------------------------------------------------------------


class Padding(Probe):
    """Rows that pad a sequence are not learned.

    All rows are blank, and every row ends the episode with probability 1/2. Later rows cost 1.25
    with action 0 and 0.75 with action 1. Row 0 pays 1, and 0.75 for every later row to come, with
    action 0; it pays nothing with action 1.

    Trap: a padded row of zeros (observation, action, reward, value) looks like one more row that
    cost nothing. Best 1: action 0 in row 0, action 1 later. In a sequence long enough for padding,
    at least half of the rows in place 1 are padded, so action 0 there seems to cost at most 1.25/2,
    less than 0.75: it is taken, 1 - 0.5 E[later rows] = 1/2. Other paddings need other traps, and
    no environment holds for all: write NaN into the padded rows of your replay and compare the
    losses.
    Control: rows of an episode are marked, so padded ones look like none of them.
    """

    bound = 0.5

    def begin(self) -> None:
        self.later = int(self.np_random.geometric(0.5)) - 1  # rows after row 0

    def seen(self) -> tuple[int, ...]:
        return (MARK,) if self.control else ()

    def act(self, action: int) -> tuple[float, str]:
        first, later = (1 + 0.75 * self.later, 0.0), (-1.25, -0.75)
        return (later if self.t else first)[action], GOES_ON if self.t < self.later else TERMINATED


class Mask(Recall):
    """Action masks hold when acting, exploring and in the target's maximum.

    Observations are a Dict of ``observation`` and ``action_mask`` (four 0 or 1). Row 0 shows a cue;
    action 0 leads to the jackpot, action 1 to the question, 2 and 3 are masked. Question: two
    actions are allowed, 0 and 1 or 2 and 3, at random; the one whose parity is the cue pays 1, the
    other costs 1. Jackpot: action 3 pays 2 but is masked three times out of four; others pay 0. A
    masked action costs 1. Each of these rows ends the episode after ``TAIL`` blank rows.

    Trap: a maximum over masked actions takes the jackpot for certain: 2 instead of 1, and gets
    2/4. Best 1 (question). Actions without a mask are allowed half of the time at the question:
    0, and the jackpot is worth (2 - 3)/4 or, with another action, 0. Without memory: 2/4 again.
    Control: everything is allowed, the jackpot pays 0, and the cue is shown at the question too.
    """

    bound = 0.5
    actions = 4
    asks = (1,)

    def __init__(self, *, box: bool = False, **options: bool) -> None:
        if box:
            raise ValueError("box = True: continuous actions have no mask")
        super().__init__(**options)
        mask = spaces.MultiBinary(self.actions)
        self.observation_space = spaces.Dict(
            {"observation": self.observation_space, "action_mask": mask}
        )

    def begin(self) -> None:
        super().begin()
        self.pair = int(self.np_random.integers(2))
        self.open = self.np_random.random() < 0.25
        self.jackpot = False

    def seen(self) -> tuple[int, ...]:
        return (MARK,) if self.t == 1 and self.jackpot else super().seen()

    def allowed(self) -> list[int]:
        if self.control or self.t > 1:
            return [1, 1, 1, 1]
        if self.t == 0:
            return [1, 1, 0, 0]
        if self.jackpot:
            return [1, 1, 1, int(self.open)]
        return [0, 0, 1, 1] if self.pair else [1, 1, 0, 0]

    def observation(self) -> Any:
        mask = np.array(self.allowed(), np.int8)
        return {"observation": super().observation(), "action_mask": mask}

    def act(self, action: int) -> tuple[float, str]:
        end = GOES_ON if self.t < 1 + TAIL else TERMINATED
        if not self.allowed()[action]:
            return -1.0, end
        if self.t == 0:
            self.jackpot = action == 0 or action == 2
        if self.t != 1:
            return 0.0, end
        if self.jackpot:
            return 2.0 * (action == 3 and not self.control), end
        return 1.0 if action % 2 == self.cue else -1.0, end


class Weights(Doors):
    """Importance weights undo the bias of prioritized replay, each on its own sequence.

    At a door the safe action (``RIGHT``) pays 1; the other one pays 6.25 on every tenth pull and
    nothing otherwise, 0.625 on average. In an evaluation it costs 1, so that the score counts
    choices.

    Trap: sampled in proportion to |TD error|^a without weights, the value q of the risky action is
    where 0.1 (6.25 - q)^(1 + a) = 0.9 q^(1 + a): 1.26 for a = 0.6, 1.49 for a = 0.9, more than 1.
    Best 1; weights left out, or those of other sequences: -1. Holds for a >= 1/2.
    Control: the risky action pays 0.625 on every pull.
    """

    bound = 0.5
    needs = "prioritized replay with a >= 1/2, full weights (beta = 1), one-step returns"

    def begin(self) -> None:
        super().begin()
        if not hasattr(self, "pulls"):
            self.pulls = self.np_random.integers(10, size=DOORS)

    def seen(self) -> tuple[int, ...]:
        return (self.door,) if self.t == 0 else ()

    def act(self, action: int) -> tuple[float, str]:
        end = GOES_ON if self.t < TAIL else TERMINATED
        if self.t > 0 or action == RIGHT[self.door]:
            return float(self.t == 0), end
        self.pulls[self.door] += 1
        paid = 0.625 if self.control else 6.25 * (self.pulls[self.door] % 10 == 0)
        return -1.0 if self.evaluation else paid, end


PROBES: dict[str, type[Probe]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Reset, Late, Own, Truncation, Last, One, NStep, Previous, Padding, Burnin, Stored, Fresh),
        *(Mask, Odd, Weights),
    )
}


def make(probe: str, **options: bool) -> Probe:
    """Return a new environment of the probe with this name; ``options``: see ``Probe``.

    Raises: ValueError for a name that is not in ``PROBES``.
    """
    if probe not in PROBES:
        raise ValueError(f"probe = {probe}: must be one of {', '.join(PROBES)}")
    return PROBES[probe](**options)
