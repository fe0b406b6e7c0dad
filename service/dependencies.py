"""What routes are given: the tasks' context, and the ticket of the request."""

from typing import Annotated

from fastapi import Depends, Request

from service.batcher import Ticket
from service.tasks.context import Context


def _context(request: Request) -> Context:
    return request.app.state.context


def _ticket(request: Request) -> Ticket:
    ticket = Ticket.within(request.app.state.context.settings.request_timeout_s)
    request.state.ticket = ticket
    return ticket


ContextDep = Annotated[Context, Depends(_context)]
TicketDep = Annotated[Ticket, Depends(_ticket)]
