# SPDX-License-Identifier: Apache-2.0
"""What happens when Python starts."""

import os

from . import guard

_OFF = ("0", "false", "no", "off")


def install():
    """Starts everything. Returns what is to be called when the program's own sitecustomize has run; None for nothing."""
    directory = os.environ.get("STEADFAST_PAGES")
    if not directory or os.environ.get("STEADFAST_HOOK", "").strip().lower() in _OFF:
        return None
    guard.attempt("preparing for stacks", _install_stacks, directory)
    guard.attempt("watching imports", _install_watch)
    return _finish


def _install_stacks(directory):
    from . import stacks

    stacks.install(directory)


def _install_watch():
    from . import frameworks, imports

    imports.install(frameworks.HOOKS)


def _finish():
    """Later than the program's own sitecustomize: its hooks are there now, and are called by ours."""
    from .errors import errors

    guard.attempt("watching for errors", errors.install)
