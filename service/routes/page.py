"""``GET /``: the page on which everything can be tried, and the files that it is made of."""

from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = Path(__file__).parent.parent / "static"
# Nothing from elsewhere, nothing inline, in nobody's frame; pictures of models come as blobs.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked for again each time, and answered 304 where nothing has changed.
    "Cache-Control": "no-cache",
}

router = APIRouter()


@router.get("/", include_in_schema=False)
async def get_page(request: Request) -> Response:
    """The page; its addresses begin with the prefix under which a proxy serves it."""
    base = request.scope.get("root_path", "").rstrip("/")
    page = (STATIC / "index.html").read_text(encoding="utf-8").replace("{{base}}", base)
    return Response(page, media_type="text/html", headers=HEADERS)


class PageFiles(StaticFiles):
    """Scripts, styles and pictures of the page."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, with the headers of the page."""
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


files = PageFiles(directory=STATIC)
