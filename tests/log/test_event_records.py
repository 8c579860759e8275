"""Records of event files against tensorboard's own writer."""

import io

import numpy as np
import pytest
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.summary.writer.record_writer import RecordWriter

from rlrun.log import event_records

LENGTHS = [*range(6), 511, 512, *range(513, 518), 1024, 5000]


def test_the_checksum_of_the_standard():
    assert event_records.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("length", LENGTHS)
def test_records_are_those_of_tensorboard(length):
    data = np.random.default_rng(length).bytes(length)
    assert event_records.crc32c(data) == pywrap_tensorflow.crc32c(data)
    file = io.BytesIO()
    RecordWriter(file).write(data)
    assert event_records.encode(data) == file.getvalue()
