# SPDX-License-Identifier: Apache-2.0
"""Steps and compilations of PyTorch."""

import functools

from .phases import COMPILE
from .recorder import recorder


def count_steps(module):
    """`module` is torch.optim.optimizer."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        # For every optimizer there is or will be, since PyTorch 2.0.
        register(recorder.optimizer_stepped)
    else:
        _wrap_steps(module.Optimizer)


def _wrap_steps(optimizer_class):
    """Before PyTorch 2.0: every optimizer, when it is made, wraps the `step` of its class for the profiler. So do we."""
    prepare = optimizer_class._hook_for_profile
    stepped = recorder.optimizer_stepped

    @functools.wraps(prepare)
    def prepare_and_count(self):
        prepare(self)
        step = type(self).step
        if getattr(step, "_steadfast", False):
            return

        @functools.wraps(step)
        def counted(*args, **kwargs):
            result = step(*args, **kwargs)
            stepped(args[0])
            return result

        # `wraps` has copied `hooked`, by which torch knows that it need not wrap it again.
        counted._steadfast = True
        type(self).step = counted

    optimizer_class._hook_for_profile = prepare_and_count


def show_compilations(module):
    """`module` is torch._dynamo.callback, since PyTorch 2.2."""

    def begin(*_args):
        recorder.enter(COMPILE, implied=True)

    def end(*_args):
        recorder.leave(COMPILE)

    module.on_compile_start(begin)
    module.on_compile_end(end)
