# SPDX-License-Identifier: Apache-2.0
"""Batches and evaluations of Keras, whatever is below it, as its own callbacks see them."""

from .phases import EVAL
from .recorder import recorder
from .wrapping import after


class _Batches:
    """Counts the batches of one CallbackList. With steps_per_execution, several are told as one."""

    def __init__(self):
        self.last = -1

    def ended(self, batch):
        done = batch - self.last if batch > self.last else batch + 1
        self.last = batch
        recorder.counted(done)


def watch(callback_list):
    """`callback_list` is Keras' class CallbackList."""

    def batch_ended(self, batch, *_logs):
        self.__dict__.setdefault("_steadfast_batches", _Batches()).ended(batch)

    def evaluation_began(self, *_logs):
        if recorder.enter(EVAL, implied=True):
            self.__dict__["_steadfast_evaluations"] = self.__dict__.get("_steadfast_evaluations", 0) + 1

    def evaluation_ended(self, *_logs):
        if self.__dict__.get("_steadfast_evaluations", 0):
            self.__dict__["_steadfast_evaluations"] -= 1
            recorder.leave(EVAL)

    after(callback_list, "on_train_batch_end", batch_ended)
    after(callback_list, "on_test_begin", evaluation_began)
    after(callback_list, "on_test_end", evaluation_ended)
