"""The chain of stages of a recipe, from corpus to report: the figure of the papers, in code.

    corpus ── split ─┬─ passages ── BM25 ── positives, mined negatives ──┐
                     │                                                   ├── rounds: train, encode, index
                     └─ spans ── pseudo-queries ── contexts ── pretrain ─┘            │
                                                                                      │
    topics ── search ── rankings ── fusions, teacher ── metrics, significance ◄───────┘
                                                              │
                                        overlaps, analyses, other collections ── report

A round may mine with the retriever of an earlier round. In a planning session the calls work out every key and build
nothing: `flows.plan.plan` plans a recipe so, and `flows.reproduce` then runs the planned jobs as a Prefect flow.
"""

from __future__ import annotations

from typing import Any

from flows.chain.analyses import AnalysisInputs, analyse
from flows.chain.backbone import initial_checkpoint, tokenizer
from flows.chain.evaluation import bm25_variants, check_metrics, evaluate_split, headline_wins, overlaps
from flows.chain.pretraining import contexts, pretrained, pretraining_spans, retrieved_passages
from flows.chain.pseudo_queries import PseudoQueryGenerators
from flows.chain.rankers import Bm25System
from flows.chain.report_inputs import ReportInputs, build_report
from flows.chain.retriever_rounds import Rounds
from flows.chain.training_examples import judged_examples, pseudo_examples, split_topics
from flows.chain.transfer import read_other_collections, transferred
from flows.recipe.schema import Recipe
from storage.artifact import Artifact
from storage.store.store import Store
from storage.tables import Report


def chain(recipe: Recipe[Any], name: str, store: Store) -> Artifact[Report]:
    """Call every stage of the recipe `name` in order; return the report, which is the last."""
    backbone = initial_checkpoint(recipe)
    passages, spans = retrieved_passages(recipe), pretraining_spans(recipe)

    # Topics are read before they are needed, so that bad judgements are reported before hours of work.
    topics = [split_topics(recipe, split) for split in recipe.dataset.eval_splits]
    check_metrics(recipe, topics)
    read_other_collections(recipe)

    bm25 = Bm25System(recipe.bm25).on(passages, recipe.encode, recipe.index)
    examples = judged_examples(recipe, bm25) if recipe.dataset.train_split else None
    generators = PseudoQueryGenerators.of(recipe, store, examples, passages)
    pseudo_queries = generators.generate(spans) if generators.are_for("pretrain") else None
    pairs = contexts(recipe, spans, pseudo_queries)
    checkpoints = {"backbone": backbone}
    if (trained := pretrained(recipe, backbone, passages, pairs)) is not None:
        checkpoints["pretrained"] = trained

    examples = examples or pseudo_examples(passages, generators.generate(passages))
    rounds = Rounds(recipe, store, bm25, examples, checkpoints)
    rounds.run()

    variants = bm25_variants(recipe, generators.expanded_bm25(passages))
    splits = [evaluate_split(recipe, rounds, variants, split) for split in topics]
    first = splits[0]
    analysed = AnalysisInputs(recipe, rounds, first, spans, pseudo_queries, pairs, tokenizer(recipe))
    pretraining = {} if trained is None else {"pre-training": trained}
    inputs = ReportInputs(
        splits=splits,
        query_quality=None if pseudo_queries is None else generators.quality(spans, pseudo_queries),
        overlaps=[*overlaps(recipe, first.runs), *rounds.mining_recall],
        checkpoints=pretraining | rounds.checkpoints,
        stored={"bm25": bm25.index} | rounds.vectors | rounds.approximate_indexes,
        analyses=analyse(analysed),
        wins=headline_wins(recipe, first, passages),
        transfer=transferred(recipe, rounds),
    )
    return build_report(recipe, name, inputs)
