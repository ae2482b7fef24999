"""How worker processes start, and which argument cannot go to them."""

import multiprocessing
import pickle
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

_PICKLING_ERRORS = (pickle.PicklingError, AttributeError, TypeError)


def process_context(context: str | BaseContext | None) -> BaseContext:
    """The context that ``multiprocessing_context`` means; ValueError if there is no such."""
    if isinstance(context, BaseContext):
        return context
    methods = multiprocessing.get_all_start_methods()
    if context is None or context in methods:
        return multiprocessing.get_context(context)
    raise ValueError(
        f"multiprocessing_context must be None, one of {methods} or a context, got {context!r}"
    )


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
