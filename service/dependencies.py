"""What routes are given: the tasks' context, and the ticket of the request.

All of it is at hand, so these are coroutines: FastAPI would run anything else in a thread.
"""

from typing import Annotated

from fastapi import Depends, Request

from service.batches import Ticket
from service.keys import Keys
from service.lifecycle import Lifecycle
from service.loader import Loader
from service.rehearsal import IS_REHEARSAL
from service.tasks.context import Context


async def _context(request: Request) -> Context:
    return request.app.state.context


async def _ticket(request: Request) -> Ticket:
    ticket = Ticket.within(request.app.state.context.settings.request_timeout_s)
    ticket.is_rehearsal = getattr(request.state, IS_REHEARSAL, False)
    request.state.ticket = ticket
    return ticket


async def _lifecycle(request: Request) -> Lifecycle:
    return request.app.state.lifecycle


async def _loader(request: Request) -> Loader:
    return request.app.state.loader


async def _keys(request: Request) -> Keys:
    return request.app.state.keys


ContextDep = Annotated[Context, Depends(_context)]
KeysDep = Annotated[Keys, Depends(_keys)]
LoaderDep = Annotated[Loader, Depends(_loader)]
LifecycleDep = Annotated[Lifecycle, Depends(_lifecycle)]
TicketDep = Annotated[Ticket, Depends(_ticket)]
