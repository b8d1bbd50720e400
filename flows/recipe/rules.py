"""Rules between the sections of a recipe. Each function raises ValueError for the first violation of its rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from flows.recipe.approximate_schema import SEARCHED_VIEW, Approximate, ApproximateMining
from flows.recipe.round_schema import (
    Ensemble,
    ExpertQueries,
    Member,
    Round,
    Teacher,
    retrievers,
)  # fmt: skip
from flows.recipe.sections import Headline
from tasks.evaluation.evaluate import Comparison
from tasks.pretraining.pair_contexts import Contexts
from tasks.report.claims import Claims


def runs_exist(names: Sequence[str], compared: Sequence[Comparison | Headline]) -> None:
    """Check that comparisons and the headline are of runs that the recipe has."""
    for name in (name for pair in compared for name in (pair.run, pair.baseline)):
        if name not in names:
            raise ValueError(f"evaluate and headline: {name!r} is no run of this recipe; expected {', '.join(names)}")


def claims_are_tested(claims: Claims | None, comparisons: Sequence[Comparison]) -> None:
    """Check that each claim is about two runs that are compared."""
    tested = [f"{pair.run} with {pair.baseline}" for pair in comparisons]
    for claim in claims.made if claims else []:
        if (pair := f"{claim.run} with {claim.baseline}") not in tested:
            raise ValueError(f"claims.made: expected a pair of evaluate.comparisons, found {pair}; add it there")


def teacher_reads_rankings(teacher: Teacher, rankings: Sequence[str], rounds: Sequence[Round]) -> None:
    """Check that the teacher re-ranks one ranking, not a mean of several, and mines with BM25 or a round."""
    if teacher.reranks not in rankings:
        raise ValueError(f"teacher.reranks: expected one of {', '.join(rankings)}, found {teacher.reranks!r}")
    if teacher.mine_with not in ("bm25", *(round_.name for round_ in rounds)):
        raise ValueError(f"teacher.mine_with: expected bm25 or a round, found {teacher.mine_with!r}")


def contexts_fit_paper(contexts: Contexts | None, paper: str, reads: str) -> None:
    """Check that a paper gets the contexts of its objective: none, sentences, or pseudo-queries and passages."""
    kinds = contexts.passages if contexts else []
    if (contexts is None) != (reads == "texts"):
        raise ValueError(f"contexts: {paper} reads {reads}; expected {'null' if reads == 'texts' else 'contexts'}")
    if (reads == "sentences") != ("sentences" in kinds):
        raise ValueError(f"contexts.passages: {paper} reads {reads}; found {kinds}")
    if contexts and not (contexts.pseudo_queries or kinds):
        raise ValueError("contexts: expected pseudo_queries above 0, or some passages")


def names_differ(rounds: Sequence[Round], reserved: Sequence[str]) -> None:
    """Check that no two rounds have the same name, and no round that of another part of a recipe."""
    counts = Counter([round_.name for round_ in rounds] + list(reserved))
    for round_ in rounds:
        if counts[round_.name] > 1:
            raise ValueError(f"rounds: the name {round_.name!r} is taken; give each round its own")


def rankings_differ(names: Sequence[str]) -> None:
    """Check that no two rankings of a report have the same name, since the later one would take the other's place."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"rounds, fusions, approximate: two rankings are called {twice[0]!r}; rename one of them")


def with_earlier(rounds: Sequence[Round]) -> Iterator[tuple[Round, dict[str, Round]]]:
    """Yield each round with the earlier rounds that it can build on, by name: those with one retriever."""
    for number, round_ in enumerate(rounds):
        yield round_, retrievers(rounds[:number])


def mining_rounds_exist(rounds: Sequence[Round]) -> None:
    """Check that a round mines with BM25 or an earlier round, and has the expert queries of an earlier round."""
    for round_, earlier in with_earlier(rounds):
        if round_.mine_with not in (None, "bm25", *earlier):
            known = ", ".join(("bm25", *earlier))
            raise ValueError(f"rounds: {round_.name} mines with {round_.mine_with!r}, which is none of {known}")
        if isinstance(round_.queries, ExpertQueries) and round_.queries.round not in earlier:
            raise ValueError(f"rounds: {round_.name}.queries: {round_.queries.round!r} is no earlier round")


def starts_exist(rounds: Sequence[Round], run_names: Sequence[str], *, pretrains: bool) -> None:
    """Check that a round starts from a checkpoint that exists by then; keys and folders are not checked here."""
    for round_, earlier in with_earlier(rounds):
        if round_.start == "pretrained" and not pretrains:
            raise ValueError(f"rounds: {round_.name} starts from a pre-training, but pretrain is null")
        if round_.start in run_names and round_.start not in earlier:
            raise ValueError(
                f"rounds: {round_.name} starts from {round_.start!r}; expected an earlier round of one sample"
            )


def views_exist(rounds: Sequence[Round]) -> None:
    """Check that the views that a round names are views of the retriever that they are about."""
    for round_, earlier in with_earlier(rounds):
        name = f"rounds: {round_.name}"
        retriever_has_views(f"{name}.mine_views", round_.mine_views, earlier.get(round_.mine_with or ""))
        retriever_has_views(f"{name}.rows", round_.rows, round_)
        if isinstance(round_.queries, ExpertQueries):
            retriever_has_views(f"{name}.queries", round_.queries.views, earlier[round_.queries.round])


