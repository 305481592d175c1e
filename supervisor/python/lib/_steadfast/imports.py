# SPDX-License-Identifier: Apache-2.0
"""Calls a function right after a module was imported, without importing it."""

import sys

from . import guard


class _Finder:
    """First in sys.meta_path. For all modules but a few it does nothing but look into a dictionary."""

    def __init__(self, hooks):
        self._hooks = hooks

    def find_spec(self, name, path=None, target=None):
        hook = self._hooks.get(name)
        if hook is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, hook)
                return spec
        return None


class _Loader:
    """Stands in for a loader until it has loaded. What a module sees of itself is the real one."""

    def __init__(self, loader, hook):
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        loader = self._loader
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__.loader = loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = loader
        loader.exec_module(module)
        guard.attempt("hooking into %s" % module.__name__, self._hook, module)


def install(hooks):
    """Calls `hooks[name](module)` when the module of this name is imported, or now if it has been."""
    waiting = {}
    for name, hook in hooks.items():
        module = sys.modules.get(name)
        if module is None:
            waiting[name] = hook
        else:
            guard.attempt("hooking into %s" % name, hook, module)
    sys.meta_path.insert(0, _Finder(waiting))
