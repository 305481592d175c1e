# SPDX-License-Identifier: Apache-2.0
"""Puts a phase around functions of frameworks."""

import functools
import types

from . import guard
from .recorder import recorder


def wrap(holder, name, phase, only_before_training=False):
    """Replaces the function or method `name` of `holder`, if there is one, by one that shows the phase meanwhile."""
    function = _own_function(holder, name)
    if function is None:
        return

    @functools.wraps(function)
    def shown(*args, **kwargs):
        entered = not (only_before_training and recorder.trained) and recorder.enter(phase, implied=True)
        try:
            return function(*args, **kwargs)
        finally:
            if entered:
                recorder.leave(phase)

    shown._steadfast = True
    setattr(holder, name, shown)


def after(holder, name, call):
    """Replaces the method `name` of the class `holder`, if there is one, so that `call(self, *args)` follows it."""
    function = _own_function(holder, name)
    if function is None:
        return

    @functools.wraps(function)
    def followed(self, *args, **kwargs):
        result = function(self, *args, **kwargs)
        guard.attempt("following %s" % name, call, self, *args)
        return result

    followed._steadfast = True
    setattr(holder, name, followed)


def _own_function(holder, name):
    function = holder.__dict__.get(name)
    plain = isinstance(function, types.FunctionType) and not getattr(function, "_steadfast", False)
    return function if plain else None