def retriever_has_views(location: str, views: Sequence[str], retriever: Round | None) -> None:
    """Check that the retriever of a round has all of these views; without a round there are none."""
    known = retriever.views if retriever else ()
    if missing := set(views) - set(known):
        raise ValueError(f"{location}: expected views of {', '.join(known) or 'no retriever'}, found {min(missing)}")


def untrained_rounds_are_dense(rounds: Sequence[Round]) -> None:
    """Check that a round that is not trained starts from one with a dense view only, since it ranks by one vector."""
    for round_, earlier in with_earlier(rounds):
        if round_.train is None and round_.start in earlier and earlier[round_.start].views != ("dense",):
            raise ValueError(
                f"rounds: {round_.name} is not trained and ranks by one dense vector, which {round_.start} lacks"
            )


def teacher_is_trained_in_time(rounds: Sequence[Round], teacher: Teacher | None) -> None:
    """Check that a round that needs the teacher's scores comes after the round that mines for the teacher."""
    for round_, earlier in with_earlier(rounds):
        if round_.needs_teacher and teacher is None:
            raise ValueError(f"rounds: {round_.name} needs a teacher's scores; expected a section teacher")
        if round_.needs_teacher and teacher and teacher.mine_with not in ("bm25", *earlier):
            raise ValueError(f"teacher.mine_with: {round_.name} needs the teacher before {teacher.mine_with!r}")


def fusion_members_exist(fusions: Sequence[Ensemble], rounds: Sequence[Round]) -> None:
    """Check that fusions are of BM25, of rounds or of their views."""
    known = retrievers(rounds)
    for fusion in fusions:
        for member in map(Member.read, fusion.members):
            if member.round not in ("bm25", *known):
                raise ValueError(f"fusions: {fusion.name}: {member.round!r} is no round of this recipe")
            if member.view:
                retriever_has_views(f"fusions: {fusion.name}", [member.view], known.get(member.round))


def approximate_indexes_fit(indexes: Sequence[Approximate], rounds: Sequence[Round]) -> None:
    """Check that an approximate index is of a view of its engine that is also searched exactly, to compare."""
    known = retrievers(rounds)
    for index in indexes:
        if index.round not in known or known[index.round].run_of(index.view) is None:
            raise ValueError(
                f"approximate: {index.name}: expected a round with {index.view} among its rows, to compare with"
            )
        engine_fits(f"approximate: {index.name}", index, known[index.round])


def approximate_mining_fits(rounds: Sequence[Round]) -> None:
    """Check that a round mines approximately by views of an earlier round's retriever that are ranked separately."""
    for round_, earlier in with_earlier(rounds):
        retriever, location = earlier.get(round_.mine_with or ""), f"rounds: {round_.name}.mine_approximate"
        for mining in round_.mine_approximate:
            retriever_has_views(location, [mining.view], retriever)
            assert retriever is not None
            are_separate = retriever.fuse is not None or len(retriever.views) == 1
            if mining.view not in (round_.mine_views or (retriever.views if are_separate else ())):
                raise ValueError(
                    f"{location}: {round_.name} does not mine from a ranking by {mining.view}; name it in mine_views, "
                    "or search exactly"
                )
            engine_fits(location, mining, retriever)


def engine_fits(location: str, searched: Approximate | ApproximateMining, round_: Round) -> None:
    """Check that an approximate index is of its engine's view, with weights or tokens that the engine can compare."""
    engine, view = searched.index.engine, searched.view
    if view != SEARCHED_VIEW[engine]:
        raise ValueError(f"{location}: {engine} searches {SEARCHED_VIEW[engine]}, not {view}")
    views = training.retriever if (training := round_.train) else None
    if view == "lexical" and views and views.lexical and views.lexical.activation == "none":
        raise ValueError(f"{location}: seismic needs weights above 0, which activation none does not give")
    if view == "late" and views and views.late and views.late.exact_match:
        raise ValueError(f"{location}: candidates compare all tokens; exact matches are searched exactly")


def counterparts_are_rankings(counterparts: Sequence[str], run_names: Sequence[str], rounds: Sequence[Round]) -> None:
    """Check that the runs that views are compared with are rankings, not means of several."""
    means = {round_.name for round_ in rounds if round_.is_few_shot}
    for name in counterparts:
        if name not in run_names or name in means:
            rankings = ", ".join(run for run in run_names if run not in means)
            raise ValueError(f"analyses: expert_disagreement.counterparts: expected some of {rankings}, found {name!r}")


def analysis_fits_round(analysis: str, name: str, rounds: Sequence[Round]) -> None:
    """Check that an analysis of a retriever is of a round that has the views that it compares."""
    known = retrievers(rounds)
    if name not in known:
        raise ValueError(f"analyses: {analysis}: expected a round ({', '.join(known)}), found {name}")
    if analysis == "divergence" and "dense" not in known[name].views:
        raise ValueError(f"analyses: divergence needs dense vectors, which {name} lacks")
    if analysis == "expert_disagreement" and len(known[name].rows) < 2:
        raise ValueError(
            f"analyses: expert_disagreement compares the rankings of two views; {name} has {known[name].rows} as rows"
        )
