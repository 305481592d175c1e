# SPDX-License-Identifier: Apache-2.0
"""What this process has to tell: steps, phases, checkpoints. Everything that watches the program ends up here.

The page is made when a framework is imported or at the first thing that is worth telling, so that the many other Python
processes around a training (compilers, loggers, data loaders) leave none.
"""

import os
import sys
from time import monotonic_ns, sleep

from _thread import get_ident

from . import guard, stacks
from .page import COUNTED, OPTIMIZER, STATED, UNKNOWN, Page
from .phases import CHECKPOINT, COMPILE, INIT, TRAIN

_MARK = "_steadfast_steps"
_MOST = 2**53
_HELD_SECONDS = 0.01


class Recorder:
    """The one of this process is `recorder`."""

    def __init__(self):
        self._page = None
        self._failed = False
        # The open phases, innermost last. They belong to the thread that trains: the main one, until another has shown
        # itself by a step. A checkpoint that another thread writes meanwhile does not stop the training.
        self._open = []
        self._thread = get_ident()
        self._stated = False
        self.trained = False

    def forked(self):
        """In a forked child: the page is the parent's. The child makes its own when it has something to tell."""
        self.__init__()

    def page(self):
        """The page; None where there can be none."""
        if self._page is None and not self._failed:
            # Once is enough: where it does not work, it does not work.
            self._failed = True
            directory = os.environ.get("STEADFAST_PAGES")
            if directory:
                self._page = guard.attempt("making the progress page", Page, directory, stacks.signal_number())
        return self._page

    def framework_imported(self):
        """A framework was imported: this may become a training process."""
        if not _is_helper():
            self.page()

    def optimizer_stepped(self, optimizer, _args=None, _kwargs=None):
        """A step of a torch optimizer is done. Several optimizers that step in turns make one step together."""
        try:
            page = self._page or self.page()
            if page is None:
                return
            fields = optimizer.__dict__
            count = fields.get(_MARK)
            if count is None:
                count, source = self._first_count(optimizer, page)
            else:
                count, source = count + 1, page.source
            fields[_MARK] = count
            page.changed_ns = now = monotonic_ns()
            if count > page.step and not self._stated:
                page.step = count
                page.step_ns = now
            page.publish_step()
            if page.phase != TRAIN or page.source != source:
                self._train(page, now, source)
        except Exception:
            guard.report("counting a step")

    # torch.compile must not look into it: it would run it once and never again.
    optimizer_stepped._torchdynamo_disable = True

    def counted(self, steps=1):
        """So many steps are done, by something that has no number for them."""
        page = self.page()
        if page is not None and not self._stated and steps > 0:
            self._advance(page, page.step + steps, max(page.source, COUNTED))

    def stated(self, step, loss=None):
        """The program says at which step it is. From now on, nothing is counted."""
        page = self.page()
        if page is None:
            return
        self._stated = True
        self._advance(page, min(max(step, 0), _MOST), STATED)
        if loss is not None:
            page.set_loss(loss)

    def enter(self, phase, implied=False):
        """Begins a phase. Returns whether `leave` must be called. `implied`: the program did not say so itself."""
        try:
            if get_ident() != self._thread or (implied and self._page is None and _is_helper()):
                return False
            page = self.page()
            if page is None:
                return False
            self._open.append(phase)
            self._show_phase(page, phase)
            return True
        except Exception:
            guard.report("beginning a phase")
            return False

    def leave(self, phase):
        """Ends the innermost open phase of this kind."""
        try:
            page = self.page()
            for at in range(len(self._open) - 1, -1, -1):
                if self._open[at] == phase:
                    del self._open[at]
                    break
            if page is not None:
                self._show_phase(page, self._open[-1] if self._open else self._base())
        except Exception:
            guard.report("ending a phase")

    def should_checkpoint(self):
        """Whether the supervisor wants a checkpoint at this step."""
        page = self.page()
        if page is None:
            return False
        page.asks()
        wanted = page.checkpoint_request()
        return 0 < wanted <= page.step and page.checkpoint_done < wanted

    def checkpoint_done(self, step, path=None):
        """A checkpoint of this step is whole."""
        page = self.page()
        if page is None:
            return
        page.set_checkpoint_path(path if path is not None else "")
        page.checkpoint_done = min(max(step, 0), _MOST)
        page.publish_state()
        self._hold(page)

    def _hold(self, page):
        """The job is stopped once the checkpoint is safe: a step made meanwhile would have to be made again."""

        def is_held():
            return 0 < page.checkpoint_request() <= page.checkpoint_done and monotonic_ns() < page.hold_until()

        if not is_held():
            return
        entered = self.enter(CHECKPOINT)
        try:
            while is_held():
                sleep(_HELD_SECONDS)
        finally:
            if entered:
                self.leave(CHECKPOINT)

    def _first_count(self, optimizer, page):
        """The count of an optimizer that has made its first step here, and where it comes from."""
        self.trained = True
        self._thread = get_ident()
        own = guard.attempt("reading an optimizer's own count", _own_count, optimizer)
        if own is not None and own >= page.step and not self._stated:
            return own, OPTIMIZER
        # It takes part in the step that others have counted already.
        return max(page.step, 1), page.source or COUNTED

    def _advance(self, page, step, source):
        self.trained = True
        self._thread = get_ident()
        page.changed_ns = now = monotonic_ns()
        if step != page.step or page.source == UNKNOWN:
            page.step = step
            page.step_ns = now
        page.publish_step()
        if page.phase != TRAIN or page.source != source:
            self._train(page, now, source)

    def _train(self, page, now, source):
        """A step shows that the program trains, unless it has said what else it does."""
        page.source = source
        # A compilation whose end was not told is over.
        self._open = [phase for phase in self._open if phase != COMPILE]
        if not self._open and page.phase != TRAIN:
            page.phase = TRAIN
            page.phase_ns = now
        page.publish_state()

    def _base(self):
        return TRAIN if self.trained else INIT

    def _show_phase(self, page, phase):
        if phase != page.phase:
            page.phase = phase
            page.phase_ns = monotonic_ns()
            page.publish_state()


def _own_count(optimizer):
    """The count that the optimizers of the Adam family keep in their state, and take along through a checkpoint."""
    state = next(iter(optimizer.state.values()), None)
    step = state.get("step") if isinstance(state, dict) else None
    if step is None:
        step = optimizer.param_groups[0].get("step")
    if not isinstance(step, (int, float)):
        # Reading a number that is on a GPU would wait for the GPU.
        if step is None or step.device.type != "cpu":
            return None
    step = int(step)
    return step if 0 < step < _MOST else None


def _is_helper():
    """Whether this is a child of Python's multiprocessing, most of which are data loaders."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # A child that is not forked knows its parent only when all is imported; until then, it knows that it inherits.
    return process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)


recorder = Recorder()
os.register_at_fork(after_in_child=recorder.forked)
