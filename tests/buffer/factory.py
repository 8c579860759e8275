"""The former name of ``tests.buffer.make``, which other rooms' tests still import."""

from tests.buffer.make import constant as constant
from tests.buffer.make import linear as linear
from tests.buffer.make import make_replay as make_replay
