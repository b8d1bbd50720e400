"""The pages of `pretrieve browse` as an ASGI application.

Every page is HTML that the server has written: no script, and no request to another server. A page whose answer takes
long is sent in parts: its head, then a line for each thing that is being done, then the answer, which hides the lines.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flows.browse import queries
from flows.browse.contents import Collection, Contents, known
from flows.browse.searches import Report, Row, Searches
from flows.browse.selection import Selection
from flows.prefect_server.request_guard import HEADERS, Callers
from storage.errors import DamagedArtifact, UserError
from tasks.report.page.browse_page import fragment, page

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger(__name__)

PAGE_HEADERS = HEADERS | {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
ANSWER = "<!-- the answer -->"  # no text of a page can contain it, since texts are escaped
CLEAREST = 5  # wins, and losses, on the first page
CALLERS = Callers(frozenset({"127.0.0.1", "localhost", "::1"}), frozenset())


def application(contents: Contents, searches: Searches, token: str) -> Starlette:
    """Return the application. Its pages are below /TOKEN/; requests with another token are refused."""
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    pages = Pages(contents, searches, f"/{token}/")

    def route(path: str, answer: Callable[[Request], Response]) -> Route:
        def guarded(request: Request) -> Response:
            refused = CALLERS.refusal(request.headers.get("host"), request.headers.get("origin"))
            if refused and refused[0] == 400:
                refused = 400, "unknown Host header: open the address that `pretrieve browse` has printed"
            if not refused and not hmac.compare_digest(request.path_params["token"].encode(), token.encode()):
                refused = 403, "wrong token: open the address that `pretrieve browse` has printed"
            if refused:
                return pages.problem(refused[1], refused[0])
            try:
                return answer(request)
            except UserError as error:
                return pages.problem(str(error), 404)
            except DamagedArtifact as error:
                return pages.problem(str(error), 500)

        return Route(path, guarded, methods=["GET"])

    def missing(request: Request, error: Exception) -> Response:
        return HTMLResponse("There is no such page.", 404, PAGE_HEADERS)

    routes = [route("/{token}" + path, answer) for path, answer in pages.routes().items()]
    return Starlette(routes=routes, exception_handlers={404: missing})


class Pages:
    """The answers to requests, by path."""

    def __init__(self, contents: Contents, searches: Searches, base: str) -> None:
        self._contents, self._searches, self._base = contents, searches, base

    def routes(self) -> dict[str, Callable[[Request], Response]]:
        """Return the functions that answer, by path below the token."""
        return {
            "/": self.home, "/search": self.search, "/queries": self.queries, "/passage": self.passage,
            "/training": self.training, "/negatives": self.negatives,
        }  # fmt: skip

    def home(self, request: Request) -> Response:
        """Return the first page: the search box, and the clearest wins and losses."""
        selection = Selection(request.query_params, self._contents)
        rows = queries.compared(selection.collection, selection.pair, self._contents.metric)
        wins = [row for row in rows if row["difference"] > 0][:CLEAREST]
        losses = [row for row in rows[::-1] if row["difference"] < 0][:CLEAREST]
        return self._page("home", selection, counts=queries.counts(rows), wins=wins, losses=losses)

    def search(self, request: Request) -> Response:
        """Return the results of both systems for a question, or for a query of the split by its id."""
        selection, query_id = Selection(request.query_params, self._contents), request.query_params.get("query")
        question = request.query_params.get("q", "").strip()
        if query_id:
            question = self._query_text(selection.collection, query_id)
        if not question:
            return self._page("home", selection, 400, problem="Type a question: the search box is empty.", counts={},
                              wins=[], losses=[])  # fmt: skip

        def answer(report: Report) -> Mapping[str, Any]:
            return self._answer(selection, question, query_id, report)

        return self._in_parts("search", selection, answer, question=question, query_id=query_id)

    def _answer(self, selection: Selection, question: str, query_id: str | None, report: Report) -> Mapping[str, Any]:
        collection, columns = selection.collection, []
        for name in dict.fromkeys(selection.pair):
            column: dict[str, Any] = {"system": collection.systems[name], "problem": None, "results": []}
            try:
                column["results"] = self._searches.results(collection, name, question, query_id, report)
            except (UserError, DamagedArtifact) as error:
                column["problem"] = str(error)
            columns.append(column)
        shown = [row["passage_id"] for column in columns for row in column["results"]]
        return {
            "columns": columns, "question": question, "query_id": query_id,
            "relevant": queries.relevant(collection, selection.pair, query_id) if query_id else [],
            "grades": queries.grades(collection, query_id, shown) if query_id else {},
        }  # fmt: skip

    def queries(self, request: Request) -> Response:
        """Return the list of the split's queries with both systems' values: wins first, or losses first."""
        selection, words = Selection(request.query_params, self._contents), request.query_params.get("find", "").strip()
        rows = queries.compared(selection.collection, selection.pair, self._contents.metric)
        losses_first = request.query_params.get("order") == "losses"
        matches = queries.containing(rows[::-1] if losses_first else rows, words)
        return self._page("queries", selection, counts=queries.counts(rows), find=words,
                          losses_first=losses_first, **self._part(matches, request))  # fmt: skip

    def training(self, request: Request) -> Response:
        """Return the list of a round's training queries."""
        selection, words = Selection(request.query_params, self._contents), request.query_params.get("find", "").strip()
        trainings = self._contents.trainings
        if not trainings:
            raise UserError("training queries: this run has trained no retriever with negatives")
        name = known(request.query_params.get("round") or next(iter(trainings)), trainings, "round")
        rows = queries.training_queries(trainings[name], words)
        return self._page("training", selection, round=name, find=words, **self._part(rows, request))

    def negatives(self, request: Request) -> Response:
        """Return a training query with its positives and the negatives of each round."""
        selection, query_id = Selection(request.query_params, self._contents), request.query_params.get("query", "")
        rounds = {
            name: training for name, training in self._contents.trainings.items()
            if queries.has_query(training, query_id)
        }  # fmt: skip
        if not rounds:
            raise UserError(f"query {query_id!r}: no round has trained with a query of this id")
        first = next(iter(rounds.values()))

        def answer(report: Report) -> Mapping[str, Any]:
            report("reading the negatives")
            passages = {name: queries.training_passages(training, query_id) for name, training in rounds.items()}
            return {"rounds": passages}

        text = queries.query_text(first.queries, query_id)
        return self._in_parts("negatives", selection, answer, text=text, query_id=query_id)

    def passage(self, request: Request) -> Response:
        """Return a passage with its pseudo-queries and the queries that it is relevant to or trained with."""
        selection, passage_id = Selection(request.query_params, self._contents), request.query_params.get("id", "")
        collection = selection.collection
        passage = queries.passage(collection, passage_id)
        return self._page(
            "passage", selection, passage=passage, trained=queries.trained_with(self._contents, collection, passage_id),
            pseudo_queries=queries.pseudo_queries(self._contents, collection, passage_id),
            document_queries=queries.document_queries(self._contents, passage["doc_id"]),
            has_generator=bool(self._contents.pseudo_queries), judged=queries.judged_for(collection, passage["doc_id"]),
        )  # fmt: skip

    def problem(self, message: str, status: int) -> Response:
        """Return a page that says what is wrong. It has no link below the token, which the caller may not know."""
        from starlette.responses import HTMLResponse

        return HTMLResponse(page("problem", message=message, base=None if status in (400, 403) else self._base), status,
                            PAGE_HEADERS)  # fmt: skip

    def _query_text(self, collection: Collection, query_id: str) -> str:
        if collection.queries is None:
            raise UserError(f"query {query_id!r}: {collection.name} has no queries; type a question")
        return queries.query_text(collection.queries, query_id)

    def _shared(self, selection: Selection) -> dict[str, Any]:
        """Return what every page shows."""
        return {"base": self._base, "run": self._contents, "selection": selection, "problem": None, "question": "",
                "query_id": None}  # fmt: skip

    def _page(self, name: str, selection: Selection, status: int = 200, **content: Any) -> Response:
        from starlette.responses import HTMLResponse

        return HTMLResponse(page(name, **self._shared(selection) | content), status, PAGE_HEADERS)

    def _in_parts(
        self, name: str, selection: Selection, answer: Callable[[Report], Mapping[str, Any]], **content: Any
    ) -> Response:
        """Return a page that is sent while its answer is worked out in the thread of searches."""
        from starlette.responses import StreamingResponse

        shared = self._shared(selection) | content
        head, _, tail = page(name, answer=ANSWER, **shared).partition(ANSWER)

        def parts() -> Iterator[str]:
            yield head + fragment("progress", line="waiting for an earlier search")
            try:
                answered = yield from self._progress(answer)
            except Exception as error:  # the head has been sent: the reason can only be shown on the page
                log.exception("%s failed", name)
                yield fragment("failed", message=f"{type(error).__name__}: {error}") + tail
                return
            yield fragment(f"{name}_answer", **shared | answered) + tail

        return StreamingResponse(parts(), headers=PAGE_HEADERS, media_type="text/html")

    def _progress(self, answer: Callable[[Report], Mapping[str, Any]]) -> Any:
        reported = self._searches.run(answer)
        while True:
            try:
                yield fragment("progress", line=next(reported))
            except StopIteration as stop:
                return stop.value

    def _part(self, rows: list[Row], request: Request) -> dict[str, Any]:
        """Return the rows of the requested page of a list, and the numbers that its links need."""
        given = request.query_params.get("page", "1")
        last = max(1, -(-len(rows) // queries.PER_PAGE))
        is_number = given.isascii() and given.isdigit() and len(given) < 10
        number = min(max(int(given), 1), last) if is_number else 1
        first = (number - 1) * queries.PER_PAGE
        return {"rows": rows[first : first + queries.PER_PAGE], "total": len(rows), "page": number, "pages": last}
