# SPDX-License-Identifier: Apache-2.0
"""The inside of Steadfast's Python hook. Not for use by training programs: they import `steadfast`.

It has a name of its own so that a user's module called `steadfast` is never hidden by what the hook has loaded.

Rules that everything in here keeps:
- It imports only what Python itself has, and no framework: it waits until the program imports one.
- Whatever fails in it, the training does not notice.
- A forked child never writes to the page of its parent.
"""
