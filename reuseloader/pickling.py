"""Which argument cannot go to a worker process?"""

import pickle
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

_PICKLING_ERRORS = (pickle.PicklingError, AttributeError, TypeError)


def explain_pickling(error: Exception, context: BaseContext, /, **arguments: Any) -> None:
    """If ``error`` is one of pickling, raise a TypeError that names the argument at fault."""
    if context.get_start_method() == "fork":  # nothing is pickled
        return
    # torch warns before it raises; with -W error it is the warning that comes out
    if not isinstance(error, _PICKLING_ERRORS) and not isinstance(
        error.__context__, _PICKLING_ERRORS
    ):
        return
    for name, value in arguments.items():
        try:
            ForkingPickler.dumps(value)
        except Exception:
            raise TypeError(
                f"{name} must be picklable to reach worker processes that are not forked, got "
                f"{value!r}. Make it a module-level function (functools.partial of one, or an "
                f"instance of a module-level class, is fine too), or use "
                f"multiprocessing_context='fork'"
            ) from error
