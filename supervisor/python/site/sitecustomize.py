# SPDX-License-Identifier: Apache-2.0
"""Starts the hook in every Python process of a job, then runs the sitecustomize that Python would have found instead.

Any Python may come by here, since PYTHONPATH is inherited by all: the syntax is that of Python 2.7.
"""

import os
import sys


def _start():
    """Starts the hook where it can work. Returns what is to be called when the next sitecustomize has run."""
    if sys.version_info < (3, 8) or getattr(sys, "_steadfast_hook", False):
        return None
    sys._steadfast_hook = True
    # Anything at all may be wrong with this place, and none of it is the training's business.
    try:
        from _steadfast import startup

        return startup.install()
    except Exception:
        return None


def _run_next():
    """Runs the next sitecustomize on sys.path, if there is one, under its own name and with its own errors."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.abspath(place) for place in sys.path]
    # Only what comes after this directory: one before it would have been found instead of this one.
    rest = sys.path[places.index(here) + 1 :] if here in places else []
    if sys.version_info < (3, 4):
        import imp

        try:
            found = imp.find_module("sitecustomize", rest)
        except ImportError:
            return
        imp.load_module("sitecustomize", *found)
        return
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_finish = _start()
try:
    _run_next()
finally:
    if _finish is not None:
        _finish()
